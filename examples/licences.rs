//! A pool of three licences: ten render jobs share them, and at most three run at once.
//!
//! A lock with `limit: 3` is a counting semaphore across machines. It is fair, and each holder has a lease, so that the licence
//! of a crashed job becomes free by itself.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forrst_client::{Client, LockKind};
use forrst_server::Server;
use forrst_stores::MemoryStore;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const LICENCES: u32 = 3;

#[derive(Default)]
struct Running {
    now: AtomicUsize,
    most: AtomicUsize,
}

async fn render(
    client: Client,
    job: u32,
    running: Arc<Running>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let licence = client
        .lock("renderer")
        .limit(LICENCES)
        .note(format!("job {job}"))
        .wait(Duration::from_secs(60))
        .acquire()
        .await?;
    let now = running.now.fetch_add(1, Ordering::SeqCst) + 1;
    running.most.fetch_max(now, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await;
    running.now.fetch_sub(1, Ordering::SeqCst);
    licence.release().await?;
    println!("job {job} is done");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve_on(listener).await });
    let client = Client::connect(&url).await?;

    // A job that never releases its licence: it becomes free when the lease expires.
    let ttl = Duration::from_secs(60);
    let leaked = client.lock("renderer").limit(LICENCES).ttl(ttl);
    let leaked = leaked.note("never releases its licence").hold().await?;
    let status = client.locks().status("lock:renderer").await?;
    let status = status.held().ok_or("a job holds a licence")?;
    let expected = LockKind::Limit {
        limit: LICENCES,
        available: LICENCES - 1,
    };
    assert_eq!(status.kind, expected);
    let note = status.holder().and_then(|holder| holder.note.as_deref());
    println!(
        "one of three licences is held by a job that {}",
        note.unwrap_or_default()
    );
    // Shortens the lease, so that this example does not take a minute.
    let (key, owner) = (leaked.full_key(), &leaked.owner);
    let ttl = Duration::from_millis(100);
    client.locks().extend(key, owner, None, ttl).await?;

    let running = Arc::new(Running::default());
    let mut jobs = JoinSet::new();
    for job in 1..=10 {
        jobs.spawn(render(client.clone(), job, running.clone()));
    }
    for done in jobs.join_all().await {
        done?;
    }
    let most = running.most.load(Ordering::SeqCst);
    assert!((1..=3).contains(&most), "{most} at once");
    println!("Ten jobs are done, at most three at once");
    Ok(())
}
