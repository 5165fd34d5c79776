//! Completions and manual pages of every command.

use crate::commands::forrst::Forrst;
use crate::commands::help::COMMANDS;

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Forrst::alone(&["completions", shell]).run().check(0).output;
        for name in COMMANDS.iter().copied().flatten() {
            assert!(script.contains(name), "{name} in the script for {shell}");
        }
        assert!(
            script.contains("--on-lost") || script.contains("on-lost"),
            "{shell}"
        );
        assert!(
            !script.contains("starter"),
            "{shell} offers a hidden command"
        );
    }
}

#[test]
fn the_script_for_bash_is_valid() {
    let script = Forrst::alone(&["completions", "bash"])
        .run()
        .check(0)
        .output;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forrst.bash");
    std::fs::write(&path, script).unwrap();
    let status = std::process::Command::new("bash")
        .arg("-n")
        .arg(&path)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn every_command_has_a_manual_page() {
    for command in COMMANDS
        .iter()
        .filter(|command| !matches!(command, ["help"]))
    {
        let page = Forrst::alone(&[&["man"], *command].concat())
            .run()
            .check(0)
            .output;
        let name = [&["forrst"], *command].concat().join("\\-");
        assert!(page.contains(".TH"), "{command:?}\n{page}");
        assert!(
            page.contains(&name.replace("force-release", "force\\-release")),
            "{name} in\n{page}"
        );
        assert!(
            page.contains("Exit codes:") || matches!(*command, ["lock" | "key" | "store"]),
            "{command:?}\n{page}"
        );
    }
}

#[test]
fn all_manual_pages_are_written_into_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    Forrst::alone(&["man", "--out", out.to_str().unwrap()])
        .run()
        .check(0);
    for command in COMMANDS
        .iter()
        .filter(|command| !matches!(command, ["help"]))
    {
        let name = [&["forrst"], *command].concat().join("-");
        let page = std::fs::read_to_string(out.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH NAME"), "{name}\n{page}");
    }
    let count = std::fs::read_dir(&out).unwrap().count();
    assert_eq!(count, COMMANDS.len() - 1, "hidden commands have none");
}
