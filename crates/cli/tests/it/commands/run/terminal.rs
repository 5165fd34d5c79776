//! Commands at a terminal, which behave as if they had been started without `forrst run`.

use forrst_testkit::until;
use rustix::process::{Pid, Signal, kill_process};

use super::process::is_stopped;
use crate::commands::server::Server;
use crate::commands::terminal::AtTerminal;

const FORRST: &str = env!("CARGO_BIN_EXE_forrst");

fn run(server: &Server, script: &str) -> AtTerminal {
    AtTerminal::start(
        &[
            "run", "--key", "k", "--ttl", "1h", "--", "bash", "-c", script,
        ],
        &server.url(),
    )
}

#[test]
fn a_command_reads_from_the_terminal() {
    let server = Server::start();
    let mut job = run(&server, "read -p 'name? ' name; echo \"hello $name\"");
    job.until_shown("name? ");
    job.types("world\n");
    job.until_shown("hello world");
    assert_eq!(job.wait(), Some(0), "{}", job.screen());
}

#[test]
fn a_command_is_interrupted_once() {
    let server = Server::start();
    let mut job = run(
        &server,
        "trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.02; done",
    );
    job.until_shown("ready");
    job.types("\x03");
    assert_eq!(job.wait(), Some(9), "{}", job.screen());
    job.until_shown("got it");
    assert_eq!(job.screen().matches("got it").count(), 1);
}

#[test]
fn a_command_is_suspended_and_continued() {
    let server = Server::start();
    let mut job = run(&server, "echo ready; read line; echo \"read $line\"");
    job.until_shown("ready");
    job.types("\x1a");
    until("forrst run stops", || is_stopped(job.pid()));
    kill_process(Pid::from_raw(job.pid()).unwrap(), Signal::CONT).unwrap();
    job.types("again\n");
    job.until_shown("read again");
    assert_eq!(job.wait(), Some(0), "{}", job.screen());
}

#[test]
fn the_terminal_is_taken_back() {
    let server = Server::start();
    let script =
        format!("{FORRST} run --key k -- true; read -p 'more? ' line; echo \"read $line\"");
    let mut shell = AtTerminal::start_program("bash", &["-c", &script], &server.url());
    shell.until_shown("more? ");
    shell.types("this\n");
    shell.until_shown("read this");
    assert_eq!(shell.wait(), Some(0), "{}", shell.screen());
}

/// As a program in a pipeline that asks for a password.
#[test]
fn a_command_in_a_pipeline_reads_from_the_terminal() {
    let server = Server::start();
    let script = format!(
        "echo data | {FORRST} run --key k --ttl 1h -- bash -c 'read piped; read -p \"name? \" name </dev/tty; echo \"$piped for $name\"'
        read -p 'more? ' line; echo \"read $line\""
    );
    let mut shell = AtTerminal::start_program("bash", &["-c", &script], &server.url());
    shell.until_shown("name? ");
    shell.types("world\n");
    shell.until_shown("data for world");
    shell.until_shown("more? ");
    shell.types("this\n");
    shell.until_shown("read this");
    assert_eq!(shell.wait(), Some(0), "{}", shell.screen());
}

/// Another program of the pipeline may ask there.
#[test]
fn a_command_in_a_pipeline_gets_the_terminal_only_when_it_reads_from_it() {
    let server = Server::start();
    let script = format!(
        "(read -p 'name? ' name </dev/tty; echo \"$name\") | {FORRST} run --key k --ttl 1h -- bash -c 'echo started; read piped; echo \"hello $piped\"'"
    );
    let mut shell = AtTerminal::start_program("bash", &["-c", &script], &server.url());
    shell.until_shown("name? ");
    shell.until_shown("started");
    shell.types("world\n");
    shell.until_shown("hello world");
    assert_eq!(shell.wait(), Some(0), "{}", shell.screen());
}

/// As a pager.
#[test]
fn a_pager_behind_the_command_reads_from_the_terminal() {
    let server = Server::start();
    let script = format!(
        "{FORRST} run --key k --ttl 1h -- bash -c 'echo started; echo more' | (read piped; read -p 'page? ' page </dev/tty; echo \"$piped, $page\")"
    );
    let mut shell = AtTerminal::start_program("bash", &["-c", &script], &server.url());
    shell.until_shown("page? ");
    shell.types("down\n");
    shell.until_shown("started, down");
    assert_eq!(shell.wait(), Some(0), "{}", shell.screen());
}
