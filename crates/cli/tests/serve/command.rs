//! The binary in a folder of its own.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// So that a process which hangs is a failed test and not one that never ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// `forrst serve` with what it is told, and a folder to run in.
pub(crate) struct Serve {
    folder: TempDir,
    arguments: Vec<OsString>,
    variables: Vec<(String, String)>,
}

impl Serve {
    /// On a free port.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self::bare(&[&["--listen", "127.0.0.1:0"], arguments].concat())
    }

    /// On a free port, with locks in memory and functions to call.
    pub(crate) fn demo(arguments: &[&str]) -> Self {
        Self::new(&[&["--store", "memory:", "--demo"], arguments].concat())
    }

    /// With these arguments only.
    pub(crate) fn bare(arguments: &[&str]) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            arguments: arguments.iter().map(OsString::from).collect(),
            variables: Vec::new(),
        }
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file and names it with `--config`.
    pub(crate) fn config(mut self, text: &str) -> Self {
        std::fs::write(self.path("forrst.toml"), text).unwrap();
        self.arguments
            .extend(["--config".into(), "forrst.toml".into()]);
        self
    }

    pub(crate) fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forrst"));
        for (name, _) in std::env::vars() {
            if name.starts_with("FORRST_") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command
            .arg("serve")
            .args(&self.arguments)
            .envs(self.variables.iter().cloned())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts it, and waits for its banner.
    pub(crate) fn start(&self) -> Running {
        let running = self.spawn();
        until("the banner is there", || {
            assert!(!running.has_ended(), "it ended:\n{}", running.errors());
            running.output().contains("curl") && running.output().ends_with("\n\n")
        });
        running
    }

    pub(crate) fn spawn(&self) -> Running {
        let mut child = self.command().spawn().unwrap();
        let output = collect(child.stdout.take().unwrap());
        let errors = collect(child.stderr.take().unwrap());
        Running {
            child: Mutex::new(child),
            output,
            errors,
        }
    }

    /// Starts it with nobody to read its banner.
    pub(crate) fn spawn_unread(&self) -> Running {
        let mut child = self.command().spawn().unwrap();
        drop(child.stdout.take());
        let errors = collect(child.stderr.take().unwrap());
        Running {
            child: Mutex::new(child),
            output: Arc::default(),
            errors,
        }
    }

    /// Runs it to its end, which has to come by itself: its exit code, its output, its errors.
    pub(crate) fn run(&self) -> (Option<i32>, String, String) {
        let running = self.spawn();
        let status = running.wait();
        (status.code(), running.output(), running.errors())
    }
}

/// A server that runs. It is killed when this is dropped.
pub(crate) struct Running {
    child: Mutex<Child>,
    output: Arc<Mutex<String>>,
    errors: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// What a banner line says after its label.
    pub(crate) fn banner(&self, label: &str) -> String {
        let output = self.output();
        let line = output
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(label));
        let line = line.unwrap_or_else(|| panic!("no `{label}` in\n{output}"));
        line.trim().to_owned()
    }

    /// Where it listens, such as `127.0.0.1:40123`.
    pub(crate) fn address(&self) -> String {
        let url = self.banner("http ");
        let address = url
            .strip_prefix("http://")
            .and_then(|url| url.split('/').next());
        address
            .unwrap_or_else(|| panic!("no address in {url}"))
            .to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end, and for the last of what it said.
    pub(crate) fn wait(&self) -> ExitStatus {
        let mut ended = None;
        until("the process ends", || {
            ended = self.child.lock().unwrap().try_wait().unwrap();
            ended.is_some()
        });
        until("all it said is read", || {
            Arc::strong_count(&self.errors) == 1 && Arc::strong_count(&self.output) == 1
        });
        ended.expect("it has ended")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut child = self
            .child
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Collects what a stream says, in a thread that ends with it.
fn collect(mut stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let collected = text.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let read = String::from_utf8_lossy(&buffer[..count]);
            collected.lock().unwrap().push_str(&read);
        }
    });
    text
}

/// Waits for a condition; panics when it does not come true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "never came true: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A name as the server prints it.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}
