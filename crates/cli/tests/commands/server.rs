//! A real `forrst serve`, which can be killed and started again where it was.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use tempfile::TempDir;

use crate::forrst::{PATIENCE, without_settings};

const KEYS: &str = "keys.toml";

pub(crate) struct Server {
    folder: TempDir,
    store: &'static str,
    address: String,
    process: Option<Child>,
}

impl Server {
    /// With locks in memory.
    pub(crate) fn start() -> Self {
        Self::on("memory:")
    }

    /// With locks that survive it.
    pub(crate) fn durable() -> Self {
        Self::on("embedded:locks")
    }

    /// For those who have one of these keys.
    pub(crate) fn with_keys(keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(KEYS), keys).unwrap();
        Self::in_folder(folder, "memory:")
    }

    fn on(store: &'static str) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), store)
    }

    fn in_folder(folder: TempDir, store: &'static str) -> Self {
        let (process, address) = serve(folder.path(), store, "127.0.0.1:0");
        Self {
            folder,
            store,
            address,
            process: Some(process),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// SIGKILL. Returns when it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts it again on the same store, where those who know its old port do not find it.
    pub(crate) fn restart_elsewhere(&mut self) {
        self.kill();
        let (process, address) = serve(self.folder.path(), self.store, "127.0.0.1:0");
        self.process = Some(process);
        self.address = address;
    }

    /// Starts it again, on the same port and the same store.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let (process, _) = serve(self.folder.path(), self.store, &self.address);
        self.process = Some(process);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and waits for its banner, which says where it listens.
fn serve(folder: &Path, store: &str, listen: &str) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forrst"));
    without_settings(&mut command)
        .args(["serve", "--demo", "--store", store, "--listen", listen])
        .args(["--durability", "process"])
        .args(
            folder
                .join(KEYS)
                .exists()
                .then_some(["--auth-file", KEYS])
                .into_iter()
                .flatten(),
        )
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut banner = BufReader::new(process.stdout.take().unwrap());
    let (news, address) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        while banner.read_line(&mut line).is_ok_and(|count| count > 0) {
            if let Some(rest) = line.split("http://").nth(1) {
                let address = rest.split('/').next().unwrap_or_default();
                let _ = news.send(address.to_owned());
                break;
            }
            line.clear();
        }
        // A banner that nobody reads to its end must not stop the server.
        let _ = banner.read_to_string(&mut line);
    });
    let address = address.recv_timeout(PATIENCE);
    (process, address.expect("the server says where it listens"))
}
