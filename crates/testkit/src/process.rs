//! A process that ends with its test.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::until;

/// A child process whose output is collected. It is killed when dropped; if the test fails, its output is printed.
pub struct Process {
    name: String,
    child: Mutex<Child>,
    output: Arc<Mutex<String>>,
    errors: Arc<Mutex<String>>,
}

impl Process {
    /// Starts a process. The name is shown when the test fails.
    pub fn start(name: impl Into<String>, command: &mut Command) -> Self {
        Self::watch(name.into(), command, collect)
    }

    /// Starts a process whose standard output has no reader.
    pub fn start_unread(name: impl Into<String>, command: &mut Command) -> Self {
        Self::watch(name.into(), command, |_| Arc::default())
    }

    /// Starts a process whose standard error is open but not read, until [`read_errors`](Self::read_errors).
    pub fn start_with_unread_errors(name: impl Into<String>, command: &mut Command) -> Self {
        let name = name.into();
        let mut child = spawn(&name, command);
        let output = collect(child.stdout.take().expect("it is piped"));
        Self {
            name,
            child: Mutex::new(child),
            output,
            errors: Arc::default(),
        }
    }

    /// Reads the standard error of a process that was started without a reader.
    pub fn read_errors(&self) {
        let stream = self.child().stderr.take().expect("it is not read yet");
        collect_into(stream, self.errors.clone());
    }

    fn watch(
        name: String,
        command: &mut Command,
        read_output: impl FnOnce(std::process::ChildStdout) -> Arc<Mutex<String>>,
    ) -> Self {
        let mut child = spawn(&name, command);
        let output = read_output(child.stdout.take().expect("it is piped"));
        let errors = collect(child.stderr.take().expect("it is piped"));
        Self {
            name,
            child: Mutex::new(child),
            output,
            errors,
        }
    }

    /// What it has written to its standard output.
    pub fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// What it has written to its standard error.
    pub fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child()), signal).unwrap();
    }

    /// SIGSTOP: it hangs, and its connections stay open. Returns when all its threads have stopped: one of them takes the signal, and on
    /// a busy machine the others run until it does.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        until("all threads have stopped", || self.is_stopped());
    }

    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        threads.flatten().all(|thread| {
            let state = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            let state = state.rsplit(") ").next().unwrap_or_default();
            state.starts_with('T') || state.is_empty()
        })
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL. Returns when it has ended.
    pub fn kill(&self) {
        let mut child = self.child();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM. Returns when it has ended.
    pub fn terminate(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Waits until it has ended and all its output is read.
    pub fn wait(&self) -> ExitStatus {
        let mut ended = None;
        until("the process ends", || {
            ended = self.child().try_wait().unwrap();
            ended.is_some()
        });
        until("all its output is read", || {
            Arc::strong_count(&self.errors) == 1 && Arc::strong_count(&self.output) == 1
        });
        ended.expect("it has ended")
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
        drop(child);
        if thread::panicking() {
            eprintln!("--- {} ---\n{}{}", self.name, self.output(), self.errors());
        }
    }
}

fn spawn(name: &str, command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = command.spawn();
    started.unwrap_or_else(|error| panic!("{name} does not start: {error}"))
}

/// Collects the text of a stream, in a thread that ends with the stream.
fn collect(stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::default();
    collect_into(stream, Arc::clone(&text));
    text
}

fn collect_into(mut stream: impl Read + Send + 'static, collected: Arc<Mutex<String>>) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let read = String::from_utf8_lossy(&buffer[..count]);
            collected.lock().unwrap().push_str(&read);
        }
    });
}
