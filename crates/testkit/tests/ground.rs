//! The ground itself: what it says it does to Redis and to a link is done.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forrst_testkit::{
    Proxy, RedisCluster, RedisOptions, RedisReplicas, RedisServer, SharedRedis, Traffic, Way, until,
};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_server_that_is_killed_has_kept_what_it_said_and_a_forgetful_one_has_not() {
    for (options, kept) in [
        (RedisOptions::default().password("secret"), "1"),
        (RedisOptions::default().forgetful(), ""),
    ] {
        let mut server = options.start();
        let port = server.port();
        assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
        server.restart();
        assert_eq!(server.port(), port);
        assert_eq!(server.cli(&["GET", "a"]), kept);
    }
}

#[test]
fn a_shared_server_ends_with_the_last_that_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    let answers = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
    for _ in 0..3 {
        let first = SharedRedis::join_in(folder.path());
        let second = SharedRedis::join_in(folder.path());
        assert_eq!(first.url(), second.url());
        assert_ne!(first.prefix(), second.prefix());
        let port = first.port();
        drop(first);
        assert!(answers(port));
        drop(second);
        until("it has ended", || !answers(port));
    }
}

#[test]
fn a_shared_server_that_was_killed_is_started_anew() {
    let folder = tempfile::tempdir().unwrap();
    let first = SharedRedis::join_in(folder.path());
    assert!(first.ask(&["SHUTDOWN", "NOSAVE"]).is_err());
    until("it has ended", || first.ask(&["PING"]).is_err());
    let second = SharedRedis::join_in(folder.path());
    assert_eq!(second.ask(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_shared_server_does_not_outlive_what_guards_it() {
    let folder = tempfile::tempdir().unwrap();
    let shared = SharedRedis::join_in(folder.path());
    let info = shared.ask(&["INFO", "server"]).unwrap();
    let server = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.unwrap())).unwrap();
    let guard = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let guard = Pid::from_raw(guard.unwrap().trim().parse().unwrap()).unwrap();
    kill_process(guard, Signal::KILL).unwrap();
    until("it has ended", || shared.ask(&["PING"]).is_err());
}

#[test]
fn a_cluster_serves_every_key_and_replicas_take_over() {
    let mut cluster = RedisCluster::with_replicas();
    assert_eq!(cluster.servers().count(), 6);
    cluster.primary(0).kill();
    cluster.until_failed_over(0);
}

#[test]
fn sentinels_put_the_replica_in_its_place() {
    let mut set = RedisReplicas::start(1, 3);
    set.primary().cli(&["SET", "a", "1"]);
    assert_eq!(set.primary().cli(&["WAIT", "1", "5000"]), "1");
    set.primary().kill();
    let new = set.until_failed_over();
    until("it has what the old one had", || {
        new.ask(&["GET", "a"]).is_ok_and(|value| value == "1")
    });
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let address = proxy.url();
        let address = address.strip_prefix("redis://").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_millis(500));
        stream.set_read_timeout(patience).unwrap();
        Self(stream)
    }

    /// What the answer begins with; nothing when the connection is closed or silent.
    fn ask(&mut self, command: &str) -> String {
        let mut answer = [0; 64];
        let asked = self.0.write_all(format!("{command}\r\n").as_bytes());
        let count = asked.and_then(|()| self.0.read(&mut answer)).unwrap_or(0);
        String::from_utf8_lossy(&answer[..count]).into_owned()
    }
}

#[test]
fn a_link_can_be_broken_in_every_way_and_mended() {
    const PONG: &str = "+PONG\r\n";
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("PING"), PONG);

    let late = Duration::from_millis(200);
    proxy.delay(Way::ToClient, late);
    let since = Instant::now();
    assert_eq!(client.ask("PING"), PONG);
    assert!(since.elapsed() >= late);
    proxy.heal();
    assert_eq!(client.ask("PING"), PONG);

    for way in [Way::ToServer, Way::ToClient] {
        proxy.swallow(way, Traffic::All);
        assert_eq!(client.ask("SET before 1"), "");
        assert!(proxy.lost() > 0);
        let has_arrived = server.cli(&["GETDEL", "before"]) == "1";
        assert_eq!(has_arrived, way == Way::ToClient);
        proxy.heal();
        client = Client::connect(&proxy);
        assert_eq!(client.ask("PING"), PONG);
    }

    proxy.cut(Traffic::All);
    assert_eq!(client.ask("PING"), "");
    proxy.refuse(Traffic::All);
    assert_eq!(Client::connect(&proxy).ask("PING"), "");
    proxy.heal();
    assert_eq!(Client::connect(&proxy).ask("PING"), PONG);
}

#[test]
fn subscriptions_can_be_broken_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut other = Client::connect(&proxy);
    assert_ne!(other.ask("PING"), "");
    let mut subscriber = Client::connect(&proxy);
    assert_ne!(subscriber.ask("SUBSCRIBE news"), "");
    proxy.swallow(Way::ToClient, Traffic::Subscriptions);
    assert_eq!(server.cli(&["PUBLISH", "news", "1"]), "1");
    assert_eq!(subscriber.ask("PING"), "");
    assert_ne!(other.ask("PING"), "");
    proxy.heal();

    let mut subscriber = Client::connect(&proxy);
    assert_ne!(subscriber.ask("SUBSCRIBE news"), "");
    proxy.refuse(Traffic::Subscriptions);
    assert_eq!(subscriber.ask("PING"), "");
    assert_eq!(Client::connect(&proxy).ask("SUBSCRIBE news"), "");
    assert_ne!(other.ask("PING"), "");
    until("nobody is subscribed", || {
        server.cli(&["PUBLISH", "news", "1"]) == "0"
    });
}
