//! The audit log: who did what that not everybody may do, when, and how it went.
//!
//! A thread of its own writes the file, behind a bounded queue, so that a slow or full disk holds up no request. Entries
//! about denied calls may be dropped, and are counted then. An act is never dropped: it is announced before it is done, and refused
//! when that cannot be written.

mod writer;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forrst_lock::{Lease, LockName};
use serde::Serialize;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::writer::{Message, Writer};
use crate::time::now;

/// How many entries wait to be written, at most.
const QUEUE: usize = 1024;
/// How long an act waits until it is written down.
const PATIENCE: Duration = Duration::from_secs(2);
/// Stands in place of a result in the entry that announces an act.
const PENDING: &str = "PENDING";

/// A file with one JSON object a line, or nothing.
///
/// Keys are written as they are: an audit that does not say which lock was released is none. So only the user who runs
/// the server may read a file that was made here.
#[derive(Debug, Default)]
pub struct Audit {
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    queue: mpsc::Sender<Message>,
    /// The file to go on with, when it was opened again.
    reopened: Arc<Mutex<Option<File>>>,
    dropped: Arc<AtomicU64>,
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
    /// All of them, where it was about several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<&'a str>,
    /// Who held it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<&'a str>,
    /// By which fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// The leases that it ended, where there were several: the first [`MAX_LEASES`](Self::MAX_LEASES), and `more` counts the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<AuditedLease<'a>>,
    /// How many more of the kind there were, which have no entries of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
}

/// A lease that was ended or changed by another caller than the one that took it.
#[derive(Debug, Clone, Serialize)]
pub struct AuditedLease<'a> {
    /// The full keys.
    pub locks: Vec<&'a str>,
    /// Who held it.
    pub holder: &'a str,
    /// By which fence.
    pub fence: String,
}

impl<'a> AuditedLease<'a> {
    fn new(lease: &'a Lease) -> Self {
        Self {
            locks: lease.locks.names().map(LockName::as_str).collect(),
            holder: lease.owner.as_str(),
            fence: lease.fence.to_string(),
        }
    }
}

impl<'a> AuditEntry<'a> {
    /// How many leases an entry names.
    pub const MAX_LEASES: usize = 100;

    /// An entry about these locks.
    pub(crate) fn about(names: impl IntoIterator<Item = &'a LockName>) -> Self {
        let mut locks: Vec<&str> = names.into_iter().map(LockName::as_str).collect();
        let lock = locks.first().copied();
        if locks.len() == 1 {
            locks.clear();
        }
        Self {
            lock,
            locks,
            ..Self::default()
        }
    }

    /// It went well, with these leases.
    pub(crate) fn ended(self, leases: &'a [Lease]) -> Self {
        let entry = Self {
            result: "OK",
            ..self
        };
        if let [lease] = leases {
            let AuditedLease {
                locks,
                holder,
                fence,
            } = AuditedLease::new(lease);
            return Self {
                locks: if lease.locks.is_set() {
                    locks
                } else {
                    Vec::new()
                },
                holder: Some(holder),
                fence: Some(fence),
                ..entry
            };
        }
        let shown = leases.iter().take(Self::MAX_LEASES);
        let more = leases.len().saturating_sub(Self::MAX_LEASES);
        Self {
            leases: shown.map(AuditedLease::new).collect(),
            more: u64::try_from(more).ok().filter(|more| *more > 0),
            ..entry
        }
    }
}

/// An act that is announced in the audit log, with a permit for the entry about its outcome.
#[derive(Debug)]
pub(crate) struct Announced(Option<OwnedPermit<Message>>);

impl Audit {
    /// Appends to a file, which is made if it is not there. Starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, or there is no thread.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (queue, messages) = mpsc::channel(QUEUE);
        let log = Log {
            path: path.to_owned(),
            queue,
            reopened: Arc::default(),
            dropped: Arc::default(),
        };
        let writer = Writer::new(
            path,
            append(path)?,
            log.reopened.clone(),
            log.dropped.clone(),
        );
        std::thread::Builder::new()
            .name("forrst-audit".to_owned())
            .spawn(move || writer.run(messages))?;
        Ok(Self { log: Some(log) })
    }

    /// Opens the file by its name again, after it was moved away.
    ///
    /// # Errors
    ///
    /// When that fails. Then the file that was open is written on.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(log) = &self.log {
            // Locked first: what is recorded after the file appears is written to it.
            let mut reopened = lock(&log.reopened);
            *reopened = Some(append(&log.path)?);
        }
        Ok(())
    }

    /// Queues an entry, with the time. When the queue is full, or the file cannot be written, it is dropped and counted.
    pub fn record(&self, entry: &AuditEntry<'_>) {
        let Some(log) = &self.log else { return };
        if log.queue.try_send(Message::entry(line(entry))).is_err() {
            log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes an entry, with the time, and returns when it has reached the disk.
    ///
    /// # Errors
    ///
    /// When it could not be written within two seconds. It may be written later.
    pub async fn write(&self, entry: &AuditEntry<'_>) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let permit = log.permit().await?;
        log.written(permit, Message::sure(line(entry))).await
    }

    /// Writes down that an act is about to be done, and reserves a permit for its outcome. An entry that is announced and has
    /// no outcome may have been done: the server ended in between.
    pub(crate) async fn announce(&self, entry: &AuditEntry<'_>) -> io::Result<Announced> {
        let Some(log) = &self.log else {
            return Ok(Announced(None));
        };
        let entry = AuditEntry {
            result: PENDING,
            ..entry.clone()
        };
        let permit = log.permit().await?;
        log.written(permit, Message::announcement(line(&entry)))
            .await?;
        // Not before: acts that hold a permit never wait for another one.
        Ok(Announced(Some(log.permit().await?)))
    }

    /// Writes the outcome of an act down. It is done: one that cannot be written is counted, and its announcement remains.
    pub(crate) async fn outcome(&self, announced: Announced, entry: &AuditEntry<'_>) {
        if let (Some(log), Announced(Some(permit))) = (&self.log, announced)
            && let Err(error) = log.written(permit, Message::sure(line(entry))).await
        {
            log.not_written(&error, entry.act);
        }
    }

    /// As [`write`](Self::write), of an act that is done already.
    pub(crate) async fn done(&self, entry: &AuditEntry<'_>) {
        if let Err(error) = self.write(entry).await
            && let Some(log) = &self.log
        {
            log.not_written(&error, entry.act);
        }
    }

    /// Returns when everything that is queued is written, or cannot be in time.
    pub async fn flush(&self) {
        let Some(log) = &self.log else { return };
        let (done, flushed) = oneshot::channel();
        let flush = async {
            let _ = log.queue.send(Message::Flush(done)).await;
            let _ = flushed.await;
        };
        let _ = timeout(PATIENCE, flush).await;
    }

    /// Counts the entries that were dropped.
    pub(crate) fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let dropped = self.log.as_ref().map(|log| log.dropped.clone());
        move || {
            let dropped = dropped.as_ref();
            dropped.map_or(0, |dropped| dropped.load(Ordering::Relaxed))
        }
    }
}

impl Log {
    async fn permit(&self) -> io::Result<OwnedPermit<Message>> {
        let permit = timeout(PATIENCE, self.queue.clone().reserve_owned()).await;
        let permit = permit.map_err(|_| late("the queue of the audit log is full"))?;
        permit.map_err(|_| ended())
    }

    async fn written(
        &self,
        permit: OwnedPermit<Message>,
        message: (Message, oneshot::Receiver<io::Result<()>>),
    ) -> io::Result<()> {
        let (message, written) = message;
        permit.send(message);
        let written = timeout(PATIENCE, written).await;
        let written = written.map_err(|_| late("the audit log takes too long"))?;
        written.map_err(|_| ended())?
    }

    fn not_written(&self, error: &io::Error, act: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(path = %self.path.display(), %error, act, "an act is not in the audit log");
    }
}

fn late(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}

fn ended() -> io::Error {
    io::Error::other("the thread of the audit log has ended")
}

/// One line, with the time.
fn line(entry: &AuditEntry<'_>) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        at: String,
        #[serde(flatten)]
        entry: &'a AuditEntry<'a>,
    }
    let line = serde_json::to_string(&Line { at: now(), entry });
    line.expect("texts and numbers can be written as JSON")
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::Value;

    use super::*;

    fn denied(request: &str) -> AuditEntry<'_> {
        AuditEntry {
            act: "denied",
            request: Some(request),
            ..AuditEntry::default()
        }
    }

    /// The entries of a file, by act and request or count.
    fn read(path: &Path) -> Vec<(String, Value)> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let entry = |mut line: Value| {
            let act = line["act"].as_str().unwrap().to_owned();
            let which = ["more", "request"].map(|member| line[member].take());
            let which = which.into_iter().find(|value| !value.is_null());
            (act, which.unwrap_or_default())
        };
        lines.map(entry).collect()
    }

    #[tokio::test]
    async fn what_a_full_disk_did_not_take_is_counted_and_acts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        symlink("/dev/full", &path).unwrap();
        let audit = Audit::open(&path).unwrap();
        for request in ["a", "b", "c"] {
            audit.record(&denied(request));
        }
        audit.flush().await;
        assert_eq!(audit.dropped()(), 3);
        let refused = audit.announce(&denied("d")).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(audit.dropped()(), 3, "it was refused, and not dropped");

        std::fs::remove_file(&path).unwrap();
        audit.reopen().unwrap();
        let announced = audit.announce(&denied("e")).await.unwrap();
        audit.outcome(announced, &denied("f")).await;
        let entry = |act: &str, which: Value| (act.to_owned(), which);
        let expected = [
            entry("dropped", 3.into()),
            entry("denied", "e".into()),
            entry("denied", "f".into()),
        ];
        assert_eq!(read(&path), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_denials_and_refuses_acts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(&path).unwrap();
        let log = audit.log.as_ref().unwrap();
        let (held, is_held) = std::sync::mpsc::channel();
        let (release, is_released) = std::sync::mpsc::channel::<()>();
        let reopened = log.reopened.clone();
        // The thread of the log waits for this one as it would for a disk that hangs.
        let hanging = std::thread::spawn(move || {
            let _held = lock(&reopened);
            held.send(()).unwrap();
            let _ = is_released.recv();
        });
        is_held.recv().unwrap();
        for _ in 0..QUEUE + 10 {
            audit.record(&denied("many"));
        }
        let refused = audit.announce(&denied("act")).await;
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(release);
        hanging.join().unwrap();
        let dropped = audit.dropped()();
        // One or none is in the hands of the thread.
        assert!((9..=10).contains(&dropped), "{dropped}");
        tokio::time::resume();
        audit.flush().await;
        let written = read(&path);
        assert!(written.iter().any(|(act, _)| act == "dropped"));
        let denials = written.iter().filter(|(act, _)| act == "denied").count();
        assert_eq!(denials as u64 + dropped, QUEUE as u64 + 10);
        assert!(written.iter().all(|(_, which)| which != "act"));
    }
}
