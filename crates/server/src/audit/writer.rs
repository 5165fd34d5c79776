//! The thread that writes the audit log.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};

use super::{AuditEntry, line, lock};

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Message {
    /// Write a line, or count it as dropped.
    Entry(String),
    /// Write a line to the disk, and say how that went.
    Sure {
        line: String,
        written: oneshot::Sender<io::Result<()>>,
        /// Only while the caller waits for it: what it announces is not done otherwise.
        is_announcement: bool,
    },
    /// Say that everything before is written.
    Flush(oneshot::Sender<()>),
}

impl Message {
    pub(super) fn entry(line: String) -> Self {
        Self::Entry(line)
    }

    pub(super) fn sure(line: String) -> (Self, oneshot::Receiver<io::Result<()>>) {
        Self::with_reply(line, false)
    }

    pub(super) fn announcement(line: String) -> (Self, oneshot::Receiver<io::Result<()>>) {
        Self::with_reply(line, true)
    }

    fn with_reply(
        line: String,
        is_announcement: bool,
    ) -> (Self, oneshot::Receiver<io::Result<()>>) {
        let (written, receiver) = oneshot::channel();
        let message = Self::Sure {
            line,
            written,
            is_announcement,
        };
        (message, receiver)
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    file: File,
    reopened: Arc<Mutex<Option<File>>>,
    dropped: Arc<AtomicU64>,
    /// How many of the dropped entries the file knows of.
    reported: u64,
    /// The last line broke off.
    is_torn: bool,
    /// The last write failed, which is in the log.
    is_failing: bool,
}

impl Writer {
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

    /// Works until the audit log is dropped and everything that was queued is written.
    pub(super) fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some(message) = messages.blocking_recv() {
            if let Some(file) = lock(&self.reopened).take() {
                self.file = file;
                self.is_torn = false;
            }
            match message {
                Message::Entry(line) => {
                    if self.append(&line).is_err() {
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Message::Sure {
                    line,
                    written,
                    is_announcement,
                } => {
                    if is_announcement && written.is_closed() {
                        continue;
                    }
                    let done = self.append(&line).and_then(|()| self.sync());
                    // The caller may have lost its patience.
                    let _ = written.send(done);
                }
                Message::Flush(done) => {
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
            // A pipe or a terminal has no disk to wait for.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

/// In one write, where the system takes it: lines of two servers that share a file do not mix. How much was written, and
/// whether it was all.
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
