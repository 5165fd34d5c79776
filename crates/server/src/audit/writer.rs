//! The thread that writes the audit log. It appends whole lines, and says in the file how many entries are missing.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

use super::{AuditEntry, line, lock};

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Write a line; if that fails, count it as dropped.
    Append(String),
    /// Write a line and sync it to the disk, and reply with the result.
    Sync {
        line: String,
        written: oneshot::Sender<io::Result<()>>,
        /// Only written while the caller still waits: otherwise the action that it announces is not done.
        is_announcement: bool,
    },
    /// Reply when everything before is written.
    Flush(oneshot::Sender<()>),
}

impl Command {
    pub(super) fn append(line: String) -> Self {
        Self::Append(line)
    }

    pub(super) fn sync(line: String) -> (Self, oneshot::Receiver<io::Result<()>>) {
        Self::with_reply(line, false)
    }

    pub(super) fn announce(line: String) -> (Self, oneshot::Receiver<io::Result<()>>) {
        Self::with_reply(line, true)
    }

    fn with_reply(
        line: String,
        is_announcement: bool,
    ) -> (Self, oneshot::Receiver<io::Result<()>>) {
        let (written, receiver) = oneshot::channel();
        let command = Self::Sync {
            line,
            written,
            is_announcement,
        };
        (command, receiver)
    }
}

#[derive(Debug)]
pub(super) struct AuditWriter {
    path: PathBuf,
    file: File,
    reopened: Arc<Mutex<Option<File>>>,
    dropped: Arc<AtomicU64>,
    /// How many of the dropped entries are recorded in the file.
    reported: u64,
    /// The last line was written in part.
    is_torn: bool,
    /// The last write failed, and that was logged.
    is_failing: bool,
}

impl AuditWriter {
    pub(super) fn new(
        path: &Path,
        file: File,
        reopened: Arc<Mutex<Option<File>>>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            file,
            reopened,
            dropped,
            reported: 0,
            is_torn: false,
            is_failing: false,
        }
    }

    /// Runs until the audit log is dropped and everything that was queued is written.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            if let Some(file) = lock(&self.reopened).take() {
                self.file = file;
                self.is_torn = false;
            }
            match command {
                Command::Append(line) => {
                    if self.append(&line).is_err() {
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Command::Sync {
                    line,
                    written,
                    is_announcement,
                } => {
                    if is_announcement && written.is_closed() {
                        continue;
                    }
                    let done = self.append(&line).and_then(|()| self.sync());
                    // The caller may have given up.
                    let _ = written.send(done);
                }
                Command::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let missing = self.dropped.load(Ordering::Relaxed) - self.reported;
        let mut text = String::new();
        if self.is_torn {
            text.push('\n');
        }
        if missing > 0 {
            text.push_str(&entries_dropped(missing));
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
        let (count, written) = write(&mut self.file, text.as_bytes());
        match &written {
            Ok(()) => {
                self.is_torn = false;
                self.reported += missing;
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!(path = %self.path.display(), "the audit log is written again");
                }
            }
            Err(error) => {
                self.is_torn |= count > 0;
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(path = %self.path.display(), %error, "the audit log cannot be written");
                }
            }
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        match self.file.sync_data() {
            // A pipe or a terminal cannot be synced.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

/// Writes in one system call if possible, so that lines of two servers that share a file do not mix. Returns how much was written,
/// and whether that was all.
fn write(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut count = 0;
    while count < bytes.len() {
        match file.write(&bytes[count..]) {
            Ok(0) => return (count, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (count, Err(error)),
        }
    }
    (count, Ok(()))
}

fn entries_dropped(count: u64) -> String {
    line(&AuditEntry {
        act: "dropped",
        result: "OK",
        more: Some(count),
        ..AuditEntry::default()
    })
}
