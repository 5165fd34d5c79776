//! The audit log: privileged actions and denied calls, with the caller, the time and the result.
//!
//! A thread writes the file, behind a bounded queue, so that a slow or full disk delays no request. Entries about denied calls
//! may be dropped, and are counted then. An action is never dropped: it is recorded as pending before it is done, and refused
//! if that cannot be written.

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

use self::writer::{AuditWriter, Command};
use crate::time::now;

/// How many entries may wait to be written.
const QUEUE: usize = 1024;
/// How long an action waits until its entry is written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// The result in the entry that announces an action.
const PENDING: &str = "PENDING";

/// The audit log: a file with one JSON object per line, or none.
///
/// Keys of locks are written in full, because an audit needs them. So a file that is created here can be read only by the user
/// who runs the server.
#[derive(Debug, Default)]
pub struct Audit {
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    queue: mpsc::Sender<Command>,
    /// The file that replaces the current one, after a `reopen`.
    reopened: Arc<Mutex<Option<File>>>,
    dropped: Arc<AtomicU64>,
}

/// An action, or an attempt at one.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AuditEntry<'a> {
    /// The name of the caller's API key or certificate, if the server authenticates callers.
    pub who: Option<&'a str>,
    /// The address of the caller, or `unix` for the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'a str>,
    /// The action, such as `force-release` or `denied`.
    pub act: &'a str,
    /// `OK`, or the code of the error.
    pub result: &'a str,
    /// The function that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<&'a str>,
    /// The id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<&'a str>,
    /// The full key of the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<&'a str>,
    /// The full keys, if there were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<&'a str>,
    /// The owner of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<&'a str>,
    /// The fence of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<String>,
    /// The leases that were ended, if there were several: the first [`MAX_LEASES`](Self::MAX_LEASES), and `more` counts the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<AuditedLease<'a>>,
    /// How many more there were that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<u64>,
}

/// A lease that was ended or changed by another caller than the one that took it.
#[derive(Debug, Clone, Serialize)]
pub struct AuditedLease<'a> {
    /// The full keys.
    pub locks: Vec<&'a str>,
    /// The owner.
    pub holder: &'a str,
    /// The fence.
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
    /// How many leases an entry lists.
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

    /// The action succeeded, and ended these leases.
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

/// An action that is recorded as pending, with a permit for the entry about its outcome.
#[derive(Debug)]
pub(crate) struct Announced(Option<OwnedPermit<Command>>);

impl Audit {
    /// Appends to a file, which is created if it does not exist. Starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread cannot be started.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (queue, messages) = mpsc::channel(QUEUE);
        let log = Log {
            path: path.to_owned(),
            queue,
            reopened: Arc::default(),
            dropped: Arc::default(),
        };
        let writer = AuditWriter::new(
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

    /// Opens the file again by its path, after it was rotated.
    ///
    /// # Errors
    ///
    /// If that fails. Entries then still go to the old file.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(log) = &self.log {
            // Locked first, so that what is recorded after the new file appears is written to it.
            let mut reopened = lock(&log.reopened);
            *reopened = Some(append(&log.path)?);
        }
        Ok(())
    }

    /// Queues an entry, with the current time. If the queue is full, or the file cannot be written, it is dropped and counted.
    pub fn record(&self, entry: &AuditEntry<'_>) {
        let Some(log) = &self.log else { return };
        if log.queue.try_send(Command::append(line(entry))).is_err() {
            log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes an entry, with the current time, and returns when it has reached the disk.
    ///
    /// # Errors
    ///
    /// If it could not be written within two seconds. It may be written later.
    pub async fn write(&self, entry: &AuditEntry<'_>) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let permit = log.permit().await?;
        log.written(permit, Command::sync(line(entry))).await
    }

    /// Records that an action is about to be done, and reserves a permit for the entry about its outcome. A pending entry
    /// without an outcome may have been done: the server ended in between.
    pub(crate) async fn announce(&self, entry: &AuditEntry<'_>) -> io::Result<Announced> {
        let Some(log) = &self.log else {
            return Ok(Announced(None));
        };
        let entry = AuditEntry {
            result: PENDING,
            ..entry.clone()
        };
        let permit = log.permit().await?;
        log.written(permit, Command::announce(line(&entry))).await?;
        // Not reserved before: an action that holds a permit never waits for another one.
        Ok(Announced(Some(log.permit().await?)))
    }

    /// Records the outcome of an action. The action is done already: an entry that cannot be written is counted, and the
    /// pending one remains.
    pub(crate) async fn outcome(&self, announced: Announced, entry: &AuditEntry<'_>) {
        if let (Some(log), Announced(Some(permit))) = (&self.log, announced)
            && let Err(error) = log.written(permit, Command::sync(line(entry))).await
        {
            log.not_written(&error, entry.act);
        }
    }

    /// As [`write`](Self::write), for an action that is done already.
    pub(crate) async fn done(&self, entry: &AuditEntry<'_>) {
        if let Err(error) = self.write(entry).await
            && let Some(log) = &self.log
        {
            log.not_written(&error, entry.act);
        }
    }

    /// Returns when all queued entries are written, or after two seconds.
    pub async fn flush(&self) {
        let Some(log) = &self.log else { return };
        let (done, flushed) = oneshot::channel();
        let flush = async {
            let _ = log.queue.send(Command::Flush(done)).await;
            let _ = flushed.await;
        };
        let _ = timeout(WRITE_TIMEOUT, flush).await;
    }

    /// A function that returns how many entries were dropped.
    pub(crate) fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let dropped = self.log.as_ref().map(|log| log.dropped.clone());
        move || {
            let dropped = dropped.as_ref();
            dropped.map_or(0, |dropped| dropped.load(Ordering::Relaxed))
        }
    }
}

impl Log {
    async fn permit(&self) -> io::Result<OwnedPermit<Command>> {
        let permit = timeout(WRITE_TIMEOUT, self.queue.clone().reserve_owned()).await;
        let permit = permit.map_err(|_| late("the queue of the audit log is full"))?;
        permit.map_err(|_| ended())
    }

    async fn written(
        &self,
        permit: OwnedPermit<Command>,
        (command, written): (Command, oneshot::Receiver<io::Result<()>>),
    ) -> io::Result<()> {
        permit.send(command);
        let written = timeout(WRITE_TIMEOUT, written).await;
        let written = written.map_err(|_| late("the audit log takes too long"))?;
        written.map_err(|_| ended())?
    }

    fn not_written(&self, error: &io::Error, act: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        tracing::error!(path = %self.path.display(), %error, act, "an action could not be written to the audit log");
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
    struct Timed<'a> {
        at: String,
        #[serde(flatten)]
        entry: &'a AuditEntry<'a>,
    }
    let line = serde_json::to_string(&Timed { at: now(), entry });
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
    async fn on_a_full_disk_denials_are_counted_and_actions_are_refused() {
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
    async fn a_full_queue_drops_denials_and_refuses_actions() {
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
        // The thread may have taken one out of the queue.
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
