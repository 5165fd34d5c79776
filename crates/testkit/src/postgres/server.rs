//! A Postgres server of a test's own.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{USER, folder, program, run, server_command, sql};
use crate::certificates::Certificates;
use crate::patience::until;
use crate::port::free_port;
use crate::process::Process;

/// The options of a server. By default it loses nothing that it has acknowledged.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    settings: Vec<String>,
    tls: bool,
}

impl PostgresOptions {
    /// Adds settings, as in `fsync=off`, which override the default ones.
    #[must_use]
    pub fn settings(mut self, settings: &[&str]) -> Self {
        self.settings
            .extend(settings.iter().map(ToString::to_string));
        self
    }

    /// Accepts TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts it, and waits until it accepts connections.
    pub fn start(self) -> PostgresServer {
        let folder = tempfile::tempdir().unwrap();
        self.start_in(folder, |folder| {
            folder::make(folder);
        })
    }

    fn start_in(self, folder: TempDir, make: impl FnOnce(&Path)) -> PostgresServer {
        folder::give(folder.path());
        make(folder.path());
        let certificates = self.tls.then(|| {
            let certificates = Certificates::make(folder.path());
            folder::give(&certificates.key);
            let key = fs::metadata(&certificates.key).unwrap();
            let mut permissions = key.permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
            fs::set_permissions(&certificates.key, permissions).unwrap();
            certificates
        });
        let mut server = PostgresServer {
            process: None,
            port: 0,
            certificates,
            options: self,
            folder,
        };
        loop {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
    }
}

/// A server with a port and a folder of its own. It is stopped when dropped.
pub struct PostgresServer {
    process: Option<Process>,
    port: u16,
    certificates: Option<Certificates>,
    options: PostgresOptions,
    folder: TempDir,
}

impl PostgresServer {
    /// Starts a server that loses nothing that it has acknowledged.
    pub fn start() -> Self {
        PostgresOptions::default().start()
    }

    /// Starts a standby that follows this server through a replication slot.
    pub fn standby(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let slot = format!("standby{:08x}", fastrand::u32(..));
        self.options.clone().start_in(folder, |folder| {
            let port = self.port.to_string();
            run(server_command(program("pg_basebackup"))
                .args(["-h", "127.0.0.1", "-p", &port, "-U", USER, "--no-sync"])
                .args(["--checkpoint=fast", "-R", "-C", "-S", &slot, "-D"])
                .arg(folder.join("data")));
        })
    }

    /// The URL for `--store`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@{}/postgres", self.address())
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority, if it was started with TLS.
    pub fn ca(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("it was started with TLS").ca
    }

    /// Runs SQL as the superuser. The rows are lines, and their fields are separated by `|`.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        let answer = self.ask(statement);
        answer.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }

    /// As [`sql`](Self::sql), for statements that may fail.
    ///
    /// # Errors
    ///
    /// What Postgres said.
    pub fn ask(&self, statement: &str) -> Result<String, String> {
        sql(self.port, "postgres", statement)
    }

    /// Makes a standby the primary. Returns when it accepts changes.
    pub fn promote(&self) {
        self.sql("SELECT pg_promote()");
        until("it is the primary", || {
            self.ask("SELECT pg_is_in_recovery()") == Ok("f".to_owned())
        });
    }

    /// SIGSTOP to all its processes: it hangs, and its connections stay open.
    pub fn pause(&self) {
        self.process().pause();
        for child in self.children() {
            let _ = kill_process(child, Signal::STOP);
        }
    }

    /// SIGCONT.
    pub fn resume(&self) {
        for child in self.children() {
            let _ = kill_process(child, Signal::CONT);
        }
        self.process().resume();
    }

    /// SIGKILL to all its processes, as when the machine loses power, except that the system keeps what was written.
    pub fn kill(&self) {
        let children = self.children();
        self.process().kill();
        for child in &children {
            let _ = kill_process(*child, Signal::KILL);
        }
        let is_running = |child: &Pid| {
            let state = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        until("all its processes have ended", || {
            !children.iter().any(is_running)
        });
    }

    /// Kills it, if it still runs, and starts it again on the same port and in the same folder.
    pub fn restart(&mut self) {
        self.kill();
        until("the port is free", || self.launch());
    }

    /// Limits the size of its files, as a full disk does; `None` ends that. More than that of a segment of its journal, 1 MiB.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let limited = |id: &str| {
            let mut command = server_command("prlimit".into());
            command.args(["--pid", id, &format!("--fsize={limit}:")]);
            command
        };
        // The sessions that are opened from now on inherit it.
        run(&mut limited(&self.process().id().to_string()));
        for child in self.children() {
            // It may have ended.
            let _ = limited(&child.as_raw_nonzero().to_string()).output();
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process().errors()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it was started")
    }

    fn children(&self) -> Vec<Pid> {
        let id = self.process().id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        let ids = children.split_whitespace();
        ids.filter_map(|id| Pid::from_raw(id.parse().ok()?))
            .collect()
    }

    /// Starts the process. Returns `false` if the port was taken, or the previous process has not quite ended.
    fn launch(&mut self) -> bool {
        let data = self.folder.path().join("data");
        let _ = fs::remove_file(data.join("postmaster.pid"));
        let mut command = server_command(program("postgres"));
        command.arg("-D").arg(&data);
        command.args(["-p", &self.port.to_string(), "-k"]);
        command.arg(self.folder.path());
        let mut settings: Vec<String> = SETTINGS.map(str::to_owned).into();
        if let Some(certificates) = &self.certificates {
            let file = |name: &str, path: &Path| format!("{name}={}", path.display());
            settings.push("ssl=on".to_owned());
            settings.push(file("ssl_cert_file", &certificates.certificate));
            settings.push(file("ssl_key_file", &certificates.key));
        }
        for setting in settings.iter().chain(&self.options.settings) {
            command.args(["-c", setting]);
        }
        let process = Process::start(format!("postgres on port {}", self.port), &mut command);
        let mut is_up = false;
        until("Postgres accepts connections", || {
            is_up = is_ready(&data, process.id());
            is_up || process.has_ended()
        });
        if !is_up {
            process.wait();
            let errors = process.errors();
            assert!(errors.contains("in use"), "Postgres has ended:\n{errors}");
        }
        self.process = Some(process);
        is_up
    }
}

/// The settings of every server.
pub(super) const SETTINGS: [&str; 5] = [
    "listen_addresses=127.0.0.1",
    "max_connections=300",
    "shared_buffers=32MB",
    "max_wal_size=64MB",
    "min_wal_size=16MB",
];

/// Whether the server with this data folder accepts connections, and is this process.
pub(super) fn is_ready(data: &Path, id: u32) -> bool {
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines();
    let is_this = lines.next().is_some_and(|line| line == id.to_string());
    let status = lines.nth(6).unwrap_or_default().trim();
    is_this && matches!(status, "ready" | "standby")
}

impl Drop for PostgresServer {
    /// An immediate shutdown, because a killed server leaves shared memory behind.
    fn drop(&mut self) {
        let Some(process) = &self.process else { return };
        if process.has_ended() {
            return;
        }
        self.resume();
        process.signal(Signal::QUIT);
        let end = Instant::now() + Duration::from_secs(5);
        while !process.has_ended() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
