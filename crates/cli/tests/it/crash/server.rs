//! The real binary with an embedded store in a folder of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};

use crate::crash::connection::Connection;

/// A server that hangs fails the test after this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// The folder of one store, and the log of its servers.
pub(crate) struct StoreFolder {
    root: TempDir,
    durability: &'static str,
    log: Arc<Mutex<String>>,
}

impl StoreFolder {
    pub(crate) fn new(durability: &'static str) -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            durability,
            log: Arc::default(),
        }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.path().join("store")
    }

    /// What the servers have logged.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// `forrst serve` on this store.
    pub(crate) fn command(&self) -> Command {
        self.command_of(Command::new(env!("CARGO_BIN_EXE_forrst")))
    }

    /// The same by a program that runs `forrst` with its arguments.
    pub(crate) fn command_of(&self, mut program: Command) -> Command {
        program
            .args(["serve", "--demo", "--listen", "127.0.0.1:0"])
            .args(["--durability", self.durability, "--store"])
            .arg(format!("embedded:{}", self.store().display()))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        program
    }

    /// Starts a server, and waits until it serves.
    pub(crate) async fn start(&self) -> Server {
        self.wait_for(self.command()).await
    }

    pub(crate) async fn wait_for(&self, mut command: Command) -> Server {
        let mut process = command.spawn().unwrap();
        let stderr = process.stderr.take().unwrap();
        let log = tokio::spawn(keep_lines(stderr, self.log.clone()));
        let stdout = process.stdout.take().unwrap();
        let mut banner = BufReader::new(stdout).lines();
        let address = timeout(PATIENCE, address_in(&mut banner)).await;
        let Ok(Some(address)) = address else {
            panic!("the server does not start:\n{}", self.log());
        };
        Server {
            process,
            address,
            log,
            _banner: banner,
        }
    }
}

async fn keep_lines(stderr: ChildStderr, log: Arc<Mutex<String>>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        log.lock().unwrap().extend([line.as_str(), "\n"]);
    }
}

async fn address_in(banner: &mut Lines<BufReader<ChildStdout>>) -> Option<SocketAddr> {
    while let Some(line) = banner.next_line().await.unwrap() {
        let url = line.split("http://").nth(1);
        if let Some(address) = url.and_then(|url| url.split('/').next()) {
            return address.parse().ok();
        }
    }
    None
}

/// A running server. It is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    log: JoinHandle<()>,
    _banner: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id().expect("it was not waited for")
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.address).await.unwrap()
    }

    /// Closes the pipe of the server's log.
    pub(crate) async fn break_log(&mut self) {
        self.log.abort();
        let _ = (&mut self.log).await;
    }

    /// SIGTERM. Returns when it has ended.
    pub(crate) async fn stop(mut self) {
        kill_process(self.process_id(), Signal::TERM).unwrap();
        let ended = timeout(PATIENCE, self.process.wait()).await;
        let ended = ended.expect("it ends after SIGTERM").unwrap();
        assert!(ended.success(), "{ended}");
    }

    /// Lets callers kill it, from some moment on.
    pub(crate) fn killer(&self, from: Instant) -> Killer {
        Killer {
            pid: self.process_id(),
            from,
            sent: OnceLock::new(),
        }
    }

    /// SIGKILL. Returns when the process has ended.
    pub(crate) async fn kill(mut self) -> Instant {
        self.process.kill().await.unwrap();
        Instant::now()
    }

    /// Kills it at that time, unless a caller has killed it before.
    pub(crate) async fn kill_at(mut self, at: Instant) -> Instant {
        match timeout_at(at.into(), self.process.wait()).await {
            Ok(_) => Instant::now(),
            Err(_) => self.kill().await,
        }
    }

    pub(crate) fn process_id(&self) -> Pid {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        pid.expect("a process has a positive number")
    }
}

/// Kills a server just after it has answered: what it has acknowledged has to be on the disk by then.
pub(crate) struct Killer {
    pid: Pid,
    from: Instant,
    sent: OnceLock<Instant>,
}

impl Killer {
    pub(crate) fn kill_once(&self) {
        let now = Instant::now();
        if now >= self.from {
            self.sent.get_or_init(|| {
                kill_process(self.pid, Signal::KILL).unwrap();
                now
            });
        }
    }

    /// When the server was killed.
    pub(crate) fn sent(&self) -> Option<Instant> {
        self.sent.get().copied()
    }
}
