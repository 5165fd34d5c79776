//! Runs the installed Postgres: a server of a test's own, one that all tests share, or a primary with a standby.
//!
//! Debian keeps the programs in a folder for each version, which is not on the `PATH`. Postgres refuses to run as root, so there the
//! server runs as the user `postgres`, which the Debian package creates.

mod folder;
mod server;
mod shared;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

pub use server::{PostgresOptions, PostgresServer};
pub use shared::SharedPostgres;

/// The name of the superuser, who needs no password.
const USER: &str = "forrst";

/// A program of Postgres: of the newest version in `/usr/lib/postgresql`, unless `FORRST_TEST_POSTGRES` names another folder.
fn program(name: &str) -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(folder) = std::env::var_os("FORRST_TEST_POSTGRES") {
            return folder.into();
        }
        let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter();
        let versions = installed.flatten().flatten().map(|entry| entry.path());
        let newest = versions
            .filter(|path| path.join("bin/postgres").exists())
            .max_by_key(|path| {
                let version = path.file_name().and_then(|name| name.to_str());
                version.and_then(|version| version.parse::<u32>().ok())
            });
        let newest = newest
            .expect("Postgres is not installed: run `./test`, or `apt-get install postgresql`");
        newest.join("bin")
    });
    FOLDER.join(name)
}

/// The arguments before a command that run it as the user of the server.
fn as_server_user() -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    let arguments = [
        "setpriv",
        "--reuid=postgres",
        "--regid=postgres",
        "--init-groups",
    ];
    arguments.map(str::to_owned).into()
}

/// A program of Postgres, or another one, run as the user of the server.
fn server_command(program: PathBuf) -> Command {
    let mut arguments = as_server_user().into_iter();
    let mut command = match arguments.next() {
        Some(first) => Command::new(first),
        None => return Command::new(program),
    };
    command.args(arguments).arg(program);
    // The current folder of the test may be closed to that user.
    command.current_dir("/");
    command
}

/// Runs SQL as the superuser. The rows are lines, and their fields are separated by `|`.
fn sql(port: u16, database: &str, sql: &str) -> Result<String, String> {
    let mut command = Command::new(program("psql"));
    command.args([
        "-XAtq",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        "127.0.0.1",
        "-U",
        USER,
    ]);
    command.args(["-p", &port.to_string(), "-d", database, "-c", sql]);
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Runs a command to its end.
#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
