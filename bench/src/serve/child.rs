//! A served process, as the benchmark sees it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use super::{Address, Command, Kind};

/// What the answer to a command begins with that could not be obeyed.
const REFUSAL: &str = "error: ";

pub(super) fn refusal(error: &str) -> String {
    REFUSAL.to_owned() + &error.replace('\n', " ")
}

/// A server of ours. It ends when this is dropped.
pub(crate) struct Served {
    child: Child,
    pipes: Mutex<Pipes>,
    pub(crate) tcp: Address,
    pub(crate) unix: Address,
    /// It has the socket, and the embedded store.
    _folder: TempDir,
}

struct Pipes {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Served {
    pub(crate) fn floor(kind: Kind) -> Result<Self, String> {
        Self::start(kind, |_| Vec::new())
    }

    /// Our server on this store.
    pub(crate) fn forrst(store: &Store) -> Result<Self, String> {
        Self::start(Kind::Forrst, |folder| store.arguments(folder))
    }

    fn start(kind: Kind, arguments: impl Fn(&Path) -> Vec<String>) -> Result<Self, String> {
        let failed = |error| format!("cannot start a server: {error}");
        let folder = tempfile::tempdir().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let socket = folder.path().join("socket");
        let name = clap::ValueEnum::to_possible_value(&kind).expect("no kind is skipped");
        let mut child = std::process::Command::new(program)
            .args(["serve", name.get_name(), "--unix"])
            .arg(&socket)
            .args(arguments(folder.path()))
            // The log is on, as it is by default, and goes nowhere.
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if std::env::var_os("FORRST_BENCH_LOG").is_some() {
                Stdio::inherit()
            } else {
                Stdio::null()
            })
            .spawn()
            .map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut pipes = Pipes {
            input: input.expect("it is piped"),
            output: BufReader::new(output.expect("it is piped")),
        };
        let address = pipes.read_line().and_then(|address| {
            let address = address.parse();
            address.map_err(|error| format!("no address: {error}"))
        });
        if address.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(Self {
            child,
            pipes: Mutex::new(pipes),
            tcp: Address::Tcp(address?),
            unix: Address::Unix(socket),
            _folder: folder,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and returns the number it is answered with.
    pub(crate) fn ask(&self, command: Command) -> Result<u64, String> {
        let line = serde_json::to_string(&command).map_err(|error| error.to_string())?;
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writeln!(pipes.input, "{line}");
        written.map_err(|error| format!("a server has ended: {error}"))?;
        let answer = pipes.read_line()?;
        if let Some(error) = answer.strip_prefix(REFUSAL) {
            return Err(error.to_owned());
        }
        let number = answer.parse();
        number.map_err(|error| format!("{command:?} was answered with {answer:?}: {error}"))
    }
}

impl Pipes {
    fn read_line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line.trim().to_owned()),
            Ok(0) => Err("a server has ended; FORRST_BENCH_LOG=1 shows what it says".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has nothing to finish: what it keeps is thrown away with its folder.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where our server keeps its locks.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Memory,
    /// In a folder of its own; whether it waits for the disk.
    Embedded {
        waits_for_disk: bool,
    },
    Redis {
        url: String,
    },
}

impl Store {
    fn arguments(&self, folder: &Path) -> Vec<String> {
        let mut arguments = match self {
            Self::Memory => vec!["--store=memory:".to_owned()],
            Self::Embedded { .. } => {
                vec![format!(
                    "--store=embedded:{}",
                    folder.join("locks").display()
                )]
            }
            Self::Redis { url } => vec![format!("--store={url}")],
        };
        if matches!(
            self,
            Self::Embedded {
                waits_for_disk: false
            }
        ) {
            arguments.push("--process-durability".to_owned());
        }
        arguments
    }
}
