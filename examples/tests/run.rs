//! Runs every example: it has to succeed in time, and its last line has to contain the expected text.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forrst_testkit::Serve;

const TIMEOUT: Duration = Duration::from_secs(120);

fn check(mut example: Command, expected: &str) {
    let (send, receive) = mpsc::channel();
    let name = format!("{example:?}");
    thread::spawn(move || send.send(example.output()));
    let output = receive.recv_timeout(TIMEOUT);
    let output = output.unwrap_or_else(|_| panic!("{name} does not exit"));
    let output = output.unwrap_or_else(|error| panic!("{name} cannot be run: {error}"));
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{output_text}\n{errors}");
    let last_line = output_text.lines().last().unwrap_or_default();
    assert!(last_line.contains(expected), "{name}:\n{output_text}");
}

#[test]
fn payments() {
    let example = Command::new(env!("CARGO_BIN_EXE_payments"));
    check(example, "three charges of 30, none lost, none too many");
}

#[test]
fn nightly_job() {
    let example = Command::new(env!("CARGO_BIN_EXE_nightly_job"));
    check(example, "the next night the lock is free again");
}

#[test]
fn mount_in_axum() {
    let example = Command::new(env!("CARGO_BIN_EXE_mount_in_axum"));
    check(example, "One port, one process");
}

#[test]
fn fenced_write() {
    let example = Command::new(env!("CARGO_BIN_EXE_fenced_write"));
    check(example, "The price is 400");
}

#[test]
fn transfer() {
    let example = Command::new(env!("CARGO_BIN_EXE_transfer"));
    check(
        example,
        "anna has 9500 and ben has 10500: no update was lost",
    );
}

#[test]
fn licences() {
    let example = Command::new(env!("CARGO_BIN_EXE_licences"));
    check(example, "Ten jobs are done, at most three at once");
}

#[test]
fn readers_and_writer() {
    let example = Command::new(env!("CARGO_BIN_EXE_readers_and_writer"));
    check(example, "The patient report reads what the writer wrote");
}

#[test]
fn audit_extension() {
    let example = Command::new(env!("CARGO_BIN_EXE_audit_extension"));
    check(example, "ACCOUNTS_NOT_EMPTY");
}

#[test]
fn from_rust() {
    let server = Serve::new(forrst(), &["--demo", "--store", "memory:"]).start();
    let mut example = Command::new(env!("CARGO_BIN_EXE_from_rust"));
    example.arg(format!("http://{}", server.address()));
    check(example, "exported with fence");
}

/// The README shows the code of the example that was run, without its module comment.
#[test]
fn from_rust_is_in_the_readme() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let (readme, example) = (read("../README.md"), read("from_rust.rs"));
    let section = readme
        .split("\n## ")
        .find(|part| part.starts_with("From Rust\n"));
    let section = section.expect("a section about it");
    let block = section.split("```rust\n").nth(1).expect("a block of Rust");
    let shown = block.split("```").next().expect("an end");
    let code = example.split_once("\n\n").expect("a comment, then code").1;
    assert_eq!(shown, code);
}

#[test]
fn curl() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("curl.sh");
    let mut example = Command::new("sh");
    example.arg(script).env("FORRST_BIN", forrst());
    example.env_remove("FORRST_URL");
    check(example, "Every answer was as expected");
}

#[test]
fn php() {
    let server = Serve::new(forrst(), &["--demo", "--store", "memory:"]).start();
    let mut example = Command::new("php");
    example
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("php/locks.php"))
        .arg(format!("http://{}", server.address()));
    check(example, "Every answer was as expected");
}

/// The `forrst` binary in the folder of the example binaries. It is built here, unless a run of the whole workspace has done so.
fn forrst() -> PathBuf {
    let example = Path::new(env!("CARGO_BIN_EXE_payments"));
    let folder = example.parent().expect("a binary is in a folder");
    let forrst = folder.join("forrst");
    if !forrst.exists() {
        build_forrst(folder);
    }
    assert!(forrst.exists(), "{} was not built", forrst.display());
    forrst
}

fn build_forrst(folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("a profile's folder is in another");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "-p", "forrst-cli", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(
        built.is_ok_and(|status| status.success()),
        "cargo build -p forrst-cli failed"
    );
}
