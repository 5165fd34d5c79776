//! Runs the binary as a process, and collects what it prints.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use forrst_testkit::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::commands::server::Server;

/// `forrst` with its arguments, to be run or started.
pub(crate) struct Forrst(Command);

impl Forrst {
    /// Without the URL of a server.
    pub(crate) fn alone(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forrst"));
        without_settings(&mut command)
            .args(arguments)
            .stdin(Stdio::null());
        Self(command)
    }

    pub(crate) fn new(server: &Server, arguments: &[&str]) -> Self {
        Self::alone(arguments).variable("FORRST_URL", server.url())
    }

    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn folder(mut self, path: &Path) -> Self {
        self.0.current_dir(path);
        self
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Ended {
        self.start().wait()
    }

    /// Runs it to its end, with this standard input.
    pub(crate) fn run_with_input(mut self, input: &str) -> Ended {
        self.0.stdin(Stdio::piped());
        let running = self.start();
        let stdin = running.child.lock().unwrap().stdin.take();
        stdin.unwrap().write_all(input.as_bytes()).unwrap();
        running.wait()
    }

    /// Runs it to its end, and parses what it prints as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        self.run().check(0).json()
    }

    /// Runs it to its end, with this standard output.
    pub(crate) fn run_into(mut self, output: impl Into<Stdio>) -> Ended {
        self.0.stdout(output.into());
        self.spawn().wait()
    }

    pub(crate) fn start(mut self) -> Running {
        self.0.stdout(Stdio::piped());
        self.spawn()
    }

    fn spawn(mut self) -> Running {
        let mut child = self.0.stderr(Stdio::piped()).spawn().unwrap();
        let output = match child.stdout.take() {
            Some(output) => Stream::collect(output),
            None => Stream::collect(std::io::empty()),
        };
        let errors = Stream::collect(child.stderr.take().unwrap());
        Running {
            child: Mutex::new(child),
            output,
            errors,
        }
    }
}

/// A running process. It is killed when this is dropped.
pub(crate) struct Running {
    child: Mutex<Child>,
    output: Stream,
    errors: Stream,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child.lock().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        self.output.text()
    }

    /// What it has printed to standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.errors.text()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end, and for all of its output.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        until("the process ends", || self.has_ended());
        let status = self.child.lock().unwrap().wait().unwrap();
        Ended {
            code: status.code(),
            signal: status.signal(),
            output: self.output.rest(),
            errors: self.errors.rest(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let child = child.unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Ended {
    /// Checks that its parent sees it ended by this signal.
    #[track_caller]
    pub(crate) fn check_signal(self, signal: Signal) -> Self {
        assert_eq!(self.signal, Some(signal.as_raw()), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn check(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(
            self.output.lines().count(),
            1,
            "one document on one line: {self:#?}"
        );
        serde_json::from_str(&self.output).unwrap()
    }

    /// Checks that all of these words are on standard error.
    #[track_caller]
    pub(crate) fn check_errors(&self, words: &[&str]) {
        for word in words {
            assert!(self.errors.contains(word), "`{word}` is not in {self:#?}");
        }
    }
}

/// What a process writes to a pipe, collected by a thread that ends with it.
struct Stream {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn collect(mut stream: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let collected = text.clone();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let read = String::from_utf8_lossy(&buffer[..count]);
                collected.lock().unwrap().push_str(&read);
            }
        });
        Self {
            text,
            reader: Some(reader),
        }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    fn rest(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            until("all output is read", || reader.is_finished());
        }
        self.text()
    }
}

/// Removes settings of the environment that the tests run in.
pub(crate) fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars() {
        let is_setting =
            ["RUST_LOG", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"].contains(&name.as_str());
        if is_setting || name.starts_with("FORRST_") {
            command.env_remove(name);
        }
    }
    command.env("COLUMNS", "100")
}
