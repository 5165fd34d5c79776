//! Runs every story: it has to end by itself, well, and with its last word.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forrst_testkit::Serve;

const PATIENCE: Duration = Duration::from_secs(120);

fn check(mut story: Command, last_word: &str) {
    let (send, receive) = mpsc::channel();
    let name = format!("{story:?}");
    thread::spawn(move || send.send(story.output()));
    let output = receive.recv_timeout(PATIENCE);
    let output = output.unwrap_or_else(|_| panic!("{name} does not end"));
    let output = output.unwrap_or_else(|error| panic!("{name} cannot be run: {error}"));
    let told = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}:\n{told}\n{complaints}");
    let last_line = told.lines().last().unwrap_or_default();
    assert!(last_line.contains(last_word), "{name}:\n{told}");
}

#[test]
fn payments() {
    let story = Command::new(env!("CARGO_BIN_EXE_payments"));
    check(story, "three charges of 30, none lost, none too many");
}

#[test]
fn nightly_job() {
    let story = Command::new(env!("CARGO_BIN_EXE_nightly_job"));
    check(story, "the next night the lock is free again");
}

#[test]
fn mount_in_axum() {
    let story = Command::new(env!("CARGO_BIN_EXE_mount_in_axum"));
    check(story, "One port, one process");
}

#[test]
fn fenced_write() {
    let story = Command::new(env!("CARGO_BIN_EXE_fenced_write"));
    check(story, "The price is 400");
}

#[test]
fn transfer() {
    let story = Command::new(env!("CARGO_BIN_EXE_transfer"));
    check(story, "anna has 9500 and ben has 10500: not a cent is lost");
}

#[test]
fn licences() {
    let story = Command::new(env!("CARGO_BIN_EXE_licences"));
    check(story, "Ten jobs are done, at most three at once");
}

#[test]
fn readers_and_writer() {
    let story = Command::new(env!("CARGO_BIN_EXE_readers_and_writer"));
    check(story, "The patient report reads what the writer wrote");
}

#[test]
fn audit_extension() {
    let story = Command::new(env!("CARGO_BIN_EXE_audit_extension"));
    check(story, "ACCOUNTS_NOT_EMPTY");
}

#[test]
fn from_rust() {
    let server = Serve::new(forrst(), &["--demo", "--store", "memory:"]).start();
    let mut story = Command::new(env!("CARGO_BIN_EXE_from_rust"));
    story.arg(format!("http://{}", server.address()));
    check(story, "exported with fence");
}

/// What the README shows is what was run: the story without its first comment.
#[test]
fn from_rust_is_in_the_readme() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let (readme, story) = (read("../README.md"), read("from_rust.rs"));
    let section = readme
        .split("\n## ")
        .find(|part| part.starts_with("From Rust\n"));
    let section = section.expect("a section about it");
    let block = section.split("```rust\n").nth(1).expect("a block of Rust");
    let shown = block.split("```").next().expect("an end");
    let code = story.split_once("\n\n").expect("a comment, then code").1;
    assert_eq!(shown, code);
}

#[test]
fn curl() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("curl.sh");
    let mut story = Command::new("sh");
    story.arg(script).env("FORRST_BIN", forrst());
    story.env_remove("FORRST_URL");
    check(story, "Every answer was as expected");
}

/// The `forrst` binary beside the stories' own. A run of the whole workspace has built it; one of this package has not.
fn forrst() -> PathBuf {
    let story = Path::new(env!("CARGO_BIN_EXE_payments"));
    let folder = story.parent().expect("a binary is in a folder");
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
