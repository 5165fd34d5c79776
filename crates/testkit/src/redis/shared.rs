//! One server for many tests.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::port::free_port;
use super::resp::Connection;
use super::{assert_installed, redis_program};
use crate::patience::until;

/// A Redis that all tests of this build share, each with a prefix of its own. For tests that neither break nor configure it.
///
/// The first that needs it starts it, in whatever process; it ends when no process uses it any more, however that ended. Who
/// uses it holds a shared lock on a file, which the kernel gives back. A shell waits for the exclusive one, then kills Redis; should
/// the shell be killed, the kernel kills Redis, too.
pub struct SharedRedis {
    port: u16,
    prefix: String,
    _used: File,
}

impl SharedRedis {
    /// The one of this build, which is started if it does not run.
    pub fn join() -> Self {
        let program = std::env::current_exe().unwrap();
        let redis = redis_program().to_string_lossy().replace('/', "-");
        Self::join_in(&program.with_file_name(format!("shared-{redis}")))
    }

    /// The one that is kept in this folder.
    pub fn join_in(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        // As Redis says it.
        let folder = &folder.canonicalize().unwrap();
        let lock_file = |name: &str| {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false);
            file.open(folder.join(name)).unwrap()
        };
        let starting = lock_file("starting");
        starting.lock().unwrap();
        // From here on it does not end: either it is running, or whoever ended it has removed the name of its port.
        let used = lock_file("used");
        used.lock_shared().unwrap();
        let port = running(folder).unwrap_or_else(|| start(folder));
        Self {
            port,
            prefix: format!("test-{:016x}", fastrand::u64(..)),
            _used: used,
        }
    }

    /// As `--store` takes it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command and gives back what it says; the items of an array are lines.
    ///
    /// # Errors
    ///
    /// What Redis says, or that it cannot be reached.
    pub fn ask(&self, command: &[&str]) -> io::Result<String> {
        Connection::open(self.port, None)?.ask(command)
    }

    /// What the keys of this test begin with, as `--redis-prefix` takes it.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The port of the server of this folder, unless it was killed.
fn running(folder: &Path) -> Option<u16> {
    let port = fs::read_to_string(folder.join("port")).ok()?.parse().ok()?;
    answers(folder, port).then_some(port)
}

/// Whether it is the server of this folder that answers there, and has loaded what it kept.
fn answers(folder: &Path, port: u16) -> bool {
    let found = Connection::open(port, None).and_then(|mut connection| {
        connection.ask(&["PING"])?;
        connection.ask(&["CONFIG", "GET", "dir"])
    });
    found.is_ok_and(|found| found.lines().last() == folder.to_str())
}

fn start(folder: &Path) -> u16 {
    assert_installed();
    loop {
        let port = free_port();
        // A test that is killed takes its process group along: this is one of its own.
        let mut guard = Command::new("sh")
            .arg("-c")
            .arg(
                r#"cd "$1" && setpriv --pdeathsig KILL "$2" --bind 127.0.0.1 --port "$3" --dir "$1" --logfile log \
                --save "" --appendonly yes --appendfsync always &
                redis=$! ; export redis
                flock --exclusive "$1/used" sh -c 'kill -9 $redis; rm -rf port appendonlydir log'"#,
            )
            .arg("shared-redis")
            .arg(folder)
            .arg(redis_program())
            .arg(port.to_string())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut is_there = false;
        until("the shared Redis answers", || {
            is_there = answers(folder, port);
            is_there || has_failed(folder)
        });
        if is_there {
            fs::write(folder.join("port"), port.to_string()).unwrap();
            // Nobody waits for it: it is there for as long as any test is.
            drop(guard);
            return port;
        }
        guard.kill().unwrap();
        guard.wait().unwrap();
        let said = fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(said.contains("already in use"), "Redis has ended:\n{said}");
        fs::remove_file(folder.join("log")).unwrap();
    }
}

/// Somebody was faster to take the port.
fn has_failed(folder: &Path) -> bool {
    let said = fs::read_to_string(folder.join("log"));
    said.is_ok_and(|said| said.contains("already in use"))
}
