//! Servers that do not answer.

use forrst_testkit::{Proxy, Traffic, Way, until};
use rustix::process::Signal;

use super::job::{Job, PATIENT, status};
use super::process::until_dead;
use crate::commands::server::Server;

/// The lock is granted, but the process gets SIGTERM before the answer arrives.
#[test]
fn a_signal_while_the_grant_is_on_its_way_releases_the_lock() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    link.swallow(Way::ToClient, Traffic::All);
    let job = Job::start_at(&link.http_url(), &["--ttl", "10m"], "echo started > pid");
    until("it is granted", || status(&server)["locked"] == true);
    link.pass();
    job.signal(Signal::TERM);
    let (ended, folder) = job.wait_and_keep();
    ended.check_signal(Signal::TERM);
    assert!(!folder.path().join("pid").exists());
    assert_eq!(status(&server)["locked"], false);
}

/// The command has ended, so the release may be interrupted.
#[test]
fn a_release_without_an_answer_can_be_interrupted() {
    let server = Server::start();
    let link = Proxy::start(server.port());
    let job = Job::start_at(&link.http_url(), &["--ttl", "1h"], PATIENT);
    let child = job.pid("pid");
    link.swallow(Way::ToClient, Traffic::All);
    job.create("stop");
    until_dead(child);
    until("the release has arrived", || {
        status(&server)["locked"] == false
    });
    job.signal(Signal::INT);
    job.wait()
        .check(3)
        .check_errors(&["warning", "perhaps not released"]);
}
