//! One Postgres server for many tests, in whatever processes they run.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::server::{SETTINGS, is_ready};
use super::{USER, as_server_user, folder, program, sql};
use crate::patience::until;
use crate::port::free_port;

/// A Postgres that all tests of this build share, each with a schema of its own. For tests that neither break nor configure it. It does
/// not wait for the disk.
///
/// It is started and stopped as [`SharedRedis`](crate::SharedRedis) is.
pub struct SharedPostgres {
    port: u16,
    schema: String,
    _used: File,
}

impl SharedPostgres {
    /// The server of this build, which is started if it is not running.
    pub fn join() -> Self {
        // The user of the server may not be able to read the folder of the build.
        let mut hasher = DefaultHasher::new();
        let program = std::env::current_exe().unwrap();
        program.parent().hash(&mut hasher);
        super::program("postgres").hash(&mut hasher);
        let name = format!("forrst-shared-postgres-{:016x}", hasher.finish());
        Self::join_in(&std::env::temp_dir().join(name))
    }

    /// The server with this folder.
    pub fn join_in(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        folder::give(folder);
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
            schema: format!("test_{:016x}", fastrand::u64(..)),
            _used: used,
        }
    }

    /// The URL for `--store`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The schema of this test, for `--postgres-schema`.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Runs SQL as the superuser. The rows are lines, and their fields are separated by `|`.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        let answer = sql(self.port, "postgres", statement);
        answer.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }
}

/// The port of the server with this folder, if it is running.
fn running(folder: &Path) -> Option<u16> {
    let port = fs::read_to_string(folder.join("port")).ok()?.parse().ok()?;
    let data = sql(port, "postgres", "SHOW data_directory").ok()?;
    (Path::new(&data) == folder.join("data")).then_some(port)
}

fn start(folder: &Path) -> u16 {
    // What is left of a server whose guard was killed.
    let _ = fs::remove_dir_all(folder.join("data"));
    let data = folder::make(folder);
    loop {
        let port = free_port();
        let log = folder.join("log");
        let _ = fs::remove_file(&log);
        // In a process group of its own, because a test may be killed with its whole group.
        let mut guard = Command::new("sh")
            .arg("-c")
            .arg(
                r#"folder="$1"; export folder; shift
                "$@" 2>"$folder/log" &
                server=$! ; export server
                flock --exclusive "$folder/used" sh -c '
                    kill -QUIT $server
                    while kill -0 $server; do sleep 0.05; done
                    rm -rf "$folder/port" "$folder/data" "$folder/log"'"#,
            )
            .arg("shared-postgres")
            .arg(folder)
            .args(as_server_user())
            .arg(program("postgres"))
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-k"])
            .arg(folder)
            .args(["-c", "fsync=off"])
            .args(SETTINGS.iter().flat_map(|setting| ["-c", setting]))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut is_up = false;
        until("the shared Postgres accepts connections", || {
            is_up = process_in(&data).is_some_and(|id| is_ready(&data, id));
            is_up || has_failed(&log)
        });
        if is_up {
            fs::write(folder.join("port"), port.to_string()).unwrap();
            // It is not waited for: it may outlive this process.
            drop(guard);
            return port;
        }
        guard.kill().unwrap();
        guard.wait().unwrap();
        let output = fs::read_to_string(&log).unwrap_or_default();
        assert!(output.contains("in use"), "Postgres has ended:\n{output}");
    }
}

fn process_in(data: &Path) -> Option<u32> {
    let file = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    file.lines().next()?.parse().ok()
}

/// Whether it could not start.
fn has_failed(log: &Path) -> bool {
    let output = fs::read_to_string(log);
    output.is_ok_and(|output| output.contains("FATAL"))
}
