//! A command at a terminal, as if it had been started from there itself.

use rustix::process::{Pid, Signal, kill_process};

use super::process::is_stopped;
use crate::forrst::until;
use crate::server::Server;
use crate::terminal::AtTerminal;

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
fn it_reads_from_the_terminal() {
    let server = Server::start();
    let mut job = run(&server, "read -p 'name? ' name; echo \"hello $name\"");
    job.until_shown("name? ");
    job.types("world\n");
    job.until_shown("hello world");
    assert_eq!(job.wait(), Some(0), "{}", job.screen());
}

#[test]
fn it_is_interrupted_once() {
    let server = Server::start();
    let mut job = run(
        &server,
        "trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.02; done",
    );
    job.until_shown("ready");
    job.types("\x03");
    assert_eq!(job.wait(), Some(9), "{}", job.screen());
    assert_eq!(job.screen().matches("got it").count(), 1);
}

#[test]
fn it_is_suspended_and_brought_back() {
    let server = Server::start();
    let mut job = run(&server, "echo ready; read line; echo \"read $line\"");
    job.until_shown("ready");
    job.types("\x1a");
    until("the shell would see it stop", || is_stopped(job.pid()));
    kill_process(Pid::from_raw(job.pid()).unwrap(), Signal::CONT).unwrap();
    job.types("again\n");
    job.until_shown("read again");
    assert_eq!(job.wait(), Some(0), "{}", job.screen());
}

#[test]
fn the_terminal_is_given_back() {
    let server = Server::start();
    let script =
        format!("{FORRST} run --key k -- true; read -p 'more? ' line; echo \"read $line\"");
    let mut shell = AtTerminal::start_program("bash", &["-c", &script], &server.url());
    shell.until_shown("more? ");
    shell.types("this\n");
    shell.until_shown("read this");
    assert_eq!(shell.wait(), Some(0), "{}", shell.screen());
}
