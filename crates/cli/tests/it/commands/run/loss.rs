//! Commands whose lock is lost, or is renewed just in time.

use std::io::Read;

use forrst_testkit::{PATIENCE, SharedRedis, until};
use rustix::process::{Pid, Signal, kill_process};

use super::job::{Job, PATIENT, STUBBORN, status, take_over};
use super::process::{is_alive, until_dead};
use crate::access::keys::make_key;
use crate::commands::forrst::Forrst;
use crate::commands::server::Server;

/// Checks that no process was alive when another client got the lock.
#[track_caller]
fn check_dead_before_the_next(job: &Job, server: &Server, processes: &[i32]) {
    let granted_at = take_over(server);
    for pid in processes {
        assert!(
            !is_alive(*pid),
            "{pid} lives while another client holds the lock"
        );
    }
    let last_beat = job.last_beat();
    assert!(
        last_beat < granted_at,
        "alive at {last_beat}, granted to another at {granted_at}"
    );
}

#[test]
fn a_command_survives_a_short_outage_of_the_server() {
    let mut server = Server::durable();
    let job = Job::start(&server, &["--ttl", "20s"], PATIENT);
    let child = job.pid("pid");
    server.kill();
    server.restart();
    let before = status(&server);
    assert_eq!(before["locked"], true, "the lease survives the server");
    until("it is renewed again", || {
        let now = status(&server);
        now["expires_at"].as_str() > before["expires_at"].as_str()
    });
    assert!(is_alive(child));
    assert_eq!(job.file("signals"), "", "it got no signal");
    job.create("stop");
    let ended = job.wait().check(3);
    assert_eq!(ended.errors, "");
    assert_eq!(status(&server)["locked"], false);
}

#[test]
fn a_long_outage_ends_the_command_before_its_lease() {
    let mut server = Server::durable();
    let job = Job::start(&server, &["--ttl", "4s"], STUBBORN);
    let child = job.pid("pid");
    // It cannot be renewed any more, and another client waits for it.
    server.restart_elsewhere();
    check_dead_before_the_next(&job, &server, &[child]);
    assert_eq!(
        job.file("signals"),
        "TERM\n",
        "it got one SIGTERM before SIGKILL"
    );
    job.wait()
        .check(76)
        .check_errors(&["lost", "renewed in time"]);
}

#[test]
fn child_processes_end_with_the_command() {
    let mut server = Server::durable();
    let script = "(trap '' TERM; echo $BASHPID > grandchild
            while :; do echo ${EPOCHREALTIME/[.,]/} >> beats; sleep 0.02; done) &
        echo $$ > pid; wait; while :; do sleep 1; done";
    let job = Job::start(&server, &["--ttl", "4s"], script);
    let processes = [job.pid("pid"), job.pid("grandchild")];
    server.restart_elsewhere();
    check_dead_before_the_next(&job, &server, &processes);
    job.wait().check(76);
}

/// `timeout` makes a process group of its own, `setsid` a session, and a nested `forrst run` several.
#[test]
fn processes_in_other_groups_and_sessions_end_with_the_command() {
    let mut server = Server::durable();
    let forrst = env!("CARGO_BIN_EXE_forrst");
    let script = format!(
        "export FORRST_URL={url}
        alive() {{ trap '' TERM; echo $BASHPID > $1
            while :; do echo ${{EPOCHREALTIME/[.,]/}} >> beats; sleep 0.02; done; }}
        export -f alive
        setsid bash -c 'alive detached' &
        timeout 1000 bash -c 'alive timed' &
        {forrst} run --key other --ttl 1h -- bash -c 'alive nested' &
        (setsid bash -c 'alive orphan' &)
        echo $$ > pid; wait",
        url = server.url()
    );
    let job = Job::start(&server, &["--ttl", "6s"], &script);
    let processes = ["pid", "detached", "timed", "nested", "orphan"].map(|name| job.pid(name));
    server.restart_elsewhere();
    check_dead_before_the_next(&job, &server, &processes);
    job.wait().check(76);
}

/// With a ttl that is too short to be watched: the next renewal notices it.
#[test]
fn a_force_release_ends_the_command_at_once() {
    let server = Server::start();
    let force = || {
        Forrst::new(&server, &["lock", "force-release", "k", "--yes"])
            .run()
            .check(0)
    };
    let gentle = Job::start(&server, &["--ttl", "3s"], PATIENT);
    gentle.pid("pid");
    force();
    let (ended, folder) = gentle.wait_and_keep();
    ended.check(76).check_errors(&["lost"]);
    let signals = std::fs::read_to_string(folder.path().join("signals")).unwrap();
    assert_eq!(signals, "TERM\n");

    let stubborn = Job::start(&server, &["--ttl", "3s", "--grace", "500ms"], STUBBORN);
    let child = stubborn.pid("pid");
    force();
    until_dead(child);
    stubborn.wait().check(76);
}

/// The lease is watched: its next renewal is in twenty minutes.
#[track_caller]
fn check_notices_a_force_release(server: &Server, forced_through: &Server) {
    let job = Job::start(server, &["--ttl", "1h"], PATIENT);
    job.pid("pid");
    Forrst::new(forced_through, &["lock", "force-release", "k", "--yes"])
        .run()
        .check(0);
    let (ended, folder) = job.wait_and_keep();
    ended.check(76).check_errors(&["lost", "by force"]);
    let signals = std::fs::read_to_string(folder.path().join("signals")).unwrap();
    assert_eq!(signals, "TERM\n");
}

#[test]
fn a_force_release_is_noticed_before_the_next_renewal() {
    for server in [Server::start(), Server::durable()] {
        check_notices_a_force_release(&server, &server);
    }
}

#[test]
fn a_force_release_through_another_node_is_noticed_before_the_next_renewal() {
    let redis = SharedRedis::join();
    let [one, other] = [(); 2].map(|()| Server::sharing(&redis));
    check_notices_a_force_release(&one, &other);
}

/// It may watch its own lease only.
#[test]
fn a_caller_that_may_only_call_notices_a_force_release() {
    let keys = ["call", "admin"].map(|role| make_key(role, &["--role", role]));
    let [(call, call_block), (admin, admin_block)] = keys;
    let server = Server::with_keys(&(call_block + &admin_block));
    let as_admin = |arguments: &[&str]| {
        let forrst = Forrst::new(&server, arguments);
        forrst.variable("FORRST_API_KEY", &admin).run()
    };
    let run = ["run", "--key", "k", "--ttl", "1h", "--", "sleep", "1000"];
    let running = Forrst::new(&server, &run)
        .variable("FORRST_API_KEY", call)
        .start();
    until("it has the lock", || {
        as_admin(&["lock", "status", "k", "--exit-code"]).code == Some(75)
    });
    as_admin(&["lock", "force-release", "k", "--yes"]).check(0);
    running.wait().check(76).check_errors(&["lost"]);
}

#[test]
fn on_lost_kill_sends_no_sigterm() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "3s", "--on-lost", "kill"], STUBBORN);
    let child = job.pid("pid");
    Forrst::new(&server, &["lock", "force-release", "k", "--yes"])
        .run()
        .check(0);
    until_dead(child);
    assert_eq!(job.file("signals"), "");
    job.wait().check(76);
}

#[test]
fn on_lost_ignore_lets_the_command_run_on() {
    let server = Server::start();
    let job = Job::start(&server, &["--ttl", "1s", "--on-lost", "ignore"], PATIENT);
    let child = job.pid("pid");
    Forrst::new(&server, &["lock", "force-release", "k", "--yes"])
        .run()
        .check(0);
    // Another client holds it for longer than the ttl.
    let take = ["lock", "acquire", "k", "--ttl", "2s", "--owner", "other"];
    Forrst::new(&server, &take).run().check(0);
    until("that lease has expired, too", || {
        status(&server)["locked"] == false
    });
    assert!(is_alive(child));
    assert_eq!(job.file("signals"), "");
    job.create("stop");
    job.wait().check(3).check_errors(&["warning", "lost"]);
}

/// A program that runs as another user, as by `sudo`, cannot be signalled by the user that started it.
#[test]
fn a_command_of_another_user_is_reported() {
    if !rustix::process::geteuid().is_root() {
        let skipped = "SKIPPED: only root can make a program that becomes another user";
        assert!(std::env::var_os("CI").is_none(), "{skipped}");
        eprintln!("{skipped}");
        return;
    }
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let become_root = folder.path().join("become-root");
    // `install` and `setpriv` are on every Linux with util-linux.
    let script = format!(
        "chmod 755 {folder} && install -m 4755 $(command -v setpriv) {program} &&
         install -m 755 {forrst} {folder}/forrst && install -d -m 777 {folder}/work",
        folder = folder.path().display(),
        program = become_root.display(),
        forrst = env!("CARGO_BIN_EXE_forrst"),
    );
    let made = std::process::Command::new("bash")
        .args(["-c", &script])
        .status();
    assert!(made.unwrap().success());
    let command = "echo $$ > pid; until [ -e stop ]; do sleep 0.02; done; exit 3";
    let mut running = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(folder.path().join("forrst"))
        .args(["run", "--key", "k", "--ttl", "1h", "--"])
        .arg(&become_root)
        .args(["--reuid", "0", "bash", "-c", command])
        .current_dir(folder.path().join("work"))
        .env("FORRST_URL", server.url())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = folder.path().join("work/pid");
    until("it has begun", || pid.exists());
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    let mut stderr = running.stderr.take().unwrap();
    let (sender, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stderr.read(&mut buffer) {
            let _ = sender.send(String::from_utf8_lossy(&buffer[..count]).into_owned());
        }
    });
    let said = said.recv_timeout(PATIENCE / 6);
    std::fs::write(folder.path().join("work/stop"), "").unwrap();
    running.wait().unwrap();
    let said = said.expect("something on stderr");
    assert!(said.contains("may not signal"), "{said}");
    assert!(said.contains("another user"), "{said}");
}
