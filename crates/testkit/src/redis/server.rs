//! A single Redis server, with the persistence that locks need.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::clock::Clock;
use super::resp::RespConnection;
use super::{assert_installed, redis_program};
use crate::certificates::Certificates;
use crate::patience::until;
use crate::port::free_port;
use crate::process::Process;

/// The options of a server. By default it loses nothing that it has acknowledged, as locks need it.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    arguments: Vec<String>,
    password: Option<String>,
    tls: bool,
    sentinel: Option<String>,
    clock: Option<Clock>,
}

impl RedisOptions {
    /// Adds arguments, which override the default ones.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Keeps nothing across a restart.
    #[must_use]
    pub fn forgetful(self) -> Self {
        self.arguments(&["--appendonly", "no"])
    }

    /// Requires a password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Listens with TLS as well; the [`url`](RedisServer::url) is that of this port.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Runs with a wall clock that is ahead of that of this machine, also after a restart.
    #[must_use]
    pub fn clock_ahead(mut self, by: Duration) -> Self {
        self.clock = Some(Clock::ahead(by));
        self
    }

    /// Runs with a wall clock that is behind that of this machine, also after a restart.
    #[must_use]
    pub fn clock_behind(mut self, by: Duration) -> Self {
        self.clock = Some(Clock::behind(by));
        self
    }

    /// Runs as a sentinel with this configuration.
    pub(crate) fn sentinel(configuration: String) -> Self {
        Self {
            sentinel: Some(configuration),
            ..Self::default()
        }
    }

    /// Starts it, and waits until it answers.
    pub fn start(self) -> RedisServer {
        let folder = tempfile::tempdir().unwrap();
        let certificates = self.tls.then(|| Certificates::make(folder.path()));
        let mut server = RedisServer {
            process: None,
            port: 0,
            tls_port: None,
            certificates,
            options: self,
            folder,
        };
        loop {
            server.port = free_port();
            server.tls_port = server.options.tls.then(free_port);
            if server.launch() {
                return server;
            }
        }
    }
}

/// A server with a port and a folder of its own. It is killed when dropped.
pub struct RedisServer {
    process: Option<Process>,
    port: u16,
    tls_port: Option<u16>,
    certificates: Option<Certificates>,
    options: RedisOptions,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server that loses nothing that it has acknowledged.
    pub fn start() -> Self {
        RedisOptions::default().start()
    }

    /// The URL for `--store`.
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref();
        let password = password.map_or(String::new(), |password| format!(":{password}@"));
        match self.tls_port {
            Some(port) => format!("rediss://{password}localhost:{port}"),
            None => format!("redis://{password}127.0.0.1:{}", self.port),
        }
    }

    /// The port without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The certificate of the authority, if it was started with TLS.
    pub fn ca(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("it was started with TLS").ca
    }

    /// SIGSTOP: it hangs, and its connections stay open.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process().resume();
    }

    /// SIGKILL. Returns when it has ended.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills it, if it still runs, and starts it again on the same port and in the same folder.
    pub fn restart(&mut self) {
        self.kill();
        until("the port is free", || self.launch());
    }

    /// Runs a command and returns the reply; the items of an array are lines.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        let answer = self.ask(command);
        answer.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// As [`cli`](Self::cli), for commands that may fail.
    pub fn ask(&self, command: &[&str]) -> io::Result<String> {
        self.connect()?.ask(command)
    }

    fn connect(&self) -> io::Result<RespConnection> {
        RespConnection::open(self.port, self.options.password.as_deref())
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it was started")
    }

    /// Starts the process. Returns `false` if the port was taken.
    fn launch(&mut self) -> bool {
        let name = format!("redis on port {}", self.port);
        let process = Process::start(name, &mut self.command());
        let mut is_up = false;
        until("Redis answers", || {
            is_up = self.answers_as(process.id()).unwrap_or(false);
            is_up || process.has_ended()
        });
        if !is_up {
            process.wait();
            let output = process.output();
            let errors = process.errors();
            assert!(
                output.contains("already in use"),
                "Redis has ended:\n{output}{errors}"
            );
        } else if self.options.clock.is_some() {
            Clock::forget(process.id());
        }
        self.process = Some(process);
        is_up
    }

    /// Whether this process answers, and not another one that has taken the port.
    fn answers_as(&self, id: u32) -> io::Result<bool> {
        let mut connection = self.connect()?;
        connection.ask(&["PING"])?;
        let info = connection.ask(&["INFO", "server"])?;
        let line = format!("process_id:{id}");
        Ok(info.lines().any(|found| found == line))
    }

    fn command(&self) -> Command {
        assert_installed();
        let mut command = Command::new(redis_program());
        if let Some(configuration) = &self.options.sentinel {
            let file = self.folder.path().join("sentinel.conf");
            // The sentinel stores its state in this file, which it needs after a restart.
            if !file.exists() {
                std::fs::write(&file, configuration).unwrap();
            }
            command.arg(file).arg("--sentinel");
        } else {
            command.args(["--save", "", "--appendonly", "yes"]);
            command.args(["--appendfsync", "always"]);
        }
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.folder.path());
        if let Some(password) = &self.options.password {
            command.args(["--requirepass", password]);
        }
        if let (Some(port), Some(certificates)) = (self.tls_port, &self.certificates) {
            command.args(["--tls-port", &port.to_string()]);
            command.args(["--tls-auth-clients", "no", "--tls-cert-file"]);
            command.arg(&certificates.certificate);
            command.arg("--tls-key-file").arg(&certificates.key);
            command.arg("--tls-ca-cert-file").arg(&certificates.ca);
        }
        command.args(&self.options.arguments);
        if let Some(clock) = &self.options.clock {
            clock.set(&mut command);
        }
        command
    }
}
