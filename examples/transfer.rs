//! Transfers between two accounts: each locks both accounts with one request, in either order.
//!
//! Two transfers in opposite directions would deadlock if each locked one account and then waited for the other. A lock on
//! several keys is granted as a whole: {anna, ben} and {ben, anna} take turns.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forrst_client::{Client, Lock};
use forrst_server::{Context, FunctionError, HeldLease, Server};
use forrst_stores::MemoryStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Transfer {
    from: String,
    to: String,
    cents: i64,
}

type Accounts = Arc<Mutex<BTreeMap<String, i64>>>;

fn balance(accounts: &Accounts, name: &str) -> i64 {
    let accounts = accounts.lock().expect("no panic while it is locked");
    accounts.get(name).copied().unwrap_or_default()
}

fn set_balance(accounts: &Accounts, name: &str, cents: i64) {
    let mut accounts = accounts.lock().expect("no panic while it is locked");
    accounts.insert(name.to_owned(), cents);
}

/// Reads both balances, pauses, and writes both: without the lock, concurrent transfers would lose updates.
async fn transfer(
    context: Context,
    transfer: Transfer,
    accounts: Accounts,
) -> Result<(), FunctionError> {
    let Transfer { from, to, cents } = transfer;
    let lease = context.lease();
    let is_locked = |account: &str| {
        let mut keys = lease.into_iter().flat_map(HeldLease::keys);
        keys.any(|key| key == format!("lock:{account}"))
    };
    if !is_locked(&from) || !is_locked(&to) {
        let message = "Ask for an atomicLock on both accounts";
        return Err(FunctionError::application("BANK_LOCK_REQUIRED", message));
    }
    let (source, target) = (balance(&accounts, &from), balance(&accounts, &to));
    tokio::time::sleep(Duration::from_millis(2)).await;
    set_balance(&accounts, &from, source - cents);
    set_balance(&accounts, &to, target + cents);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let accounts = Accounts::default();
    set_balance(&accounts, "anna", 10_000);
    set_balance(&accounts, "ben", 10_000);
    let state = accounts.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .function("bank.transfer", "1.0.0", move |context, arguments| {
            transfer(context, arguments, state.clone())
        })
        .build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve_on(listener).await });

    let client = Client::connect(&url).await?;
    let mut transfers = JoinSet::new();
    for number in 0..50 {
        // Back and forth, so that consecutive transfers name the accounts in opposite order.
        let (from, to) = if number % 2 == 0 {
            ("anna", "ben")
        } else {
            ("ben", "anna")
        };
        let lock = Lock::keys([from, to])
            .global()
            .note(format!("transfer {number}"))
            .wait(Duration::from_secs(60));
        let arguments = Transfer {
            from: from.to_owned(),
            to: to.to_owned(),
            cents: if number % 2 == 0 { 30 } else { 10 },
        };
        let call = client.call::<_, Value>("bank.transfer", arguments);
        transfers.spawn(async move { call.lock(lock).await });
    }
    for done in transfers.join_all().await {
        done?;
    }
    println!("50 concurrent transfers in both directions, without a deadlock");

    let (anna, ben) = (balance(&accounts, "anna"), balance(&accounts, "ben"));
    assert_eq!((anna, ben), (9_500, 10_500));
    println!("anna has {anna} and ben has {ben}: no update was lost");
    Ok(())
}
