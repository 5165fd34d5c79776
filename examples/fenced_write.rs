//! Fencing a write to a database: who comes too late is refused by the database itself.
//!
//! A lock alone cannot stop a holder that stalls until its lease is over, while the next one works already. Each lease
//! has a fence, larger than all before it. The row remembers the fence of its last writer, and takes only larger ones.

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
    /// Whether to stall between taking the lock and writing, as a long pause of the machine would do.
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
    stalls: Notify,
    goes_on: Notify,
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
        println!("{}: stalls under fence {fence}", lease.owner());
        shop.stalls.notify_one();
        // A function that looks can stop here. This one goes on, as one would that checked a moment too early.
        lease.lost().await;
        println!("{}: the lease is over, and I am not done", lease.owner());
        shop.goes_on.notified().await;
    }
    let (database, written) = (shop.database.clone(), fence.clone());
    let changed = spawn_blocking(move || write(&database.blocking_lock(), cents, &written));
    if changed.await?? == 0 {
        let message = "Somebody with a newer lease has written since";
        let error = FunctionError::application("SHOP_STALE_WRITER", message);
        return Err(error.with_detail("fence", fence));
    }
    println!("{}: wrote {cents} under fence {fence}", lease.owner());
    Ok(Written { cents, fence })
}

/// The check and the write are one statement: nobody comes between. (With `<=`, one holder may write more than once.)
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
    // The text of a fence has always 15 digits, so it sorts as its number does.
    database.execute_batch(
        "CREATE TABLE prices (sku TEXT PRIMARY KEY, cents INTEGER NOT NULL, fence TEXT NOT NULL);
         INSERT INTO prices VALUES ('tea', 300, '000000000000000');",
    )?;
    let shop = Arc::new(Shop {
        database: Arc::new(Mutex::new(database)),
        stalls: Notify::new(),
        goes_on: Notify::new(),
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
    shop.stalls.notified().await;
    println!("fast: waits for the lock");
    let fast = send(&server, "fast", 30_000, json!({"cents": 400})).await?;
    assert_eq!(fast["result"]["cents"], 400);

    shop.goes_on.notify_one();
    let slow = slow.await??;
    let refusal = &slow["errors"][0];
    println!("slow: is told {refusal}");
    assert_eq!(refusal["code"], "SHOP_STALE_WRITER");
    assert!(refusal["details"]["fence"].as_str() < fast["result"]["fence"].as_str());

    let database = shop.database.lock().await;
    let cents: u32 = database.query_row("SELECT cents FROM prices", (), |row| row.get(0))?;
    assert_eq!(cents, 400);
    println!("The price is {cents}: the late write has changed nothing");
    Ok(())
}
