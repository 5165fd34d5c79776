//! The benchmark's side of a server process: starting it, sending it commands, ending it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use super::{Address, Command, ServerKind};

/// The prefix of the answer to a command that failed.
const ERROR_PREFIX: &str = "error: ";

pub(super) fn error_line(error: &str) -> String {
    ERROR_PREFIX.to_owned() + &error.replace('\n', " ")
}

/// A server process. It ends when this is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    pipes: Mutex<Pipes>,
    pub(crate) tcp: Address,
    pub(crate) unix: Address,
    /// Contains the socket and the embedded store.
    _folder: TempDir,
}

struct Pipes {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ServerProcess {
    pub(crate) fn floor(kind: ServerKind) -> Result<Self, String> {
        Self::start(kind, |_| Vec::new())
    }

    /// Our server on this store.
    pub(crate) fn forrst(store: &Store) -> Result<Self, String> {
        Self::start(ServerKind::Forrst, |folder| store.arguments(folder))
    }

    fn start(kind: ServerKind, arguments: impl Fn(&Path) -> Vec<String>) -> Result<Self, String> {
        let failed = |error| format!("cannot start a server: {error}");
        let folder = tempfile::tempdir().map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let socket = folder.path().join("socket");
        let name = clap::ValueEnum::to_possible_value(&kind).expect("no kind is skipped");
        let mut child = std::process::Command::new(program)
            .args(["serve", name.get_name(), "--unix"])
            .arg(&socket)
            .args(arguments(folder.path()))
            // The log is on, as by default, but its output is discarded.
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
            address.map_err(|error| format!("the server printed no address: {error}"))
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

    /// Sends a command, and returns the number in its answer.
    pub(crate) fn run(&self, command: Command) -> Result<u64, String> {
        let line = serde_json::to_string(&command).map_err(|error| error.to_string())?;
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writeln!(pipes.input, "{line}");
        written.map_err(|error| format!("a server process has exited: {error}"))?;
        let answer = pipes.read_line()?;
        if let Some(error) = answer.strip_prefix(ERROR_PREFIX) {
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
            Ok(0) => {
                Err("a server process has exited; FORRST_BENCH_LOG=1 shows its log".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // No shutdown is needed: its data is deleted with its folder.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The store of our server.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    Memory,
    /// In a temporary folder; `waits_for_disk` is the durability `full`.
    Embedded {
        waits_for_disk: bool,
    },
    Postgres {
        url: String,
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
            Self::Postgres { url } | Self::Redis { url } => vec![format!("--store={url}")],
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
