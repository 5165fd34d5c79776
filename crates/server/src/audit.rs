//! The audit log: who did what that not everybody may do, when, and how it went.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::time::now;

/// A file with one JSON object a line, or nothing.
///
/// Keys are written as they are: an audit that does not say which lock was released is none. So only the user who runs
/// the server may read a file that was made here.
#[derive(Debug, Default)]
pub struct Audit {
    file: Option<(PathBuf, Mutex<File>)>,
}

/// One thing that somebody did, or wanted to do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AuditEntry<'a> {
    /// Who: the name of their API key or certificate, where the server knows its callers.
    pub who: Option<&'a str>,
    /// The address they called from, or `unix` for the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'a str>,
    /// What, such as `force-release` or `denied`.
    pub act: &'a str,
    /// How it went: `OK`, or the code of the error.
    pub result: &'a str,
    /// The function that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<&'a str>,
    /// The id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<&'a str>,
    /// The full key of the lock that it was about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<&'a str>,
    /// Who held it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<&'a str>,
    /// By which fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
}

impl Audit {
    /// Appends to a file, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = append(path)?;
        Ok(Self {
            file: Some((path.to_owned(), Mutex::new(file))),
        })
    }

    /// Opens the file by its name again, after it was moved away.
    ///
    /// # Errors
    ///
    /// When that fails. Then the file that was open is written on.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some((path, file)) = &self.file {
            let new = append(path)?;
            *file.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// Writes an entry down, with the time.
    pub fn record(&self, entry: &AuditEntry<'_>) {
        #[derive(Serialize)]
        struct Line<'a> {
            at: String,
            #[serde(flatten)]
            entry: &'a AuditEntry<'a>,
        }
        let Some((path, file)) = &self.file else {
            return;
        };
        let line = serde_json::to_string(&Line { at: now(), entry });
        let written = line.map_err(io::Error::from).and_then(|line| {
            // In one write: lines of two servers that share a file do not mix.
            let line = format!("{line}\n");
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(line.as_bytes())
        });
        if let Err(error) = written {
            tracing::error!(path = %path.display(), %error, act = entry.act, "the audit log cannot be written");
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}
