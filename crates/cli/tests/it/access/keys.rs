//! API keys that `forrst key new` makes, and servers that require them.

use std::process::Command;

use forrst_testkit::{Running, Serve};

pub(crate) const FORRST: &str = env!("CARGO_BIN_EXE_forrst");

/// Runs `forrst key new`: its exit code, output and errors.
pub(crate) fn key_new(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(FORRST);
    let output = command.args(["key", "new"]).args(arguments).output();
    let output = output.expect("the binary to run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A new key and its block for the keys file.
pub(crate) fn make_key(name: &str, arguments: &[&str]) -> (String, String) {
    let (code, output, errors) = key_new(&[&["--name", name], arguments].concat());
    assert_eq!(code, Some(0), "{errors}");
    let (key, block) = output.split_once("\n\n").expect("a key and a block");
    (key.to_owned(), block.to_owned())
}

/// A server that requires API keys, and the keys.
pub(crate) struct Guarded {
    pub(crate) serve: Serve,
    pub(crate) running: Running,
    pub(crate) keys: Vec<String>,
}

impl Guarded {
    /// One key for each name, made with these arguments.
    pub(crate) fn start(keys: &[(&str, &[&str])]) -> Self {
        Self::with(&[], keys)
    }

    pub(crate) fn with(arguments: &[&str], keys: &[(&str, &[&str])]) -> Self {
        let own = &["--demo", "--store", "memory:", "--auth-file", "keys.toml"];
        let serve = Serve::new(FORRST, &[&own[..], arguments].concat());
        let made = keys
            .iter()
            .map(|(name, arguments)| make_key(name, arguments));
        let (keys, blocks): (Vec<String>, Vec<String>) = made.unzip();
        std::fs::write(serve.path("keys.toml"), blocks.concat()).unwrap();
        let running = serve.start();
        Self {
            serve,
            running,
            keys,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.running.address()
    }
}

#[test]
fn a_key_is_printed_once_and_its_block_has_only_the_hash() {
    let (code, output, _) = key_new(&[
        "--name",
        "billing",
        "--role",
        "call",
        "--role",
        "observe",
        "--functions",
        "billing.*",
        "--locks",
        "lock:billing:*",
    ]);
    assert_eq!(code, Some(0));
    let (key, block) = output.split_once("\n\n").unwrap();
    assert!(key.starts_with("forrst_") && key.len() == 71, "{key}");
    assert!(!block.contains(key), "{block}");
    for line in [
        "[[keys]]",
        "name = \"billing\"",
        "hash = \"sha256:",
        "roles = [\"call\", \"observe\"]",
        "functions = [\"billing.*\"]",
        "locks = [\"lock:billing:*\"]",
    ] {
        assert!(block.contains(line), "{line} is not in\n{block}");
    }
    let (other, _) = make_key("billing", &["--role", "call"]);
    assert_ne!(other, key);
}

#[test]
fn a_key_with_invalid_arguments_is_not_made() {
    for (arguments, code, says) in [
        (&["--role", "call"][..], 2, "--name"),
        (&["--name", "a"], 2, "--role"),
        (&["--name", "a", "--role", "root"], 2, "root"),
        (&["--name", "", "--role", "call"], 1, "name"),
        (&["--name", "a\nb", "--role", "call"], 1, "name"),
        (
            &["--name", "a", "--role", "call", "--locks", "billing"],
            1,
            "lock:",
        ),
    ] {
        let (actual, output, errors) = key_new(arguments);
        assert_eq!(actual, Some(code), "{arguments:?} {errors}");
        assert!(errors.contains(says), "{errors}");
        assert!(output.is_empty(), "{output}");
    }
}
