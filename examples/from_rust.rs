//! The Rust client: calls a function under a lock, and holds a lock around its own work.

use std::time::Duration;

use forrst_client::{Client, Error, Fence, Lock};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct Charge {
    user_id: String,
    amount: u64,
}

#[derive(Debug, Deserialize)]
struct Receipt {
    charge_id: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "http://127.0.0.1:7420".to_owned());
    let client = Client::connect(&url).await?;

    let charge = Charge {
        user_id: "user_123".to_owned(),
        amount: 100,
    };
    let lock = Lock::key("user:123")
        .ttl(Duration::from_secs(30))
        .wait(Duration::from_secs(5));
    match client
        .call::<Charge, Receipt>("payments.charge", charge)
        .lock(lock)
        .await
    {
        Ok(receipt) => println!("charged: {}", receipt.charge_id),
        Err(Error::TimedOut(_)) => println!("another caller is charging this user"),
        Err(error) => return Err(error),
    }

    let lease = client
        .lock("export:orders")
        .wait(Duration::from_secs(10))
        .acquire()
        .await?;
    tokio::select! {
        () = export(lease.fence()) => lease.release().await?,
        loss = lease.lost() => eprintln!("stopped: {loss}"),
    }
    Ok(())
}

/// Sends the fence with every write, so that the database can refuse a smaller one than it has seen.
async fn export(fence: Fence) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("exported with fence {fence}");
}
