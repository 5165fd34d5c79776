//! The fixtures themselves: servers and the proxy do what their methods promise.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forrst_testkit::{
    PostgresServer, Proxy, RedisCluster, RedisOptions, RedisReplicas, RedisServer, SharedPostgres,
    SharedRedis, Traffic, Way, until,
};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_server_that_is_killed_keeps_what_it_acknowledged_and_a_forgetful_one_does_not() {
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
fn a_shared_server_ends_with_its_last_user() {
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
fn a_shared_server_that_was_stopped_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = SharedRedis::join_in(folder.path());
    assert!(first.ask(&["SHUTDOWN", "NOSAVE"]).is_err());
    until("it has ended", || first.ask(&["PING"]).is_err());
    let second = SharedRedis::join_in(folder.path());
    assert_eq!(second.ask(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_shared_server_ends_when_the_shell_that_guards_it_is_killed() {
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
fn sentinels_promote_the_replica() {
    let mut set = RedisReplicas::start(1, 3);
    set.primary().cli(&["SET", "a", "1"]);
    until_replicated(&set);
    set.primary().kill();
    let new = set.until_failed_over();
    until("it has what the old one had", || {
        new.ask(&["GET", "a"]).is_ok_and(|value| value == "1")
    });
}

/// Seconds since 1970, by the clock of a server.
fn time_of(server: &RedisServer) -> f64 {
    let time = server.cli(&["TIME"]);
    time.lines().next().unwrap().parse().unwrap()
}

/// How far the clock of a server is ahead of that of this machine.
fn ahead(server: &RedisServer) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    time_of(server) - now.as_secs_f64()
}

const MINUTES: Duration = Duration::from_secs(300);

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    // A busy machine, and whole seconds.
    assert!((found - expected).abs() < 30.0, "{found}, not {expected}");
}

#[test]
fn a_clock_can_be_ahead_or_behind_and_the_server_works() {
    let with = RedisOptions::default;
    for (options, expected) in [
        (with().clock_ahead(MINUTES), 300.0),
        (with().clock_behind(MINUTES), -300.0),
        (with(), 0.0),
    ] {
        let mut server = options.start();
        assert_close(ahead(&server), expected);
        let in_script = server.cli(&["EVAL", "return redis.call('TIME')[1]", "0"]);
        assert_close(in_script.parse::<f64>().unwrap() - time_of(&server), 0.0);
        server.cli(&["SET", "kept", "1"]);
        server.cli(&["SET", "expires", "1", "PX", "50"]);
        until("a key expires after its time", || {
            server.cli(&["EXISTS", "expires"]) == "0"
        });
        server.restart();
        assert_close(ahead(&server), expected);
        assert_eq!(server.cli(&["GET", "kept"]), "1");
    }
}

#[test]
fn a_server_with_a_clock_of_its_own_leaves_no_shared_memory_behind() {
    let server = RedisOptions::default().clock_ahead(MINUTES).start();
    let info = server.cli(&["INFO", "server"]);
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("process_id:"));
    let id = id.unwrap().trim();
    drop(server);
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let mut names = left.map(|entry| entry.file_name().into_string().unwrap());
    let suffix = format!("_{id}");
    assert!(!names.any(|name| name.contains("faketime") && name.ends_with(&suffix)));
}

/// `WAIT` cannot be used: it is about the writes of its own connection, and each command here has another one.
fn until_replicated(set: &RedisReplicas) {
    until("the replicas have what was set", || {
        let mut replicas = set.replicas().iter();
        replicas.all(|replica| replica.ask(&["GET", "a"]).is_ok_and(|value| value == "1"))
    });
}

#[test]
fn a_replica_with_a_clock_that_differs_takes_over() {
    let replica = RedisOptions::default().clock_behind(MINUTES);
    let mut set = RedisReplicas::start_with(RedisOptions::default(), vec![replica], 1);
    set.primary().cli(&["SET", "a", "1"]);
    until_replicated(&set);
    assert_close(ahead(set.primary()), 0.0);
    set.primary().kill();
    let new = set.until_failed_over();
    until("it has what the old one had", || {
        new.ask(&["GET", "a"]).is_ok_and(|value| value == "1")
    });
    assert_close(ahead(new), -300.0);
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

    /// The beginning of the answer; empty if the connection is closed or silent.
    fn ask(&mut self, command: &str) -> String {
        let mut answer = [0; 64];
        let asked = self.0.write_all(format!("{command}\r\n").as_bytes());
        let count = asked.and_then(|()| self.0.read(&mut answer)).unwrap_or(0);
        String::from_utf8_lossy(&answer[..count]).into_owned()
    }
}

#[test]
fn a_connection_can_be_broken_in_every_way_and_repaired() {
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

impl Client {
    fn send(&mut self, commands: &str) {
        self.0.write_all(commands.as_bytes()).unwrap();
    }

    /// Whether nothing but the end of the connection is received.
    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

#[test]
fn requests_are_delivered_after_their_client_has_gone() {
    type Leave = fn(&Proxy, Client);
    let ways_to_leave: [(&str, Leave); 3] = [
        ("disconnect", |_, client| drop(client)),
        ("cut", |proxy, mut client| {
            proxy.cut(Traffic::All);
            assert!(client.is_closed());
        }),
        ("heal", |proxy, mut client| {
            proxy.heal();
            assert!(client.is_closed());
        }),
    ];
    let server = RedisServer::start();
    for (name, leave) in ways_to_leave {
        let proxy = Proxy::start(server.port());
        let mut client = Client::connect(&proxy);
        assert_eq!(client.ask("PING"), "+PONG\r\n");
        proxy.hold_requests();
        // Longer than what Redis reads at once.
        let part = "x".repeat(1_000);
        let commands = format!("APPEND {name} {part}\r\n").repeat(100);
        client.send(&commands);
        until("all is held back", || proxy.held() == commands.len());
        leave(&proxy, client);

        // Other clients are not affected.
        proxy.pass();
        let mut other = Client::connect(&proxy);
        assert_eq!(other.ask(&format!("EXISTS {name}")), ":0\r\n");
        assert_eq!(proxy.held(), commands.len());

        assert_eq!(proxy.deliver_requests(), commands.len());
        assert_eq!(proxy.held(), 0);
        until("the server has received it", || {
            server.cli(&["STRLEN", name]) == "100000"
        });
        until("its connection ends", || {
            // That of `other`, and the one that sends this command.
            let clients = server.cli(&["CLIENT", "LIST"]);
            clients.lines().count() == 2
        });
        assert_eq!(other.ask("PING"), "+PONG\r\n");
    }
}

#[test]
fn a_client_that_stays_receives_the_answers_to_requests_that_were_held_back() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    proxy.hold_requests();
    assert_eq!(client.ask("INCR a"), "");
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");
    // What was held back stays so, and later requests stay behind it.
    proxy.pass();
    assert_eq!(client.ask("INCR a"), "");
    proxy.deliver_requests();
    until("both have arrived", || server.cli(&["GET", "a"]) == "2");
    let mut answers = String::new();
    until("both are answered", || {
        let mut read = [0; 64];
        let count = client.0.read(&mut read).unwrap_or(0);
        answers += &String::from_utf8_lossy(&read[..count]);
        answers == ":1\r\n:2\r\n"
    });
    assert_eq!(client.ask("INCR a"), ":3\r\n");
}

#[test]
fn requests_that_are_held_back_are_lost_when_the_server_ends() {
    let mut server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("PING"), "+PONG\r\n");
    proxy.hold_requests();
    assert_eq!(client.ask("SET a 1"), "");
    server.restart();
    until("the connection ends", || proxy.held() == 0);
    assert_eq!(proxy.deliver_requests(), 0);
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");
    assert_eq!(Client::connect(&proxy).ask("PING"), "+PONG\r\n");
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
    until("no client is subscribed", || {
        server.cli(&["PUBLISH", "news", "1"]) == "0"
    });
}

#[test]
fn a_postgres_that_is_killed_keeps_what_it_acknowledged() {
    let mut server = PostgresServer::start();
    server.sql("CREATE TABLE kept (number int); INSERT INTO kept VALUES (7)");
    server.restart();
    assert_eq!(server.sql("SELECT number FROM kept"), "7");
}

#[test]
fn a_standby_follows_and_can_be_promoted() {
    let server = PostgresServer::start();
    let standby = server.standby();
    server.sql("CREATE TABLE kept (number int); INSERT INTO kept VALUES (7)");
    until("the standby has it", || {
        standby.ask("SELECT number FROM kept") == Ok("7".to_owned())
    });
    server.kill();
    standby.promote();
    standby.sql("INSERT INTO kept VALUES (8)");
}

#[test]
fn a_shared_postgres_ends_with_its_last_user() {
    let folder = tempfile::tempdir().unwrap();
    let first = SharedPostgres::join_in(folder.path());
    let second = SharedPostgres::join_in(folder.path());
    assert_eq!(first.url(), second.url());
    assert_ne!(first.schema(), second.schema());
    drop(first);
    assert_eq!(second.sql("SELECT 1"), "1");
    let port = second.port();
    drop(second);
    until("it has ended", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

#[test]
fn a_postgres_that_is_paused_hangs_until_it_is_resumed() {
    let server = PostgresServer::start();
    let mut open = TcpStream::connect(server.address()).unwrap();
    server.pause();
    open.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    // A request for TLS, which is answered with one byte.
    open.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    let mut answer = [0];
    assert!(open.read(&mut answer).is_err());
    server.resume();
    open.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(open.read(&mut answer).unwrap(), 1);
}
