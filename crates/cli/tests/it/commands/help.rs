//! The `--help` of every command, and wrong usage.

use crate::commands::forrst::Forrst;
use crate::commands::shown;

/// All commands that are not hidden.
pub(crate) const COMMANDS: [&[&str]; 25] = [
    &[],
    &["serve"],
    &["call"],
    &["lock"],
    &["lock", "status"],
    &["lock", "list"],
    &["lock", "waiters"],
    &["lock", "watch"],
    &["lock", "acquire"],
    &["lock", "extend"],
    &["lock", "release"],
    &["lock", "withdraw"],
    &["lock", "force-release"],
    &["run"],
    &["bench"],
    &["conformance"],
    &["conformance", "stub"],
    &["key"],
    &["key", "new"],
    &["store"],
    &["store", "check"],
    &["store", "migrate"],
    &["completions"],
    &["man"],
    &["help"],
];

/// The options of `serve` have tests of their own, and `help` is from clap.
#[test]
fn the_help_of_every_command_is_as_in_its_snapshot() {
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
        if matches!(command, ["lock" | "key" | "store" | "help"]) {
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
fn the_hidden_commands_of_run_are_not_in_the_help() {
    let help = Forrst::alone(&["--help"]).run().check(0).output;
    assert!(
        !help.contains("guard") && !help.contains("starter"),
        "{help}"
    );
}

/// Every user of the machine could read it.
#[test]
fn no_flag_takes_a_key() {
    for command in COMMANDS {
        let help = Forrst::alone(&[command, &["--help"]].concat()).run().output;
        assert!(!help.contains("--api-key"), "{help}");
    }
}

#[test]
fn wrong_usage_has_exit_code_2() {
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

/// The output of this test is not a terminal.
#[test]
fn there_are_no_colours_without_a_terminal() {
    let ended = Forrst::alone(&["lock", "status", "k", "--url", "http://127.0.0.1:1"]).run();
    ended.check_errors(&["error: "]);
    assert!(!ended.errors.contains('\x1b'), "{ended:#?}");
}
