//! A script that `forrst run` runs, in a folder of its own.

use std::fs;
use std::path::PathBuf;

use forrst_testkit::until;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::commands::forrst::{Ended, Forrst, Running};
use crate::commands::server::Server;

/// Records when it was alive, and ignores SIGTERM.
pub(crate) const STUBBORN: &str = "trap 'echo TERM >> signals' TERM
    echo $$ > pid
    while :; do echo ${EPOCHREALTIME/[.,]/} >> beats; sleep 0.02; done";

/// Ends when there is a file named `stop`, or by SIGTERM.
pub(crate) const PATIENT: &str = "trap 'echo TERM >> signals; exit 5' TERM
    echo $$ > pid
    while [ ! -e stop ]; do sleep 0.02; done
    exit 3";

pub(crate) struct Job {
    folder: TempDir,
    running: Running,
}

impl Job {
    /// `forrst run --key k` with these flags, and a script for bash.
    pub(crate) fn start(server: &Server, flags: &[&str], script: &str) -> Self {
        Self::start_at(&server.url(), flags, script)
    }

    /// The same, with the URL of a server.
    pub(crate) fn start_at(url: &str, flags: &[&str], script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let arguments = [&["run", "--key", "k"], flags, &["--", "bash", "-c", script]].concat();
        let running = Forrst::alone(&arguments)
            .variable("FORRST_URL", url)
            .folder(folder.path())
            .start();
        Self { folder, running }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the script has written to that file so far.
    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The pid that the script writes to that file. Waits for it.
    #[track_caller]
    pub(crate) fn pid(&self, name: &str) -> i32 {
        until(&format!("`{name}` is written"), || {
            self.file(name).ends_with('\n')
        });
        self.file(name).trim().parse().unwrap()
    }

    /// When the script was seen alive for the last time, in milliseconds since 1970.
    pub(crate) fn last_beat(&self) -> i64 {
        let beats = self.file("beats");
        // The last line may have been cut short.
        let last = beats.lines().rev().find(|line| line.len() >= 16);
        last.expect("it was alive at least once")
            .parse::<i64>()
            .unwrap()
            / 1000
    }

    /// Creates a file that the script waits for.
    pub(crate) fn create(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    pub(crate) fn parent(&self) -> i32 {
        self.running.pid().as_raw_nonzero().get()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    #[track_caller]
    pub(crate) fn wait(self) -> Ended {
        self.running.wait()
    }

    /// The same, and returns its folder.
    #[track_caller]
    pub(crate) fn wait_and_keep(self) -> (Ended, TempDir) {
        (self.running.wait(), self.folder)
    }
}

pub(crate) fn status(server: &Server) -> Value {
    Forrst::new(server, &["lock", "status", "k", "--json"]).json()
}

/// Waits for the lock, and returns when it was granted, by the server's clock, in milliseconds since 1970.
#[track_caller]
pub(crate) fn take_over(server: &Server) -> i64 {
    let take = [
        "lock", "acquire", "k", "--ttl", "1h", "--block", "1m", "--json",
    ];
    Forrst::new(server, &take).json();
    let acquired_at = status(server)["acquired_at"].as_str().unwrap().to_owned();
    let acquired_at = humantime::parse_rfc3339(&acquired_at).unwrap();
    let since = acquired_at.duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
