//! The server is killed while callers wait: their connections break, and after the restart the queue is empty.

use std::time::Duration;

use crate::crash::server::StoreFolder;
use forrst_testkit::Lock;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_ends_with_the_server_and_the_holder_stays() {
    let folder = StoreFolder::new("full");
    let server = folder.start().await;
    let lock = Lock::global("wanted");
    let mut holder = server.connect().await;
    let answer = holder.call(&lock.acquire("holder", HOUR)).await.unwrap();
    let held = answer.granted().unwrap();

    let mut waiting = Vec::new();
    for number in 0..5 {
        let mut connection = server.connect().await;
        let request = lock.acquire_within(&format!("waiter {number}"), HOUR, MINUTE);
        waiting.push(tokio::spawn(async move { connection.call(&request).await }));
    }
    // A later caller has timed out by then, so these are in the queue.
    let impatient = lock.acquire_within("impatient", HOUR, Duration::from_millis(500));
    let answer = holder.call(&impatient).await.unwrap();
    assert_eq!(answer.code(), Some("LOCK_TIMEOUT"));
    assert!(waiting.iter().all(|caller| !caller.is_finished()));

    server.kill().await;
    for caller in waiting {
        let answer = caller.await.unwrap();
        assert!(answer.is_err(), "{answer:?}");
    }

    let server = folder.start().await;
    let mut holder = server.connect().await;
    let status = holder.call(&lock.status()).await.unwrap();
    assert_eq!(status.holder().as_ref(), Some(&held));

    // If one of the old waiters were still queued, it would get the lock for an hour.
    let mut newcomer = server.connect().await;
    let request = lock.acquire_within("newcomer", HOUR, MINUTE);
    let newcomer = tokio::spawn(async move { newcomer.call(&request).await });
    let release = lock.release("holder", held.fence);
    let released = holder.call(&release).await.unwrap();
    assert_eq!(released.status, 200, "{released:?}");
    let granted = newcomer.await.unwrap().unwrap();
    let granted = granted.granted().expect("the newcomer is the next");
    assert_eq!(granted.owner, "newcomer");
    assert!(granted.fence > held.fence);
}
