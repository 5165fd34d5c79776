//! Leases: renewed, lost, released and dropped.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use forrst_client::{Client, Error, Loss, Retry};
use forrst_testkit::asynchronous::undisturbed;
use tokio::time::Instant;

use crate::host::{Host, acquired, ms, soon, until};
use crate::proxy::{connected_by, host_behind_proxy};

/// Short, but long enough for a busy machine.
const TTL: Duration = Duration::from_millis(1_500);
/// When timers are later than that, a lease may be lost although it was renewed, or its loss noticed too late.
const LATE: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_lease_outlives_many_ttls() {
    undisturbed(LATE, || async {
        let host = Host::start().await;
        for client in host.clients() {
            let lease = acquired(client.lock("k").ttl(TTL)).await;
            let (first_end, first_expiry) = (lease.held_until(), lease.expires_at());
            let end = Instant::now() + TTL * 3;
            while Instant::now() < end {
                assert!(lease.is_held());
                tokio::time::sleep(ms(20)).await;
            }
            assert!(lease.held_until() > first_end + TTL);
            assert!(lease.expires_at() > first_expiry + TTL);
            let status = client
                .locks()
                .status("lock:k")
                .await
                .unwrap()
                .held()
                .unwrap();
            assert_eq!(status.holders[0].fence, Some(lease.fence()));
            soon(lease.release()).await.unwrap();
            host.until_free("lock:k").await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_lost_in_time_when_the_server_is_gone_and_stays_lost() {
    undisturbed(LATE, || async {
        for scheme in ["http", "ws"] {
            let (_host, proxy, client) = connected_by(scheme).await;
            let lease = acquired(client.lock("k").ttl(TTL)).await;
            let notice = lease.notice();
            proxy.refuse_all();
            let cut = Instant::now();
            assert!(lease.held_until() <= cut + TTL);
            let loss = soon(lease.lost()).await;
            assert!(Instant::now() >= lease.held_until());
            assert!(cut.elapsed() < TTL * 2, "{:?}", cut.elapsed());
            assert!(matches!(&loss, Loss::Expired(Some(_))), "{loss}");
            assert!(!lease.is_held() && notice.is_lost());
            assert_eq!(lease.remaining(), Duration::ZERO);

            proxy.pass();
            tokio::time::sleep(TTL).await;
            assert!(!lease.is_held(), "lost stays lost");
            assert!(matches!(soon(notice.lost()).await, Loss::Expired(_)));
            let error = soon(lease.release()).await.unwrap_err();
            assert!(matches!(error, Error::Lost(_)), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_never_held_for_longer_here_than_on_the_server() {
    let (host, proxy, client) = connected_by("http").await;
    let lease = acquired(client.lock("k").ttl(TTL)).await;
    proxy.refuse_all();
    // A waiter on the server gets it when it expires there.
    let next = tokio::spawn(host.http().lock("k").wait(ms(20_000)).hold());
    soon(next).await.unwrap().unwrap();
    assert!(!lease.is_held());
}

#[tokio::test]
async fn the_time_that_an_answer_takes_does_not_extend_the_lease() {
    let (_host, proxy, client) = connected_by("ws").await;
    let latency = ms(300);
    proxy.delay_answers(latency);
    let lease = acquired(client.lock("k").ttl(ms(3_000))).await;
    let first_end = lease.held_until();
    // Client and server read the clock of the same machine.
    let longer_than_there = || {
        let there = lease.expires_at().duration_since(SystemTime::now());
        lease.remaining().saturating_sub(there.unwrap_or_default())
    };
    assert!(
        longer_than_there() < latency / 2,
        "{:?}",
        longer_than_there()
    );
    until("it is renewed", || lease.held_until() > first_end).await;
    assert!(
        longer_than_there() < latency / 2,
        "{:?}",
        longer_than_there()
    );
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced() {
    undisturbed(LATE, || async {
        for scheme in ["http", "ws"] {
            let (_host, proxy, client) = connected_by(scheme).await;
            let ttl = ms(3_000);
            let lease = acquired(client.lock("k").ttl(ttl)).await;
            proxy.swallow_all();
            tokio::time::sleep(ttl / 2).await;
            // What was sent in between is lost, without an error.
            proxy.pass();
            tokio::time::sleep(ttl).await;
            assert!(lease.is_held(), "{scheme}");
        }
    })
    .await;
}

#[tokio::test]
async fn answers_that_come_too_late_do_not_revive_a_lease() {
    let (_host, proxy, client) = connected_by("ws").await;
    let lease = acquired(client.lock("k").ttl(TTL)).await;
    proxy.delay_answers(TTL);
    soon(lease.lost()).await;
    proxy.pass();
    tokio::time::sleep(TTL).await;
    assert!(!lease.is_held());
}

#[tokio::test]
async fn a_lease_that_the_server_no_longer_knows_is_lost_at_once() {
    undisturbed(LATE, || async {
        let host = Host::start().await;
        for client in host.clients() {
            // Too short to be watched.
            let ttl = ms(3_000);
            let lease = acquired(client.lock("k").ttl(ttl)).await;
            host.http()
                .locks()
                .force_release("lock:k", None)
                .await
                .unwrap();
            let start = Instant::now();
            let loss = soon(lease.lost()).await;
            assert!(matches!(loss, Loss::Refused(_)), "{loss}");
            assert!(
                start.elapsed() < ttl - ms(1_000),
                "with the next renewal, not at the end"
            );
            assert_eq!(lease.remaining(), Duration::ZERO);
            let error = soon(lease.release()).await.unwrap_err();
            assert!(matches!(error, Error::Lost(Loss::Refused(_))), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_late_release_does_not_end_the_lease_of_the_next_holder() {
    let host = Host::start().await;
    let client = host.http();
    let lease = acquired(client.lock("k").ttl(ms(60_000))).await;
    client.locks().force_release("lock:k", None).await.unwrap();
    let next = soon(client.lock("k").hold()).await.unwrap();
    let error = soon(lease.release()).await.unwrap_err();
    assert!(matches!(error, Error::Lost(Loss::Refused(_))), "{error}");
    let status = host.status("lock:k").await.unwrap();
    assert_eq!(status.holders[0].fence, Some(next.fence));
}

#[tokio::test]
async fn a_dropped_lease_is_released() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock("k").ttl(ms(60_000))).await;
        let notice = lease.notice();
        drop(lease);
        host.until_free("lock:k").await;
        assert!(!notice.is_lost(), "what was given back is not lost");
    }
}

#[tokio::test]
async fn a_lease_that_is_dropped_while_the_server_is_unreachable_is_released_later() {
    let (host, proxy, client) = connected_by("http").await;
    let lease = acquired(client.lock("k").ttl(ms(60_000))).await;
    proxy.refuse_all();
    drop(lease);
    tokio::time::sleep(ms(100)).await;
    proxy.pass();
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn a_release_that_fails_goes_on_in_the_background() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    let lease = acquired(client.lock("k").ttl(ms(60_000))).await;
    proxy.refuse_all();
    soon(lease.release()).await.unwrap_err();
    proxy.pass();
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn a_release_that_is_dropped_half_way_goes_on_in_the_background() {
    let (host, proxy, client) = connected_by("ws").await;
    let lease = acquired(client.lock("k").ttl(ms(60_000))).await;
    proxy.swallow_all();
    let release = tokio::time::timeout(ms(50), lease.release()).await;
    assert!(release.is_err(), "it cannot have been answered");
    proxy.refuse_all();
    proxy.pass();
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn a_kept_lease_is_neither_released_nor_renewed() {
    let host = Host::start().await;
    let client = host.http();
    let held = acquired(client.lock("k").ttl(TTL)).await.keep();
    let status = host.status("lock:k").await.unwrap();
    assert_eq!(
        (status.holders[0].fence, status.holders[0].owner.clone()),
        (Some(held.fence), held.owner)
    );
    // Only its expiry ends it.
    host.until_free("lock:k").await;
}

/// A process that was stopped and continues: all its timers are late at once.
#[test]
fn a_process_that_was_stopped_for_too_long_finds_its_lease_lost() {
    let (sender, address) = std::sync::mpsc::channel::<SocketAddr>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let host = Host::start().await;
            sender.send(host.address).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let address = address.recv().unwrap();
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    client.block_on(async {
        let client = Client::builder(format!("http://{address}"))
            .build()
            .unwrap();
        let lease = acquired(client.lock("k").ttl(TTL)).await;
        std::thread::sleep(TTL * 2);
        assert!(!lease.is_held());
        tokio::time::sleep(TTL).await;
        assert!(!lease.is_held(), "late timers renew nothing");
        let error = soon(lease.release()).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
    });
}

/// After that there is nothing to release.
#[tokio::test]
async fn a_release_does_not_wait_for_a_silent_server_beyond_the_end_of_the_lease() {
    let (_host, proxy, client) = connected_by("http").await;
    let lease = acquired(client.lock("k").ttl(TTL)).await;
    proxy.swallow_all();
    let error = soon(lease.release()).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error}");
}
