//! One Redis server for many tests, in whatever processes they run.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::resp::RespConnection;
use super::{assert_installed, redis_program};
use crate::patience::until;
use crate::port::free_port;

/// A Redis that all tests of this build share, each with a separate prefix. For tests that neither break nor configure it.
///
/// The first test that needs it starts it, in whatever process; it ends when no process uses it any more, even if they crash. Each user
/// holds a shared lock on a file, which the kernel releases with the process. A shell waits for the exclusive lock, then kills Redis; if
/// the shell is killed, the kernel kills Redis, too.
pub struct SharedRedis {
    port: u16,
    prefix: String,
    _used: File,
}

impl SharedRedis {
    /// The server of this build, which is started if it is not running.
    pub fn join() -> Self {
        let program = std::env::current_exe().unwrap();
        let redis = redis_program().to_string_lossy().replace('/', "-");
        Self::join_in(&program.with_file_name(format!("shared-{redis}")))
    }

    /// The server with this folder.
    pub fn join_in(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        // As `CONFIG GET dir` returns it.
        let folder = &folder.canonicalize().unwrap();
        let lock_file = |name: &str| {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false);
            file.open(folder.join(name)).unwrap()
        };
        let starting = lock_file("starting");
        starting.lock().unwrap();
        // From here on it is not stopped: either it is running, or the shell that stopped it has removed the file with its port.
        let used = lock_file("used");
        used.lock_shared().unwrap();
        let port = running(folder).unwrap_or_else(|| start(folder));
        Self {
            port,
            prefix: format!("test-{:016x}", fastrand::u64(..)),
            _used: used,
        }
    }

    /// The URL for `--store`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs a command and returns the reply; the items of an array are lines.
    ///
    /// # Errors
    ///
    /// The error reply of Redis, or that Redis cannot be reached.
    pub fn ask(&self, command: &[&str]) -> io::Result<String> {
        RespConnection::open(self.port, None)?.ask(command)
    }

    /// The prefix of this test's keys, for `--redis-prefix`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The port of the server with this folder, if it is running.
fn running(folder: &Path) -> Option<u16> {
    let port = fs::read_to_string(folder.join("port")).ok()?.parse().ok()?;
    answers(folder, port).then_some(port)
}

/// Whether the server with this folder answers at this port, and has loaded its data.
fn answers(folder: &Path, port: u16) -> bool {
    let found = RespConnection::open(port, None).and_then(|mut connection| {
        connection.ask(&["PING"])?;
        connection.ask(&["CONFIG", "GET", "dir"])
    });
    found.is_ok_and(|found| found.lines().last() == folder.to_str())
}

fn start(folder: &Path) -> u16 {
    assert_installed();
    loop {
        let port = free_port();
        // In a process group of its own, because a test may be killed with its whole group.
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
        let mut is_up = false;
        until("the shared Redis answers", || {
            is_up = answers(folder, port);
            is_up || has_failed(folder)
        });
        if is_up {
            fs::write(folder.join("port"), port.to_string()).unwrap();
            // It is not waited for: it may outlive this process.
            drop(guard);
            return port;
        }
        guard.kill().unwrap();
        guard.wait().unwrap();
        let output = fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(
            output.contains("already in use"),
            "Redis has ended:\n{output}"
        );
        fs::remove_file(folder.join("log")).unwrap();
    }
}

/// Whether another process has taken the port.
fn has_failed(folder: &Path) -> bool {
    let output = fs::read_to_string(folder.join("log"));
    output.is_ok_and(|output| output.contains("already in use"))
}
