//! Floods: what the server keeps in memory and writes to its logs meanwhile, and how long an authenticated client waits.
//!
//! `cargo nextest run -p forrst-cli --test it floods --no-capture` prints the table. Memory and logs are asserted; times are only
//! printed, because a busy machine may delay anything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forrst_testkit::{Serve, request, until};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::resident_bytes;
use crate::access::client::{acquire, code, connect, lock, open, post_text};
use crate::access::keys::{FORRST, Guarded};

/// By how much a flood may grow the server: the budget of a connection, and what the allocator does not return.
const MAX_GROWTH: u64 = 96 * 1024 * 1024;

/// How long a flood of requests lasts at least, and how many requests it has at least.
const FLOOD: Duration = Duration::from_secs(1);
const REQUESTS: usize = 500;

struct Flood {
    name: &'static str,
    /// Whether all of it is refused, and little of it logged.
    is_refused: bool,
    run: fn(&str, &str) -> usize,
}

const FLOODS: [Flood; 5] = [
    Flood {
        name: "requests without a key",
        is_refused: true,
        run: |address, _| {
            let body = request("demo.echo", json!({})).to_string();
            repeat(address, &post_text(address, "/forrst", &[], &body))
        },
    },
    Flood {
        name: "batches of 100 without a key",
        is_refused: true,
        run: |address, _| {
            let entry = json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": {}});
            let body = json!(vec![entry; 100]).to_string();
            repeat(address, &post_text(address, "/rpc", &[], &body))
        },
    },
    Flood {
        name: "wrong hosts and long paths",
        is_refused: true,
        run: |address, _| {
            let path = format!("/{}", "x".repeat(4000));
            repeat(address, &post_text("evil.example", &path, &[], ""))
        },
    },
    Flood {
        name: "silent connections",
        is_refused: false,
        run: |address, _| {
            let silent: Vec<_> = (0..500).map(|_| connect(address)).collect();
            std::thread::sleep(FLOOD);
            drop(silent);
            0
        },
    },
    Flood {
        name: "waiting calls of 1 MB, with a key",
        is_refused: false,
        run: |address, key| {
            let mut socket = open(address, Some(key)).unwrap();
            let padding = "x".repeat(1_000_000);
            let mut sent = 0;
            for number in 0..200 {
                let mut call = acquire("flood");
                call["call"]["arguments"]["block"] = json!({"value": 1, "unit": "minute"});
                call["context"] = json!({"padding": padding});
                let frame = json!({"jsonrpc": "2.0", "id": number, "method": "forrst.call", "params": call});
                let text = frame.to_string();
                sent += text.len();
                socket.send(Message::text(text)).unwrap();
            }
            sent
        },
    },
];

fn repeat(address: &str, text: &str) -> usize {
    let started = Instant::now();
    let (mut count, mut sent) = (0, 0);
    while count < REQUESTS || started.elapsed() < FLOOD {
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        if stream.write_all(text.as_bytes()).is_ok() {
            count += 1;
            sent += text.len();
        }
        let _ = stream.read(&mut [0; 1024]);
    }
    sent
}

#[test]
fn a_flood_does_not_stop_the_server_or_fill_its_memory_or_its_logs() {
    let arguments = ["--audit-log", "audit.log", "--idle-timeout", "2s"];
    let roles: &[&str] = &["--role", "call", "--role", "observe"];
    let guarded = Guarded::with(&arguments, &[("a", roles)]);
    let (address, key) = (guarded.address(), guarded.keys[0].as_str());
    // The lock is held, so that the flood of calls has to wait.
    let held = crate::access::client::Transport::Http.ask(&address, Some(key), &acquire("flood"));
    assert_eq!(code(&held), None);
    let written = || {
        let audit = std::fs::metadata(guarded.serve.path("audit.log"));
        (
            guarded.running.errors().len(),
            audit.map_or(0, |audit| audit.len()),
        )
    };
    eprintln!(
        "{:<36}{:>12}{:>10}{:>10}{:>12}{:>10}{:>10}",
        "flood", "sent", "log", "audit", "RSS grows", "p50", "p99"
    );
    for flood in &FLOODS {
        let (before, (log, audit)) = (resident_bytes(&guarded.running), written());
        let is_over = AtomicBool::new(false);
        let (sent, peak, mut times) = std::thread::scope(|scope| {
            let flooding = scope.spawn(|| {
                let sent = (flood.run)(&address, key);
                is_over.store(true, Ordering::Relaxed);
                sent
            });
            let mut times = Vec::new();
            let mut peak = 0;
            while times.is_empty() || !is_over.load(Ordering::Relaxed) {
                let started = Instant::now();
                let status = lock("status", json!({"key": "lock:flood"}));
                let answer =
                    crate::access::client::Transport::Http.ask(&address, Some(key), &status);
                assert_eq!(code(&answer), None, "{answer}");
                times.push(started.elapsed());
                peak = peak.max(resident_bytes(&guarded.running));
            }
            (flooding.join().unwrap(), peak, times)
        });
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        let (log_after, audit_after) = written();
        let grown = peak.saturating_sub(before);
        eprintln!(
            "{:<36}{sent:>12}{:>10}{:>10}{grown:>12}{:>10.1?}{:>10.1?}",
            flood.name,
            log_after - log,
            audit_after - audit,
            at(50),
            at(99),
        );
        assert!(grown < MAX_GROWTH, "{}: {grown} bytes", flood.name);
        let written = log_after - log + usize::try_from(audit_after - audit).unwrap();
        let is_little = !flood.is_refused || written < sent / 10;
        assert!(is_little, "{}: {written} of {sent} bytes", flood.name);
    }
    assert!(!guarded.running.has_ended());
}

/// Ten clients send thousands of calls with large answers and read nothing. They are one caller, whose budget is a quarter of that
/// of the process.
#[test]
fn unread_answers_stay_within_the_budget() {
    const CLIENTS: usize = 10;
    const CALLS: usize = 2000;
    let describe = request("urn:cline:forrst:fn:describe", json!({}));
    let call = |number: usize| {
        json!({"jsonrpc": "2.0", "id": number, "method": "forrst.call", "params": describe})
            .to_string()
    };
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "rpc.discover"});
    let batch = json!(vec![discover; 100]).to_string();
    // While the answers of a batch are assembled, they are in memory twice; and the allocator returns large blocks to the system a
    // second late.
    for (name, frames, most_growth) in [
        (
            "describe",
            (0..CALLS).map(call).collect::<Vec<_>>(),
            MAX_GROWTH / 2,
        ),
        (
            "rpc.discover in batches",
            vec![batch; CALLS / 100],
            2 * MAX_GROWTH,
        ),
    ] {
        let serve = Serve::new(FORRST, &["--demo", "--store", "memory:"]);
        let running = serve.start();
        let address = running.address();
        let before = resident_bytes(&running);
        let client = || {
            let mut socket = open(&address, None).unwrap();
            // The server may stop reading, which is not a failure.
            let patience = Some(Duration::from_secs(1));
            socket.get_mut().set_write_timeout(patience).unwrap();
            for frame in &frames {
                if socket.send(Message::text(frame.clone())).is_err() {
                    break;
                }
            }
            socket
        };
        let clients: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            clients
                .into_iter()
                .map(|client| client.join().unwrap())
                .collect()
        });
        let mut peak = 0;
        let mut last = (0, Instant::now());
        // Until nothing has changed for a while.
        until("the server has answered", || {
            let now = resident_bytes(&running);
            peak = peak.max(now);
            if now != last.0 {
                last = (now, Instant::now());
            }
            last.1.elapsed() > Duration::from_secs(2)
        });
        drop(clients);
        let grown = peak.saturating_sub(before);
        eprintln!("{name}: RSS grows from {before} by {grown} bytes");
        assert!(grown < most_growth, "{name}: {grown} bytes");
    }
}
