//! Runs the shell commands of the README, and compares their output with what it shows.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::forrst::without_settings;
use crate::commands::server::Server;

const SECTION: &str = "## From the shell";

/// A command, and its output according to the README: the comments that follow it, in which `…` matches anything.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    prints: Vec<String>,
}

#[test]
fn the_commands_of_the_readme_print_what_it_shows() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let steps = steps(&readme);
    assert!(
        !steps.is_empty(),
        "`{SECTION}` has no commands in ```sh blocks"
    );
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_forrst"), folder.path().join("forrst")).unwrap();
    run(&steps, &server, folder.path());
}

/// Runs all of them in one shell, so that a command can use a variable of an earlier one.
fn run(steps: &[Step], server: &Server, folder: &Path) {
    const END: &str = "--- end of the command ---";
    let script: String = steps
        .iter()
        .map(|step| format!("{}\necho \"{END} $?\"\n", step.command))
        .collect();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    without_settings(&mut bash)
        .arg("-c")
        .arg(format!("exec 2>&1\n{script}"))
        .env("PATH", path)
        .env("FORRST_URL", server.url())
        .current_dir(folder)
        .stdin(Stdio::null());
    let output = bash.output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut rest = output.as_str();
    for step in steps {
        let (printed, after) = rest
            .split_once(END)
            .unwrap_or_else(|| panic!("{step:?} never ended:\n{output}"));
        let (code, after) = after.split_once('\n').unwrap_or((after, ""));
        assert_eq!(code.trim(), "0", "{step:#?}\n{printed}");
        check(step, printed);
        rest = after;
    }
}

#[track_caller]
fn check(step: &Step, printed: &str) {
    if step.prints.is_empty() {
        return;
    }
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), step.prints.len(), "{step:#?}\n{printed}");
    for (line, expected) in lines.iter().zip(&step.prints) {
        assert!(
            matches(line, expected),
            "the README has {expected:?}, not {line:?}"
        );
    }
}

/// Blanks between columns may differ.
fn matches(line: &str, expected: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (line, expected) = (words(line), words(expected));
    let mut parts = expected.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default().trim_end()) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part.trim()) else {
            return false;
        };
        rest = &rest[at + part.trim().len()..];
        is_open = part.trim().is_empty();
    }
    rest.is_empty() || is_open
}

fn steps(readme: &str) -> Vec<Step> {
    let section = readme.split_once(SECTION).map(|(_, rest)| rest);
    let section = section.unwrap_or_else(|| panic!("the README has no `{SECTION}`"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1);
    blocks
        .flat_map(|block| steps_of(block.split("```").next().unwrap_or_default()))
        .collect()
}

fn steps_of(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // A comment after an empty line, or before any command, is not output.
    let mut is_output = false;
    let mut is_unfinished = false;
    for line in block.lines() {
        match (line.strip_prefix('#'), steps.last_mut()) {
            (_, Some(step)) if is_unfinished => {
                step.command.push('\n');
                step.command.push_str(line);
            }
            (Some(comment), Some(step)) if is_output => {
                step.prints
                    .push(comment.strip_prefix(' ').unwrap_or(comment).to_owned());
                continue;
            }
            (Some(_), _) => continue,
            _ if line.trim().is_empty() => {
                is_output = false;
                continue;
            }
            _ => steps.push(Step {
                command: line.to_owned(),
                prints: Vec::new(),
            }),
        }
        is_unfinished = line.ends_with('\\');
        is_output = true;
    }
    steps
}

#[test]
fn shell_blocks_are_parsed() {
    let readme = "# x\n## From the shell\n\n```console\n$ no\n```\n```sh\n# what it is\na \\\n  b\n# out …\n\n# more\nc\n```\n## Next\n```sh\nno\n```\n";
    let step = |command: &str, prints: &[&str]| Step {
        command: command.to_owned(),
        prints: prints.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(
        steps(readme),
        [step("a \\\n  b", &["out …"]), step("c", &[])]
    );
    assert!(matches("lock:k   is held", "lock:k is held"));
    assert!(matches("  owner  1-2-3 x", "owner … x"));
    assert!(matches("owner 1-2-3", "owner …"));
    assert!(!matches("lock:k is free", "lock:k is held"));
    assert!(!matches("lock:k is held too", "lock:k is held"));
}
