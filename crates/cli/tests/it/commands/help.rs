//! What `--help` says, of every command.

use crate::commands::forrst::Forrst;
use crate::commands::shown;

/// All commands that people see.
pub(crate) const COMMANDS: [&[&str]; 20] = [
    &[],
    &["serve"],
    &["call"],
    &["lock"],
    &["lock", "status"],
    &["lock", "list"],
    &["lock", "waiters"],
    &["lock", "acquire"],
    &["lock", "extend"],
    &["lock", "release"],
    &["lock", "withdraw"],
    &["lock", "force-release"],
    &["run"],
    &["bench"],
    &["conformance"],
    &["key"],
    &["key", "new"],
    &["completions"],
    &["man"],
    &["help"],
];

/// `serve` has snapshots of its own making, and `help` is clap's.
#[test]
fn every_command_explains_itself() {
    for command in COMMANDS {
        if matches!(command, ["serve" | "help"]) {
            continue;
        }
        let help = Forrst::alone(&[command, &["--help"]].concat())
            .run()
            .check(0)
            .output;
        shown::check(
            &["help", &command.join(" ")]
                .join(" ")
                .trim()
                .replace(' ', "-"),
            &help,
        );
    }
}

#[test]
fn every_command_has_an_example_and_its_exit_codes() {
    for command in COMMANDS {
        if matches!(command, ["lock" | "key" | "help"]) {
            continue;
        }
        let help = Forrst::alone(&[command, &["--help"]].concat())
            .run()
            .check(0)
            .output;
        assert!(help.contains("Exit codes:"), "{command:?}\n{help}");
        assert!(help.contains("  forrst "), "{command:?}\n{help}");
    }
}

#[test]
fn what_run_is_made_of_is_nobodys_business() {
    let help = Forrst::alone(&["--help"]).run().check(0).output;
    assert!(
        !help.contains("guard") && !help.contains("starter"),
        "{help}"
    );
}

/// Nor does an API key have a flag, which everybody on the machine could read.
#[test]
fn no_flag_takes_a_key() {
    for command in COMMANDS {
        let help = Forrst::alone(&[command, &["--help"]].concat()).run().output;
        assert!(!help.contains("--api-key"), "{help}");
    }
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &["call"][..],
        &["lock"],
        &["lock", "release", "k"],
        &["lock", "list", "--interval", "1s"],
        &["call", "demo.echo", "--ttl", "30s"],
        &["call", "demo.echo", "hello"],
        &["call", "demo.echo", "{"],
        &["call", "not a name"],
        &["run", "--key", "k"],
        &["run", "--", "true"],
        &["run", "--key", "k", "--ttl", "soon", "--", "true"],
        &["run", "--key", "k", "--ttl", "100ms", "--", "true"],
        &[
            "run", "--key", "k", "--ttl", "10s", "--grace", "6s", "--", "true",
        ],
        &["run", "--key", "k", "--on-lost", "weep", "--", "true"],
        &["bench", "--hot", "2"],
        &["bench", "--rate", "0"],
        &["bench", "--rate", "NaN"],
        &["bench", "--connections", "0"],
        &["bench", "--connections", "100000000000"],
        &["bench", "--duration", "500000000000y"],
        &["bench", "--keys", "18446744073709551615"],
        &["bench", "--keys", "100000000000"],
        &["bench", "--ttl", "5s", "--block", "5s"],
        &["completions", "cmd"],
        &["man", "nothing"],
        &["lock", "status", "k", "--url", "nowhere"],
    ] {
        let ended = Forrst::alone(arguments).run();
        assert_eq!(ended.code, Some(2), "{arguments:?} {ended:#?}");
        assert_eq!(ended.output, "", "{arguments:?}");
        assert!(!ended.errors.is_empty(), "{arguments:?}");
    }
}

/// Colours are for terminals; here is none.
#[test]
fn no_colours_where_nobody_sees_them() {
    let ended = Forrst::alone(&["lock", "status", "k", "--url", "http://127.0.0.1:1"]).run();
    ended.complains(&["error: "]);
    assert!(!ended.errors.contains('\x1b'), "{ended:#?}");
}
