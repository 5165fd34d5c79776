//! A pseudoterminal for commands that need one.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use forrst_testkit::until;
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A process with a terminal of its own, at which the test types. It is killed when this is dropped.
pub(crate) struct AtTerminal {
    process: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl AtTerminal {
    /// `setsid` gives the command the terminal as a shell does at login.
    pub(crate) fn start(arguments: &[&str], url: &str) -> Self {
        Self::start_program(env!("CARGO_BIN_EXE_forrst"), arguments, url)
    }

    pub(crate) fn start_program(program: &str, arguments: &[&str], url: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let open = || {
            let terminal = OpenOptions::new()
                .read(true)
                .write(true)
                .open(path.to_str().unwrap());
            Stdio::from(terminal.unwrap())
        };
        let process = Command::new("setsid")
            .args(["--ctty", "--wait", program])
            .args(arguments)
            .env("FORRST_URL", url)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reads, shown) = (keyboard.try_clone().unwrap(), screen.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reads.read(&mut buffer) {
                shown
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self {
            process,
            keyboard,
            screen,
        }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        until(&format!("`{text}` is shown"), || {
            self.screen().contains(text)
        });
    }

    /// The pid of the command itself: `setsid` has become the command.
    pub(crate) fn pid(&self) -> i32 {
        Pid::from_child(&self.process).as_raw_nonzero().get()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        until("it ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
