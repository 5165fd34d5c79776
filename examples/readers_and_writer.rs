//! Readers and a writer: any number of reports read the price list together, and an update waits for them, but not forever.
//!
//! Readers take the lock in shared mode, the writer in exclusive mode. A reader that arrives while the writer waits queues behind
//! it, so a stream of readers cannot starve the writer.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use forrst_client::{Client, Error as ClientError, LockKind};
use forrst_server::Server;
use forrst_stores::MemoryStore;
use tokio::net::TcpListener;

const WAIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve_on(listener).await });
    let client = Client::connect(&url).await?;
    let reader = |name: &str| client.lock("prices").shared().note(name);

    let monday = reader("monday's report").acquire().await?;
    let tuesday = reader("tuesday's report").acquire().await?;
    let status = client.locks().status("lock:prices").await?;
    let status = status.held().ok_or("two read the prices")?;
    assert_eq!((status.kind, status.holder_count), (LockKind::Shared, 2));
    println!("Two reports read the prices at once");

    let writer = client.lock("prices").note("new prices").wait(WAIT);
    let writer = tokio::spawn(writer.acquire());
    while client
        .locks()
        .waiters("lock:prices", None)
        .await?
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let late = reader("a late report").acquire().await;
    assert!(matches!(late, Err(ClientError::Contended(_))));
    println!("The writer waits, and a late report cannot overtake it");
    let late = tokio::spawn(reader("a patient report").wait(WAIT).acquire());

    let newest_read = monday.fence().max(tuesday.fence());
    monday.release().await?;
    tuesday.release().await?;
    let writer = writer.await??;
    assert!(writer.fence() > newest_read);
    println!("The reports are done: the writer holds the lock alone, with a larger fence");

    writer.release().await?;
    let late = late.await??;
    println!("The patient report reads what the writer wrote");
    late.release().await?;
    Ok(())
}
