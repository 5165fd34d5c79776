//! Fencing a write to a database: a write under an expired lease is refused by the database itself.
//!
//! A lock alone cannot stop a holder that stalls until its lease has expired and the next holder is at work. Each lease has
//! a fence, larger than all earlier ones. The row stores the fence of its last writer, and accepts only larger ones.

use std::error::Error;
use std::sync::Arc;

use forrst_server::{Context, FunctionError, Server};
use forrst_stores::MemoryStore;
use rusqlite::Connection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_blocking;

#[derive(Deserialize, JsonSchema)]
struct Price {
    cents: u32,
    /// Whether to stall between acquiring the lock and writing, as in a long pause of the machine.
    #[serde(default)]
    stall: bool,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    cents: u32,
    fence: String,
}

struct Shop {
    database: Arc<Mutex<Connection>>,
    stalled: Notify,
    resumed: Notify,
}

async fn set_price(
    context: Context,
    Price { cents, stall }: Price,
    shop: Arc<Shop>,
) -> Result<Written, FunctionError> {
    let Some(lease) = context.lease() else {
        let message = "Ask for an atomicLock on the price";
        return Err(FunctionError::application("SHOP_LOCK_REQUIRED", message));
    };
    let fence = lease.fence().to_string();
    if stall {
        println!("{}: stalls with fence {fence}", lease.owner());
        shop.stalled.notify_one();
        // A function should stop here. This one continues, like one that checked its lease a moment too early.
        lease.lost().await;
        println!("{}: the lease has expired before the write", lease.owner());
        shop.resumed.notified().await;
    }
    let (database, written) = (shop.database.clone(), fence.clone());
    let changed = spawn_blocking(move || write(&database.blocking_lock(), cents, &written));
    if changed.await?? == 0 {
        let message = "The price was written under a newer lease";
        let error = FunctionError::application("SHOP_STALE_WRITER", message);
        return Err(error.with_detail("fence", fence));
    }
    println!("{}: wrote {cents} under fence {fence}", lease.owner());
    Ok(Written { cents, fence })
}

/// Check and write are one statement, so they are atomic. (With `<=`, a holder may write more than once.)
fn write(database: &Connection, cents: u32, fence: &str) -> rusqlite::Result<usize> {
    database.execute(
        "UPDATE prices SET cents = ?1, fence = ?2 WHERE sku = 'tea' AND fence < ?2",
        (cents, fence),
    )
}

async fn send(
    server: &Server,
    owner: &str,
    ttl_ms: u32,
    price: Value,
) -> serde_json::Result<Value> {
    let lock = json!({
        "key": "price:tea",
        "owner": owner,
        "ttl": {"value": ttl_ms, "unit": "millisecond"},
        "block": {"value": 30, "unit": "second"},
    });
    let request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": owner,
        "call": {"function": "shop.setPrice", "arguments": price},
        "extensions": [{"urn": "urn:forrst:ext:atomicLock", "options": lock}],
    });
    let response = server.handle(request.to_string().as_bytes()).await;
    serde_json::to_value(response)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let database = Connection::open(folder.path().join("shop.db"))?;
    // A fence always has 15 digits, so strings sort in the order of the numbers.
    database.execute_batch(
        "CREATE TABLE prices (sku TEXT PRIMARY KEY, cents INTEGER NOT NULL, fence TEXT NOT NULL);
         INSERT INTO prices VALUES ('tea', 300, '000000000000000');",
    )?;
    let shop = Arc::new(Shop {
        database: Arc::new(Mutex::new(database)),
        stalled: Notify::new(),
        resumed: Notify::new(),
    });
    let state = shop.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .function("shop.setPrice", "1.0.0", move |context, price| {
            set_price(context, price, state.clone())
        })
        .build()?;

    let slow = tokio::spawn({
        let server = server.clone();
        async move { send(&server, "slow", 200, json!({"cents": 250, "stall": true})).await }
    });
    shop.stalled.notified().await;
    println!("fast: waits for the lock");
    let fast = send(&server, "fast", 30_000, json!({"cents": 400})).await?;
    assert_eq!(fast["result"]["cents"], 400);

    shop.resumed.notify_one();
    let slow = slow.await??;
    let refusal = &slow["errors"][0];
    println!("slow: refused with {refusal}");
    assert_eq!(refusal["code"], "SHOP_STALE_WRITER");
    assert!(refusal["details"]["fence"].as_str() < fast["result"]["fence"].as_str());

    let database = shop.database.lock().await;
    let cents: u32 = database.query_row("SELECT cents FROM prices", (), |row| row.get(0))?;
    assert_eq!(cents, 400);
    println!("The price is {cents}: the late write was refused");
    Ok(())
}
