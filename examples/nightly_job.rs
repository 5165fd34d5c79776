//! A nightly job on two hosts: both start at the same time, and only one does the work.
//!
//! The job continues after its call has been answered, so the lock has to be held beyond the call (`auto_release: false`). The
//! holder releases it when the job is done. If that host crashes, the ttl frees the lock before the next night.

use std::error::Error;
use std::sync::Arc;

use forrst_server::{Context, FunctionError, Server};
use forrst_stores::MemoryStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

#[derive(Deserialize, JsonSchema)]
struct Month {
    month: String,
}

#[derive(Serialize, JsonSchema)]
struct Report {
    report_id: String,
}

async fn generate_report(
    _: Context,
    Month { month }: Month,
    reports: Arc<Mutex<u32>>,
) -> Result<Report, FunctionError> {
    let mut number = reports.lock().await;
    *number += 1;
    Ok(Report {
        report_id: format!("report_{month}_{number}"),
    })
}

/// Both hosts send the same request, except for the owner token, which names the host and the run.
async fn start_job(server: &Server, host: &str) -> serde_json::Result<Value> {
    let lock = json!({
        "key": "billing:nightly",
        "scope": "global",
        "ttl": {"value": 6, "unit": "hour"},
        "owner": format!("{host}/2024-03"),
        "auto_release": false,
    });
    let call = json!({"function": "billing.generateReport", "arguments": {"month": "2024-03"}});
    let extensions = json!([{"urn": "urn:forrst:ext:atomicLock", "options": lock}]);
    send(server, &call, &extensions).await
}

async fn release(server: &Server, key: &Value, owner: &Value) -> serde_json::Result<Value> {
    let call = json!({
        "function": "urn:cline:forrst:ext:atomic-lock:fn:release",
        "arguments": {"key": key, "owner": owner},
    });
    send(server, &call, &json!([])).await
}

/// Within one process no socket is needed; `POST /forrst` takes the same request and returns the same response.
async fn send(server: &Server, call: &Value, extensions: &Value) -> serde_json::Result<Value> {
    let request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": "nightly",
        "call": call,
        "extensions": extensions,
    });
    let response = server.handle(request.to_string().as_bytes()).await;
    serde_json::to_value(response)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let reports = Arc::new(Mutex::new(0));
    let counter = reports.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .function("billing.generateReport", "1.0.0", move |context, month| {
            generate_report(context, month, counter.clone())
        })
        .build()?;

    println!("02:00  cron-a and cron-b start the job");
    let (a, b) = tokio::join!(start_job(&server, "cron-a"), start_job(&server, "cron-b"));
    let (a, b) = (a?, b?);
    let (winner, loser) = if a["errors"].is_null() {
        (a, b)
    } else {
        (b, a)
    };
    let lock = &winner["extensions"][0]["data"];
    let report = &winner["result"]["report_id"];
    println!(
        "02:00  {} holds {} for six hours at most, and created {report}",
        lock["owner"], lock["full_key"]
    );
    let refusal = &loser["errors"][0];
    println!(
        "02:00  the other one is refused with {}: {}",
        refusal["code"], refusal["message"]
    );
    assert_eq!(refusal["code"], "LOCK_ACQUISITION_FAILED");
    assert_eq!(loser["extensions"][0]["data"]["acquired"], false);
    assert_eq!(*reports.lock().await, 1, "the report is created once");

    let late = start_job(&server, "cron-c").await?;
    assert_eq!(late["errors"][0]["code"], "LOCK_ACQUISITION_FAILED");
    println!("02:05  the call has returned, but the lock is still held: cron-c is refused, too");

    let other = release(&server, &lock["full_key"], &json!("cron-c/2024-03")).await?;
    assert_eq!(other["errors"][0]["code"], "LOCK_OWNERSHIP_MISMATCH");
    println!(
        "02:06  cron-c cannot release it: {}",
        other["errors"][0]["code"]
    );

    let released = release(&server, &lock["full_key"], &lock["owner"]).await?;
    assert_eq!(released["result"]["released"], true);
    println!("02:40  the report is mailed, and the holder releases the lock");

    let again = release(&server, &lock["full_key"], &lock["owner"]).await?;
    assert_eq!(again["errors"][0]["code"], "LOCK_ALREADY_RELEASED");
    println!(
        "02:41  a second release changes nothing: {}",
        again["errors"][0]["code"]
    );

    let next_night = start_job(&server, "cron-b").await?;
    assert_eq!(next_night["extensions"][0]["data"]["acquired"], true);
    println!("02:00  the next night the lock is free again");
    Ok(())
}
