//! Acquiring locks: waiting, giving up, and repeating an attempt.

use forrst_client::{Client, Error};

use crate::host::{Host, acquired, ms, soon};
use crate::proxy::connected_by;

#[tokio::test]
async fn a_lock_is_held_until_it_is_released() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock("export:orders").ttl(ms(10_000))).await;
        assert_eq!(lease.full_key(), "lock:export:orders");
        assert!(lease.is_held());
        assert!(lease.remaining() > ms(1_000) && lease.remaining() <= ms(10_000));
        let error = soon(client.lock("export:orders").acquire())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Contended(_)), "{error}");
        soon(lease.release()).await.unwrap();
        let status = client
            .locks()
            .status("lock:export:orders")
            .await
            .unwrap()
            .held();
        assert_eq!(status, None);
    }
}

#[tokio::test]
async fn the_lock_of_a_function_is_shared_by_its_callers() {
    let host = Host::start().await;
    let acquire = host
        .http()
        .lock("user:1")
        .function("payments.charge")
        .owner("me");
    let held = soon(acquire.hold()).await.unwrap();
    assert_eq!(held.full_key(), "lock:payments.charge:user:1");
    assert_eq!(
        (held.keys[0].as_str(), held.owner.as_str()),
        ("user:1", "me")
    );
}

#[tokio::test]
async fn a_client_that_waits_gets_the_lock_when_it_is_free() {
    let host = Host::start().await;
    for client in host.clients() {
        let first = acquired(client.lock("k")).await;
        let next = tokio::spawn(client.lock("k").wait(ms(30_000)).acquire());
        host.until_waiting(1).await;
        soon(first.release()).await.unwrap();
        let next = soon(next).await.unwrap().unwrap();
        assert!(next.is_held());
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_that_is_longer_than_the_ttl_does_not_shorten_the_lease() {
    let host = Host::start().await;
    let (waited, ttl) = (ms(1_500), ms(1_000));
    for client in host.clients() {
        let first = acquired(client.lock("k")).await;
        let next = tokio::spawn(client.lock("k").ttl(ttl).wait(ms(30_000)).acquire());
        tokio::time::sleep(waited).await;
        soon(first.release()).await.unwrap();
        let next = soon(next).await.unwrap().unwrap();
        assert!(next.is_held());
        assert!(next.remaining() <= ttl);
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_stops_waiting_leaves_the_queue() {
    let host = Host::start().await;
    let first = acquired(host.http().lock("k")).await;
    for client in host.clients() {
        let waiting = tokio::spawn(client.lock("k").wait(ms(60_000)).acquire());
        host.until_waiting(1).await;
        waiting.abort();
        host.until_waiting(0).await;
    }
    assert!(first.is_held());
    soon(first.release()).await.unwrap();
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn a_client_that_stops_waiting_at_the_moment_of_the_grant_leaves_no_lock_behind() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        proxy.delay_answers(ms(60_000));
        let acquiring = tokio::spawn(client.lock("k").acquire());
        let locks = host.http().locks();
        soon(async { while !locks.status("lock:k").await.unwrap().is_held() {} }).await;
        acquiring.abort();
        host.until_free("lock:k").await;
    }
}

#[tokio::test]
async fn a_repeated_attempt_gets_the_same_lease() {
    let host = Host::start().await;
    let job = |client: Client, name| client.lock("k").owner("worker-1").attempt(name);
    let first = soon(job(host.http(), "job-7").hold()).await.unwrap();
    // As after a crash: another client, the same names.
    let again = acquired(job(host.websocket(), "job-7")).await;
    assert_eq!(first.fence, again.fence());
    let error = soon(job(host.http(), "job-8").hold()).await.unwrap_err();
    assert!(
        matches!(error, Error::Contended(_)),
        "not reentrant: {error}"
    );
}

#[tokio::test]
async fn an_invalid_ttl_is_rejected_with_its_pointer() {
    let host = Host::start().await;
    let week = std::time::Duration::from_secs(7 * 24 * 60 * 60);
    let error = soon(host.http().lock("k").ttl(week).acquire())
        .await
        .unwrap_err();
    let Error::Rejected(failure) = &error else {
        panic!("{error}")
    };
    assert_eq!(failure.pointer(), Some("/call/arguments/ttl"));
}
