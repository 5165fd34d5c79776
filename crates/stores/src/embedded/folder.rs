//! The folder of a store: one process at a time may use it, and only if the store in it is complete.
//!
//! The process locks a file, and writes its pid to it once the store is complete. So a missing database is damage in a folder
//! with a pid, and a first start in one without.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why an embedded store cannot be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Another process uses it.
    #[error(
        "the store in {} is used by another process{}: a store has one server at a time",
        .folder.display(),
        pid_of(*.pid)
    )]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The process, if the file has its pid.
        pid: Option<u32>,
    },
    /// The database is missing, or its content is invalid.
    #[error(
        "the store in {} is damaged: {what}. Nothing was changed. Restore it from a backup, or, if its locks may be forgotten, remove the folder: new fences will still be larger, because they follow the clock",
        .folder.display()
    )]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A newer version wrote it.
    #[error(
        "the store in {} has format {found}, but this version of forrst knows formats up to {known}: use the version that wrote it",
        .folder.display()
    )]
    NewerFormat {
        /// The folder.
        folder: PathBuf,
        /// The format of the store.
        found: i64,
        /// The newest format that this version reads.
        known: i64,
    },
    /// An older version wrote it.
    #[error(
        "the store in {} has format {found} of an older version of forrst, and this version reads format {known} only. Nothing was changed. If its locks may be forgotten, move the folder away: new fences will still be larger, because they follow the clock",
        .folder.display()
    )]
    OlderFormat {
        /// The folder.
        folder: PathBuf,
        /// The format of the store.
        found: i64,
        /// The format that this version reads.
        known: i64,
    },
    /// The folder or a file in it cannot be used.
    #[error("cannot use {}: {source}", .path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SQLite failed, for example because the disk is full.
    #[error("the journal failed: {0}")]
    Journal(#[from] rusqlite::Error),
    /// The thread of the store cannot be started.
    #[error("cannot start the thread of the store: {0}")]
    Thread(io::Error),
}

fn pid_of(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// A folder that this process alone may use, as long as the value lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Locked by the operating system, which unlocks it however the process ends. Contains the pid of that process.
    claim: File,
    /// Whether a process has used the store before.
    was_used: bool,
}

impl Folder {
    const CLAIM: &'static str = "server.pid";
    const DATABASE: &'static str = "locks.db";
    const UNFINISHED: &'static str = "locks.db.new";

    pub(super) fn claim(path: &Path) -> Result<Self, EmbeddedError> {
        create(path).map_err(|source| failed(path, source))?;
        // Without the sync, a loss of power could lose the folder's entry, and the next start would look like the first.
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|source| failed(parent, source))?;
        let claim_path = path.join(Self::CLAIM);
        let mut claim = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(OWN_FILE)
            .open(&claim_path)
            .map_err(|source| failed(&claim_path, source))?;
        let is_ours = claim.try_lock();
        let mut text = String::new();
        let _ = claim.read_to_string(&mut text);
        match is_ours {
            Ok(()) => {
                close_to_others(path);
                Ok(Self {
                    path: path.to_owned(),
                    claim,
                    was_used: !text.is_empty(),
                })
            }
            Err(fs::TryLockError::WouldBlock) => Err(EmbeddedError::InUse {
                folder: path.to_owned(),
                pid: text.trim().parse().ok(),
            }),
            Err(fs::TryLockError::Error(source)) => Err(failed(&claim_path, source)),
        }
    }

    /// Writes the pid, which also marks the store as used: call it only once the store is complete.
    pub(super) fn sign(&self) -> Result<(), EmbeddedError> {
        let sign = || -> io::Result<()> {
            let mut claim = &self.claim;
            claim.rewind()?;
            claim.set_len(0)?;
            writeln!(claim, "{}", std::process::id())?;
            claim.sync_all()
        };
        sign().map_err(|source| failed(&self.path.join(Self::CLAIM), source))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the database, which `make` creates at the first use of the folder.
    ///
    /// It is created under another name and then renamed, so a file with the right name is always complete.
    pub(super) fn database(
        &self,
        make: impl FnOnce(&Path) -> Result<(), EmbeddedError>,
    ) -> Result<PathBuf, EmbeddedError> {
        let database = self.path.join(Self::DATABASE);
        match fs::metadata(&database) {
            Ok(metadata) if metadata.len() == 0 => Err(self.damaged("locks.db is empty")),
            Ok(_) => Ok(database),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&database, error)),
            Err(_) if self.was_used => Err(self.damaged("locks.db is missing")),
            Err(_) => {
                let unfinished = self.path.join(Self::UNFINISHED);
                remove_if_there(&unfinished)?;
                // SQLite gives its other files the mode of this one.
                let mut new = OpenOptions::new();
                let new = new.write(true).create_new(true).mode(OWN_FILE);
                new.open(&unfinished)
                    .map_err(|source| failed(&unfinished, source))?;
                make(&unfinished)?;
                let finish = || -> io::Result<()> {
                    File::open(&unfinished)?.sync_all()?;
                    fs::rename(&unfinished, &database)?;
                    File::open(&self.path)?.sync_all()
                };
                finish().map_err(|source| failed(&database, source))?;
                Ok(database)
            }
        }
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> EmbeddedError {
        EmbeddedError::Damaged {
            folder: self.path.clone(),
            what: what.into(),
        }
    }
}

/// For the server's own user only: keys and owners can be confidential, and an owner token releases a lock.
const OWN_FOLDER: u32 = 0o700;
const OWN_FILE: u32 = 0o600;

fn create(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::DirBuilder::new().mode(OWN_FOLDER).create(path)
}

/// Revokes the access of other users to a store that was created with a laxer mode.
///
/// A folder that contains other files may be needed by other users, and keeps its mode.
fn close_to_others(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut is_ours = true;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == Folder::CLAIM || name.starts_with(Folder::DATABASE) {
            tighten(&entry.path(), OWN_FILE);
        } else {
            is_ours = false;
        }
    }
    if is_ours {
        tighten(folder, OWN_FOLDER);
    } else if others_may(folder).is_some_and(|mode| mode != 0) {
        let path = folder.display();
        tracing::warn!(%path, "other users can open the folder of the store, whose mode is not changed because it contains other files");
    }
}

fn others_may(path: &Path) -> Option<u32> {
    let metadata = fs::metadata(path).ok()?;
    Some(metadata.permissions().mode() & 0o077)
}

fn tighten(path: &Path, mode: u32) {
    if others_may(path).is_none_or(|mode| mode == 0) {
        return;
    }
    let shown = path.display();
    match fs::set_permissions(path, fs::Permissions::from_mode(mode)) {
        Ok(()) => {
            tracing::warn!(path = %shown, mode = %format_args!("{mode:04o}"), "other users could open this file or folder of the store: its mode was changed");
        }
        Err(error) => {
            tracing::warn!(path = %shown, %error, "other users can open this file or folder of the store, and its mode cannot be changed");
        }
    }
}

fn remove_if_there(path: &Path) -> Result<(), EmbeddedError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, error)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, source: io::Error) -> EmbeddedError {
    EmbeddedError::File {
        path: path.to_owned(),
        source,
    }
}
