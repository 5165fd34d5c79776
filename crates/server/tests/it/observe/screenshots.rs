//! The screenshots of the dashboard in the documentation, of a server under load.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forrst_server::{Context, Server};
use forrst_stores::MemoryStore;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::observe::browser::Tab;
use crate::wire::{Ask, ask, millis, seconds};

type Any = Map<String, Value>;

pub(crate) async fn take() {
    let mut builder = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .node("node-a");
    for name in [
        "payments.charge",
        "billing.generateReport",
        "inventory.reserve",
        "mail.send",
    ] {
        builder = builder.function(name, "1.0.0", async |_: Context, _: Any| {
            sleep(Duration::from_millis(fastrand::u64(5..120))).await;
            Ok(json!({}))
        });
    }
    let server = builder.build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn({
        let server = server.clone();
        async move { server.serve_on(listener).await }
    });
    for caller in 0..40 {
        tokio::spawn(traffic(server.clone(), caller));
    }
    // The charts show five minutes, so the load runs for most of that time.
    sleep(Duration::from_secs(250)).await;
    for (function, key, owner, ttl, waiters) in [
        (
            "billing.generateReport",
            "2026-11",
            "report-worker-3",
            900,
            3,
        ),
        ("payments.charge", "user:48213", "checkout-7f9c", 45, 2),
        ("inventory.reserve", "sku:A-1042", "warehouse-eu-1", 120, 0),
        ("", "nightly-export", "cron@db-2", 3600, 1),
        ("", "schema-migration", "deploy-4411", 14_400, 0),
        ("mail.send", "campaign:black-friday", "mailer-2", 600, 0),
    ] {
        let mut arguments = json!({"key": key, "owner": owner, "ttl": seconds(ttl)});
        if !function.is_empty() {
            arguments["function"] = function.into();
        }
        send(&server, &acquire(arguments.clone())).await;
        for waiter in 0..waiters {
            let names = ["checkout-81b2", "report-worker-1", "retry-job", "cron@db-1"];
            arguments["owner"] = names[(waiter + key.len()) % names.len()].into();
            arguments["block"] = seconds(290);
            let (server, call) = (server.clone(), acquire(arguments.clone()));
            tokio::spawn(async move { send(&server, &call).await });
            sleep(Duration::from_secs(2)).await;
        }
    }
    for scheme in ["light", "dark"] {
        let mut tab = Tab::open(&url, 1100, 600, scheme).await;
        tab.until("document.querySelectorAll('#rows .queue li').length >= 6")
            .await;
        tab.until("document.querySelector('#state').textContent === 'Live'")
            .await;
        sleep(Duration::from_secs(2)).await;
        let screenshot = STANDARD.decode(tab.screenshot().await).unwrap();
        let path = format!(
            "{}/../../docs/page-{scheme}.png",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::write(path, screenshot).unwrap();
    }
    let mut phone = Tab::open(&url, 390, 1100, "light").await;
    phone
        .until("document.querySelectorAll('#rows .queue li').length >= 6")
        .await;
    let screenshot = STANDARD.decode(phone.screenshot().await).unwrap();
    std::fs::write(std::env::temp_dir().join("page-phone.png"), screenshot).unwrap();
}

/// Calls at a rate that varies over time.
async fn traffic(server: Server, caller: u64) {
    for round in 0_u64.. {
        let wave = (round / 20 + caller) % 7;
        sleep(Duration::from_millis(fastrand::u64(100..400) + wave * 150)).await;
        let key = format!("user:{}", fastrand::u32(0..12));
        let lock = json!({"key": key, "ttl": seconds(30), "block": millis(fastrand::u64(20..400))});
        let name = ["payments.charge", "inventory.reserve", "mail.send"][fastrand::usize(0..3)];
        send(&server, &ask(name).lock(lock)).await;
    }
}

fn acquire(arguments: Value) -> Ask {
    ask("urn:cline:forrst:ext:atomic-lock:fn:acquire").arguments(arguments)
}

async fn send(server: &Server, call: &Ask) {
    server.handle(call.text().as_bytes()).await;
}
