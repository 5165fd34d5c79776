//! Runs `forrst serve`, each in a temporary folder of its own.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::patience::until;
use crate::process::Process;

/// `forrst serve` with its arguments, and a folder to run in.
pub struct Serve {
    binary: PathBuf,
    folder: TempDir,
    arguments: Vec<OsString>,
    variables: Vec<(String, String)>,
    listen: Option<String>,
}

impl Serve {
    /// On a free port. `binary` is `env!("CARGO_BIN_EXE_forrst")` of the test.
    pub fn new(binary: impl AsRef<Path>, arguments: &[&str]) -> Self {
        let mut serve = Self::bare(binary, arguments);
        serve.listen = Some("127.0.0.1:0".to_owned());
        serve
    }

    /// With these arguments only.
    pub fn bare(binary: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self {
            binary: binary.as_ref().to_owned(),
            folder: tempfile::tempdir().unwrap(),
            arguments: arguments.iter().map(OsString::from).collect(),
            variables: Vec::new(),
            listen: None,
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file and names it with `--config`.
    #[must_use]
    pub fn config(self, text: &str) -> Self {
        std::fs::write(self.path("forrst.toml"), text).unwrap();
        self.argument("--config").argument("forrst.toml")
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        for (name, _) in std::env::vars() {
            if name.starts_with("FORRST_") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command.arg("serve");
        if let Some(address) = &self.listen {
            command.args(["--listen", address]);
        }
        command
            .args(&self.arguments)
            .envs(self.variables.iter().cloned())
            .current_dir(self.folder.path());
        command
    }

    /// Starts it, and waits for its banner.
    pub fn start(&self) -> Running {
        let running = self.spawn();
        running.until_banner();
        running
    }

    /// Starts it with a standard error that is open but not read, and waits for its banner.
    pub fn start_with_unread_errors(&self) -> Running {
        let name = "forrst serve";
        let running = Running(Process::start_with_unread_errors(name, &mut self.command()));
        running.until_banner();
        running
    }

    /// Starts it, without waiting for its banner.
    pub fn spawn(&self) -> Running {
        Running(Process::start("forrst serve", &mut self.command()))
    }

    /// Starts it with a standard output that has no reader.
    pub fn spawn_unread(&self) -> Running {
        Running(Process::start_unread("forrst serve", &mut self.command()))
    }

    /// Runs it until it ends by itself. Returns its exit code, its output and its errors.
    pub fn run(&self) -> (Option<i32>, String, String) {
        let running = self.spawn();
        let status = running.wait();
        (status.code(), running.output(), running.errors())
    }

    /// Starts it as one of several servers on one store.
    pub fn node(self) -> Node {
        let running = self.start();
        Node {
            serve: self,
            running,
        }
    }
}

/// A running server. It is killed when this is dropped.
pub struct Running(Process);

impl Running {
    fn until_banner(&self) {
        until("the banner is there", || {
            assert!(!self.has_ended(), "it ended:\n{}", self.errors());
            self.output().contains("curl") && self.output().ends_with("\n\n")
        });
    }

    /// The text of a banner line after its label.
    pub fn banner(&self, label: &str) -> String {
        let output = self.output();
        let line = output
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(label));
        let line = line.unwrap_or_else(|| panic!("no `{label}` in\n{output}"));
        line.trim().to_owned()
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        let address = self.address();
        let port = address
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {address}"))
    }

    /// The URL for `FORRST_URL`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The address that it listens on, such as `127.0.0.1:40123`.
    pub fn address(&self) -> String {
        let url = self.banner("http ");
        let address = url
            .strip_prefix("http://")
            .and_then(|url| url.split('/').next());
        address
            .unwrap_or_else(|| panic!("no address in {url}"))
            .to_owned()
    }
}

impl Deref for Running {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

/// A server that can be started again on the same address.
pub struct Node {
    serve: Serve,
    running: Running,
}

impl Node {
    /// Kills it, if it still runs, and starts it again on its address.
    pub fn restart(&mut self) {
        let address = self.running.address();
        self.restart_on(address);
    }

    /// As [`restart`](Self::restart), on another address, where clients of the old one do not find it.
    pub fn restart_elsewhere(&mut self) {
        self.restart_on("127.0.0.1:0".to_owned());
    }

    fn restart_on(&mut self, address: String) {
        self.running.kill();
        self.serve.listen = Some(address);
        self.running = self.serve.start();
    }
}

impl Deref for Node {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}
