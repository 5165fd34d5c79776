//! Requests that arrive, but whose answers are lost.

use forrst_client::{Error, Lock, Retry};
use forrst_lock::EventKind;

use serde_json::json;

use crate::host::{Host, acquired, charging, ms, pauses_of, soon, until};
use crate::proxy::{connected_by, host_behind_proxy};
use crate::raw_server::{RawServer, Reply};

#[tokio::test]
async fn a_call_whose_answer_was_lost_is_not_repeated() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        proxy.lose_answers(1);
        let error = soon(charging(&client)).await.unwrap_err();
        assert!(matches!(error, Error::Interrupted(_)), "{error}");
        assert!(error.may_have_run());
        assert_eq!((proxy.lost_answers(), host.charges()), (1, 1));
    }
}

#[tokio::test]
async fn an_idempotent_call_whose_answer_was_lost_is_repeated() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        proxy.lose_answers(1);
        let receipt = soon(charging(&client).idempotent()).await.unwrap();
        assert_eq!(receipt.charged, 100);
        assert_eq!((proxy.lost_answers(), host.charges()), (1, 2));
    }
}

#[tokio::test]
async fn a_locked_call_whose_answer_was_lost_is_not_repeated() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().build().unwrap();
    proxy.lose_answers(1);
    let call = charging(&client).lock(Lock::key("k"));
    soon(call).await.unwrap_err();
    assert_eq!(host.charges(), 1);
}

#[tokio::test]
async fn an_acquisition_whose_answer_was_lost_gets_the_same_lease() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        proxy.lose_answers(2);
        let lease = acquired(client.lock("k")).await;
        assert_eq!(proxy.lost_answers(), 2);
        assert!(lease.is_held());
        let status = host.status("lock:k").await.unwrap();
        assert_eq!(
            (status.holders[0].fence, status.holders[0].owner.as_str()),
            (Some(lease.fence()), lease.owner())
        );
        let grants = host.server.locks().stats().count(EventKind::Acquired);
        assert_eq!(grants, 1);
        soon(lease.release()).await.unwrap();
        host.until_free("lock:k").await;
    }
}

#[tokio::test]
async fn a_lease_from_a_repeated_request_counts_from_the_first_try() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(pauses_of(ms(600))).build().unwrap();
    proxy.lose_answers(1);
    let ttl = ms(60_000);
    let acquiring = tokio::spawn(client.lock("k").ttl(ttl).acquire());
    until("the answer is lost", || proxy.lost_answers() == 1).await;
    // The second try is made later.
    let after_the_first = tokio::time::Instant::now();
    let lease = soon(acquiring).await.unwrap().unwrap();
    assert!(lease.held_until() <= after_the_first + ttl);
}

/// A refusal says nothing about the try before it, which may have been granted.
#[tokio::test]
async fn a_lease_counts_from_the_first_try_even_if_a_later_one_was_refused() {
    let granted = json!({
        "key": "k", "acquired": true, "owner": "me", "scope": "global", "full_key": "lock:k",
        "expires_at": "2099-01-01T00:00:00.000Z", "fence": "000000000000001",
    });
    let server = RawServer::start(move |before| match before {
        0 => Reply::Disconnect,
        1 => Reply::error("RATE_LIMITED", &json!({})),
        _ => Reply::success(&granted),
    })
    .await;
    let ttl = ms(60_000);
    let acquire = server.client().lock("k").ttl(ttl);
    let lease = acquired(acquire.retry(pauses_of(ms(1_200)))).await;
    let received = server.received();
    assert_eq!(received.len(), 3);
    let first = tokio::time::Instant::from_std(received[0].at);
    assert!(lease.held_until() <= first + ttl, "counted from the first");
    lease.keep();
}

#[tokio::test]
async fn an_acquisition_that_fails_releases_what_an_earlier_try_may_have_been_granted() {
    let (host, proxy) = host_behind_proxy().await;
    let slow = Retry::default().first_pause(ms(3_000)).attempts(2);
    let client = proxy.http().build().unwrap();
    proxy.lose_answers(1);
    let acquiring = tokio::spawn(client.lock("k").retry(slow).acquire());
    until("the answer is lost", || proxy.lost_answers() == 1).await;
    proxy.stop_listening();
    let error = soon(acquiring).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    proxy.listen();
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn an_acquisition_without_any_answer_leaves_no_lock_behind() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().build().unwrap();
    proxy.lose_answers(usize::MAX);
    let acquire = client.lock("k").ttl(ms(600_000)).retry(Retry::never());
    soon(acquire.acquire()).await.unwrap_err();
    host.until_free("lock:k").await;
}

/// An owner that was chosen by the caller may hold the lock by another attempt.
#[tokio::test]
async fn a_withdrawal_does_not_end_another_lease_of_the_same_owner() {
    let (host, proxy) = host_behind_proxy().await;
    let held = soon(host.http().lock("k").owner("me").hold())
        .await
        .unwrap();
    let client = proxy.http().build().unwrap();
    proxy.lose_answers(3);
    let acquire = client.lock("k").owner("me").retry(Retry::never());
    soon(acquire.acquire()).await.unwrap_err();
    assert!(soon(client.settle(ms(20_000))).await);
    let status = host.status("lock:k").await.unwrap();
    assert_eq!(status.holders[0].fence, Some(held.fence));
}

#[tokio::test]
async fn a_program_can_wait_until_all_locks_are_released() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    assert!(
        soon(client.settle(ms(20_000))).await,
        "there is nothing to do"
    );
    proxy.lose_answers(1);
    soon(client.lock("k").acquire()).await.unwrap_err();
    assert!(soon(client.settle(ms(20_000))).await);
    assert_eq!(host.status("lock:k").await, None);

    drop(acquired(client.lock("k")).await);
    assert!(soon(client.settle(ms(20_000))).await);
    assert_eq!(host.status("lock:k").await, None);

    let lease = acquired(client.lock("k")).await;
    proxy.swallow_all();
    drop(lease);
    assert!(
        !soon(client.settle(ms(50))).await,
        "the server does not answer"
    );
}

#[tokio::test]
async fn an_acquisition_that_is_given_up_without_an_answer_leaves_no_lock_behind() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    proxy.lose_answers(1);
    let error = soon(client.lock("k").acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted(_)), "{error}");
    host.until_free("lock:k").await;
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_succeeds() {
    for scheme in ["http", "ws"] {
        let (_host, proxy, client) = connected_by(scheme).await;
        let lease = acquired(client.lock("k")).await;
        proxy.lose_answers(1);
        soon(lease.release()).await.unwrap();
        assert_eq!(proxy.lost_answers(), 1);

        let held = soon(client.lock("k").hold()).await.unwrap();
        proxy.lose_answers(1);
        let locks = client.locks();
        let release = locks.release(held.full_key(), &held.owner, Some(held.fence));
        soon(release).await.unwrap();
        assert_eq!(proxy.lost_answers(), 2);
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_succeeds_even_if_the_next_client_holds_the_lock() {
    let (host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(pauses_of(ms(600))).build().unwrap();
    let lease = acquired(client.lock("k")).await;
    proxy.lose_answers(1);
    let next = tokio::spawn(host.http().lock("k").wait(ms(10_000)).hold());
    soon(lease.release()).await.unwrap();
    let next = soon(next).await.unwrap().unwrap();
    let status = host.status("lock:k").await.unwrap();
    assert_eq!(
        status.holders[0].fence,
        Some(next.fence),
        "the successor still holds it"
    );
}

#[tokio::test]
async fn a_second_release_fails() {
    let host = Host::start().await;
    let client = host.http();
    let held = soon(client.lock("k").hold()).await.unwrap();
    let locks = client.locks();
    let release = || locks.release(held.full_key(), &held.owner, Some(held.fence));
    release().await.unwrap();
    let again = release().await;
    assert!(matches!(again, Err(Error::AlreadyReleased(_))), "{again:?}");
}
