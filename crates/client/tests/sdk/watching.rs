//! Leases that are watched, so that their early end is noticed long before their next renewal, and locks that are watched.

use std::time::Duration;

use forrst_client::{Client, Error, Lease, LockStatus, Loss};
use forrst_server::Limits;
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::host::{Host, acquired, ms, soon, until};
use crate::proxy::connected_by;
use crate::raw_server::{RawServer, Reply};

/// The next renewal is in twenty minutes.
const LONG: Duration = Duration::from_secs(60 * 60);

async fn check_lost(lease: Lease) {
    let loss = soon(lease.lost()).await;
    assert!(matches!(loss, Loss::Refused(_)), "{loss}");
    assert!(!lease.is_held() && lease.remaining().is_zero());
    assert_eq!(soon(lease.notice().lost()).await, loss, "lost stays lost");
    let error = soon(lease.release()).await.unwrap_err();
    assert!(matches!(error, Error::Lost(Loss::Refused(_))), "{error}");
}

#[tokio::test]
async fn a_forced_release_is_noticed_before_the_next_renewal() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock("k").ttl(LONG)).await;
        let force = host.http();
        force.locks().force_release("lock:k", None).await.unwrap();
        // Another client takes it at once, and is not affected.
        let next = acquired(force.lock("k").ttl(LONG)).await;
        check_lost(lease).await;
        assert!(next.is_held());
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_release_by_its_token_is_noticed_before_the_next_renewal() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock("k").ttl(LONG)).await;
        let (owner, fence) = (lease.owner().to_owned(), Some(lease.fence()));
        let locks = host.http().locks();
        soon(locks.release("lock:k", &owner, fence)).await.unwrap();
        check_lost(lease).await;
    }
}

#[tokio::test]
async fn a_shortened_ttl_is_noticed_when_it_is_over() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock("k").ttl(LONG)).await;
        let (owner, fence) = (lease.owner().to_owned(), Some(lease.fence()));
        let shortened = host.http().locks().extend("lock:k", &owner, fence, ms(200));
        soon(shortened).await.unwrap();
        check_lost(lease).await;
    }
}

#[tokio::test]
async fn the_early_end_of_a_lease_on_several_keys_is_noticed() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock_all(["a", "b", "c"]).ttl(LONG)).await;
        let locks = host.http().locks();
        soon(locks.force_release("lock:c", None)).await.unwrap();
        check_lost(lease).await;
    }
}

#[tokio::test]
async fn of_several_shared_leases_only_the_one_that_has_ended_is_lost() {
    let host = Host::start().await;
    for client in host.clients() {
        let shared = || acquired(client.lock("k").shared().ttl(LONG));
        let (first, second, third) = (shared().await, shared().await, shared().await);
        let locks = host.http().locks();
        let forced = locks.force_release("lock:k", Some(second.fence()));
        soon(forced).await.unwrap();
        check_lost(second).await;
        let forced = locks.force_release("lock:k", Some(first.fence()));
        soon(forced).await.unwrap();
        check_lost(first).await;
        assert!(third.is_held());
        soon(third.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_the_restarted_server_does_not_know_is_lost() {
    for connect in [Host::http, Host::websocket, Host::unix] {
        let host = Host::start().await;
        let lease = acquired(connect(&host).lock("k").ttl(LONG)).await;
        host.stop().await;
        // In memory, so it has no leases.
        let _host = host.start_again().await;
        check_lost(lease).await;
    }
}

#[tokio::test]
async fn a_lease_is_watched_again_after_its_connection_broke() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        let lease = acquired(client.lock("k").ttl(LONG)).await;
        host.until_watched(1).await;
        proxy.refuse_all();
        host.until_watched(0).await;
        proxy.pass();
        host.until_watched(1).await;
        let locks = host.http().locks();
        locks.force_release("lock:k", None).await.unwrap();
        check_lost(lease).await;
    }
}

/// An answer of `acquire` and of `extend`.
fn granted() -> Value {
    json!({
        "key": "k", "full_key": "lock:k", "owner": "me", "fence": "000000000000001", "acquired": true,
        "extended": true, "expires_at": "2030-01-01T00:00:00.000Z", "elapsed_ms": 0, "ttl_remaining_ms": 9000,
    })
}

/// A server that answers requests to watch like this, and counts them.
async fn refusing(reply: fn() -> Reply) -> (RawServer, Client) {
    let server = RawServer::replying(move |_, request| {
        let function = request["call"]["function"].as_str().unwrap_or_default();
        match function.ends_with(":watch") {
            true => reply(),
            false => Reply::success(&granted()),
        }
    });
    let server = server.await;
    let client = server.client();
    (server, client)
}

fn count(server: &RawServer, function: &str) -> usize {
    let received = server.received();
    let calls = received.iter().map(|one| &one.body["call"]["function"]);
    let is_it = |called: &&Value| called.as_str().is_some_and(|name| name.ends_with(function));
    calls.filter(is_it).count()
}

/// An older server, one that does not allow it, one that wants fewer requests, one that loses them, and one that answers nonsense.
#[tokio::test]
async fn a_lease_that_cannot_be_watched_is_renewed() {
    let replies: [fn() -> Reply; 6] = [
        || Reply::error("FUNCTION_NOT_FOUND", &json!({})),
        || Reply::error("FORBIDDEN", &json!({})),
        || Reply::error("RATE_LIMITED", &json!({})),
        || Reply::Disconnect,
        || Reply::Silence,
        || Reply::success(&json!({"locked": true})),
    ];
    let renewed = replies
        .into_iter()
        .enumerate()
        .map(async |(number, reply)| {
            let (server, client) = refusing(reply).await;
            let lease = acquired(client.lock("k").ttl(ms(9_000))).await;
            until("it is renewed twice", || count(&server, ":extend") >= 2).await;
            assert!(lease.is_held(), "{number}");
            let tries = count(&server, ":watch");
            assert!((1..100).contains(&tries), "{number}: {tries} tries");
        });
    join_all(renewed).await;
}

/// Such as one that is not among the holders that a server lists.
#[tokio::test]
async fn a_lease_that_only_its_watch_does_not_know_is_held() {
    let (server, client) =
        refusing(|| Reply::success(&json!({"locked": true, "revision": "1"}))).await;
    let lease = acquired(client.lock("k").ttl(LONG)).await;
    // First because less than half of the ttl is left.
    until("it is renewed early", || count(&server, ":extend") >= 3).await;
    assert!(lease.is_held());
    assert!(count(&server, ":watch") < 20, "it asks all the time");
}

/// The watch says that the lease is held, and no renewal is answered.
#[tokio::test]
async fn a_watch_does_not_prolong_a_lease() {
    let server = RawServer::replying(|_, request| {
        let function = request["call"]["function"].as_str().unwrap_or_default();
        let holder = json!({"fence": "000000000000001"});
        match function.rsplit(':').next() {
            Some("watch") => Reply::success(&json!({"revision": "1", "holders": [holder]})),
            Some("extend") => Reply::Silence,
            _ => Reply::success(&granted()),
        }
    });
    let server = server.await;
    let lease = acquired(server.client().lock("k").ttl(ms(4_000))).await;
    let until = lease.held_until();
    let loss = soon(lease.lost()).await;
    assert!(matches!(loss, Loss::Expired(Some(_))), "{loss}");
    assert_eq!(lease.held_until(), until);
    assert!(count(&server, ":watch") >= 1);
}

/// A server that answers at once, whatever it is asked.
#[tokio::test]
async fn a_server_that_does_not_wait_is_not_asked_all_the_time() {
    let unchanged = || {
        let holder = json!({"fence": "000000000000001"});
        Reply::success(&json!({"locked": true, "revision": "1", "holders": [holder]}))
    };
    let (server, client) = refusing(unchanged).await;
    let lease = acquired(client.lock("k").ttl(ms(9_000))).await;
    until("it is renewed", || count(&server, ":extend") >= 1).await;
    assert!(lease.is_held());
    let tries = count(&server, ":watch");
    assert!((1..100).contains(&tries), "{tries} tries");
}

#[tokio::test]
async fn a_lease_that_is_released_kept_or_dropped_is_no_longer_watched() {
    let host = Host::start().await;
    for end in [
        |lease: Lease| drop(lease),
        |lease: Lease| drop(lease.keep()),
        |lease: Lease| drop(tokio::spawn(lease.release())),
    ] {
        let client = host.http();
        let lease = acquired(client.lock("k").ttl(LONG)).await;
        host.until_watched(1).await;
        end(lease);
        // Over HTTP, a request that nobody waits for ends with its connection.
        host.until_watched(0).await;
        let _ = host.http().locks().force_release("lock:k", None).await;
        host.until_free("lock:k").await;
    }
}

#[tokio::test]
async fn more_leases_than_are_watched_at_once_are_watched_in_turn() {
    let host = Host::start().await;
    let client = host.websocket();
    let mut leases = Vec::new();
    for number in 0..70 {
        leases.push(acquired(client.lock(number.to_string()).ttl(LONG)).await);
    }
    host.until_watched(64).await;
    let rest = leases.split_off(64);
    let first = leases.pop().unwrap();
    drop(leases);
    host.until_watched(7).await;
    for lease in rest.into_iter().chain([first]) {
        let locks = host.http().locks();
        locks.force_release(lease.full_key(), None).await.unwrap();
        check_lost(lease).await;
    }
}

/// Requests that watch have a connection of their own: the only permit of this one is for everything else.
#[tokio::test]
async fn a_watch_does_not_delay_a_release_on_a_connection_with_one_permit() {
    let host = Host::start_with(Limits {
        max_in_flight: 1,
        ..Limits::default()
    })
    .await;
    for client in [host.websocket(), host.unix()] {
        let first = acquired(client.lock("a").ttl(LONG)).await;
        let second = acquired(client.lock("b").ttl(LONG)).await;
        // The other watch waits for its permit, on that connection.
        host.until_watched(1).await;
        soon(first.release()).await.unwrap();
        soon(second.release()).await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_can_be_watched() {
    let host = Host::start().await;
    for client in host.clients() {
        let locks = client.locks();
        let mut changes = Box::pin(locks.watch("lock:k"));
        let mut next = async || soon(changes.next()).await.unwrap().unwrap();
        assert_eq!(next().await.status, LockStatus::Free { waiters: 0 });
        let held = soon(client.lock("k").ttl(LONG).owner("me").hold()).await;
        let fence = held.unwrap().fence;
        let change = next().await;
        let json: Value = serde_json::from_str(change.json.get()).unwrap();
        assert_eq!(
            (&json["owner"], &json["locked"]),
            (&json!("me"), &json!(true))
        );
        let info = change.status.held().unwrap();
        assert_eq!(info.holders[0].fence, Some(fence));
        // Not a change.
        soon(locks.extend("lock:k", "me", None, LONG))
            .await
            .unwrap();
        soon(locks.release("lock:k", "me", None)).await.unwrap();
        assert_eq!(next().await.status, LockStatus::Free { waiters: 0 });
    }
}

#[tokio::test]
async fn a_watched_lock_is_watched_on_after_an_outage() {
    for scheme in ["http", "ws"] {
        let (host, proxy, client) = connected_by(scheme).await;
        let mut changes = Box::pin(client.locks().watch("lock:k"));
        soon(changes.next()).await.unwrap().unwrap();
        proxy.refuse_all();
        let error = soon(changes.next()).await.unwrap().unwrap_err();
        assert!(
            matches!(error, Error::Unreachable(_) | Error::Interrupted(_)),
            "{error}"
        );
        soon(changes.next()).await.unwrap().unwrap_err();
        soon(host.http().lock("k").ttl(LONG).hold()).await.unwrap();
        proxy.pass();
        let change = soon(async {
            loop {
                if let Ok(change) = changes.next().await.unwrap() {
                    return change;
                }
            }
        });
        assert!(change.await.status.is_held());
    }
}

#[tokio::test]
async fn watching_a_name_that_is_no_full_key_is_refused() {
    let host = Host::start().await;
    for client in host.clients() {
        let mut changes = Box::pin(client.locks().watch("k"));
        for _ in 0..2 {
            let error = soon(changes.next()).await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Rejected(_)), "{error}");
            assert_eq!(
                error.failure().unwrap().pointer(),
                Some("/call/arguments/key")
            );
        }
    }
}
