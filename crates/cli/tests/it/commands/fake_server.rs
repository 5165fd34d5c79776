//! A server that speaks the protocol but breaks its guarantees: it grants every lock to every client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

/// How it mints a fence from the number of the grant.
type Mint = fn(u64) -> u64;

/// Starts one, and returns its URL.
pub(crate) fn start(mint: Mint) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let grants = Arc::new(AtomicU64::new(0));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let grants = grants.clone();
            thread::spawn(move || serve(&stream, &grants, mint));
        }
    });
    url
}

fn serve(stream: &TcpStream, grants: &AtomicU64, mint: Mint) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let request: Value = serde_json::from_slice(&body).ok()?;
        let answer = json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": request["id"],
            "result": result(&request["call"], grants, mint),
            "meta": {"node": "fake"},
        });
        let answer = answer.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json";
        let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
        (&*stream).write_all(text.as_bytes()).ok()?;
    }
}

fn result(call: &Value, grants: &AtomicU64, mint: Mint) -> Value {
    let function = call["function"].as_str().unwrap_or_default();
    let key = &call["arguments"]["key"];
    match function.rsplit(':').next() {
        Some("acquire") => json!({
            "key": key,
            "acquired": true,
            "owner": call["arguments"]["owner"].as_str().unwrap_or("owner"),
            "scope": "global",
            "expires_at": "2099-01-01T00:00:00.000Z",
            "full_key": format!("lock:{}", key.as_str().unwrap_or_default()),
            "fence": format!("{:015}", mint(grants.fetch_add(1, Ordering::SeqCst) + 1)),
        }),
        Some("release") => json!({"released": true, "key": key}),
        _ => json!({"status": "healthy", "timestamp": "2026-01-01T00:00:00.000Z"}),
    }
}
