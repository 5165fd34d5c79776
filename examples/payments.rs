//! A payments service: several callers charge one user at the same time, and the balance stays correct.
//!
//! `payments.charge` reads the balance, asks the bank for approval, and writes the new balance. Two concurrent calls would read
//! the same balance, and one charge would be lost. So callers lock the user.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use forrst_protocol::ErrorCode;
use forrst_server::{Context, FunctionError, Server};
use forrst_stores::MemoryStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;

#[derive(Deserialize, JsonSchema)]
struct ChargeArguments {
    user_id: String,
    amount: u64,
}

#[derive(Serialize, JsonSchema)]
struct Charge {
    left: u64,
}

struct Payments {
    balances: Mutex<HashMap<String, u64>>,
    bank: Bank,
}

/// An external service, which is slow, and closed at first.
#[derive(Default)]
struct Bank {
    is_open: watch::Sender<bool>,
    requested: Notify,
}

impl Bank {
    async fn approve(&self) -> Result<(), watch::error::RecvError> {
        self.requested.notify_one();
        self.is_open.subscribe().wait_for(|open| *open).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

async fn charge(
    payments: Arc<Payments>,
    ChargeArguments { user_id, amount }: ChargeArguments,
) -> Result<Charge, FunctionError> {
    let Some(balance) = payments.balances.lock().await.get(&user_id).copied() else {
        let error = FunctionError::new(ErrorCode::NotFound, "There is no such user");
        return Err(error.at_argument(["user_id"]));
    };
    let Some(left) = balance.checked_sub(amount) else {
        let error = FunctionError::application("PAYMENTS_INSUFFICIENT_FUNDS", "Not enough money");
        return Err(error.with_detail("balance", balance));
    };
    payments.bank.approve().await?;
    payments.balances.lock().await.insert(user_id, left);
    Ok(Charge { left })
}

/// A charge of 30 under a lock on the user. With `block`, the call queues for the lock.
fn request(caller: &str, waits: bool) -> Value {
    let mut lock = json!({"key": "user:123", "ttl": {"value": 30, "unit": "second"}});
    if waits {
        lock["block"] = json!({"value": 60, "unit": "second"});
    }
    let arguments = json!({"user_id": "user_123", "amount": 30});
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": caller,
        "call": {"function": "payments.charge", "version": "1.0.0", "arguments": arguments},
        "extensions": [{"urn": "urn:forrst:ext:atomicLock", "options": lock}],
    })
}

async fn send(url: String, request: Value) -> reqwest::Result<(u16, Value)> {
    let timeout = Duration::from_secs(60);
    let client = reqwest::Client::builder().timeout(timeout).build()?;
    let answer = client.post(url).json(&request).send().await?;
    Ok((answer.status().as_u16(), answer.json().await?))
}

fn print_answer((status, answer): &(u16, Value)) {
    let outcome = answer.get("errors").unwrap_or(&answer["result"]);
    println!("{}: {status} {outcome}", answer["id"]);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let payments = Arc::new(Payments {
        balances: Mutex::new(HashMap::from([("user_123".to_owned(), 100)])),
        bank: Bank::default(),
    });
    let state = payments.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .service("payments")
        .function("payments.charge", "1.0.0", move |_: Context, arguments| {
            charge(state.clone(), arguments)
        })
        .build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/forrst", listener.local_addr()?);
    let serving = tokio::spawn({
        let server = server.clone();
        async move { server.serve_on(listener).await }
    });
    println!("user_123 has 100, and five callers charge 30 each at the same time");

    let mut waiting = JoinSet::new();
    for caller in ["ada", "bob", "cleo", "dan"] {
        waiting.spawn(send(url.clone(), request(caller, true)));
    }
    payments.bank.requested.notified().await;
    let refused = send(url, request("eve, who does not wait", false)).await?;
    print_answer(&refused);
    assert_eq!(refused.0, 423);
    assert_eq!(refused.1["errors"][0]["code"], "LOCK_ACQUISITION_FAILED");

    payments.bank.is_open.send_replace(true);
    let mut left = Vec::new();
    while let Some(answer) = waiting.join_next().await {
        let answer = answer??;
        print_answer(&answer);
        match answer.1["result"]["left"].as_u64() {
            Some(rest) => left.push(rest),
            None => assert_eq!(answer.1["errors"][0]["code"], "PAYMENTS_INSUFFICIENT_FUNDS"),
        }
    }
    left.sort_unstable();
    assert_eq!(
        left,
        [10, 40, 70],
        "each call saw the balance that the one before it left"
    );
    assert_eq!(payments.balances.lock().await["user_123"], 10);
    println!("user_123 has 10 left: three charges of 30, none lost, none too many");

    server.shut_down(Duration::from_secs(5)).await;
    Ok(serving.await?)
}
