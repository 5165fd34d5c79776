//! Shared locks, limited locks, and locks on several keys.

use forrst_client::{Error, Held, Key, Lock, LockKind, LockStatus, Withdrawn};
use serde_json::{Value, json};

use crate::host::{Host, acquired, ms, soon, until};

#[tokio::test]
async fn shared_leases_are_held_together() {
    let host = Host::start().await;
    let client = host.http();
    let reader = || client.lock("config").shared();
    let leases = [acquired(reader()).await, acquired(reader()).await];
    let writer = soon(client.lock("config").acquire()).await;
    assert!(matches!(writer, Err(Error::Contended(_))), "{writer:?}");
    let status = soon(client.locks().status("lock:config")).await;
    let status = status.unwrap().held().unwrap();
    assert_eq!((status.kind, status.holder_count), (LockKind::Shared, 2));
    for lease in leases {
        soon(lease.release()).await.unwrap();
    }
    soon(client.lock("config").hold()).await.unwrap();
}

#[tokio::test]
async fn as_many_leases_as_the_limit_hold_a_lock() {
    let host = Host::start().await;
    let client = host.websocket();
    let licence = || client.lock("licences").limit(2).note("render");
    let first = acquired(licence()).await;
    let _second = acquired(licence()).await;
    let third = soon(licence().acquire()).await;
    assert!(matches!(third, Err(Error::Contended(_))), "{third:?}");
    let status = soon(client.locks().status("lock:licences")).await;
    let status = status.unwrap().held().unwrap();
    let full = LockKind::Limit {
        limit: 2,
        available: 0,
    };
    assert_eq!(status.kind, full);
    assert_eq!(status.holders[1].note.as_deref(), Some("render"));
    soon(first.release()).await.unwrap();
    acquired(licence()).await;
}

#[tokio::test]
async fn several_keys_are_one_lease() {
    let host = Host::start().await;
    for client in host.clients() {
        let lease = acquired(client.lock_all(["b", "a"]).ttl(ms(300))).await;
        assert_eq!(lease.full_keys(), ["lock:b", "lock:a"]);
        for key in ["lock:a", "lock:b"] {
            let status = soon(client.locks().status(key))
                .await
                .unwrap()
                .held()
                .unwrap();
            assert_eq!(status.holders[0].full_keys, ["lock:a", "lock:b"]);
            assert_eq!(status.holders[0].fence, Some(lease.fence()));
        }
        // One renewal extends it on all keys.
        tokio::time::sleep(ms(600)).await;
        assert!(lease.is_held());
        soon(lease.release()).await.unwrap();
        assert!(
            !soon(client.locks().status("lock:a"))
                .await
                .unwrap()
                .is_held()
        );
    }
}

#[tokio::test]
async fn a_function_runs_under_several_keys_of_several_kinds() {
    let host = Host::start().await;
    let client = host.http();
    soon(client.lock("rates").shared().hold()).await.unwrap();
    let keys = [Key::new("account:1"), Key::new("rates").shared()];
    let lock = Lock::keys(keys).global().keep().note("transfer");
    let call = client.call::<Value, Value>("test.context", json!({}));
    let response = soon(call.lock(lock).response()).await.unwrap();
    let held = Held::from_response(&response).unwrap();
    assert_eq!(held.keys, ["account:1", "rates"]);
    assert_eq!(held.full_keys, ["lock:account:1", "lock:rates"]);
    let status = soon(client.locks().status("lock:account:1")).await;
    let status = status.unwrap().held().unwrap();
    assert_eq!(status.holders[0].note.as_deref(), Some("transfer"));
}

#[tokio::test]
async fn waiters_are_listed_and_an_attempt_can_be_withdrawn() {
    let host = Host::start().await;
    let client = host.http();
    let locks = client.locks();
    let _holder = acquired(client.lock("a")).await;
    let waiting = client.lock_all(["a", "b"]).owner("me").attempt("1");
    let waiting = tokio::spawn(waiting.note("nightly").wait(ms(60_000)).hold());
    until("it waits", || host.server.locks().waiting() == 1).await;
    let reserved = soon(locks.status("lock:b")).await.unwrap();
    assert_eq!(reserved, LockStatus::Free { waiters: 1 });
    let queue = soon(locks.waiters("lock:b", None)).await.unwrap();
    assert_eq!((queue[0].position, queue[0].owner.as_str()), (1, "me"));
    assert_eq!(queue[0].note.as_deref(), Some("nightly"));
    let withdrawn = soon(locks.withdraw("lock:b", "me", "1")).await;
    assert_eq!(withdrawn.unwrap(), Withdrawn::Waiting);
    let ended = soon(waiting).await.unwrap();
    assert!(matches!(ended, Err(Error::AlreadyReleased(_))), "{ended:?}");
    let withdrawn = soon(locks.withdraw("lock:b", "me", "2")).await;
    assert_eq!(withdrawn.unwrap(), Withdrawn::Unknown);
}

#[tokio::test]
async fn a_set_that_is_given_up_leaves_every_queue() {
    let host = Host::start().await;
    for client in host.clients() {
        let holder = acquired(client.lock("a")).await;
        let waiting = tokio::spawn(client.lock_all(["b", "a"]).wait(ms(60_000)).hold());
        until("it waits", || host.server.locks().waiting() == 1).await;
        waiting.abort();
        // The free key was reserved.
        soon(acquired(client.lock("b").wait(ms(60_000)))).await;
        soon(holder.release()).await.unwrap();
        until("no call waits", || host.server.locks().waiting() == 0).await;
    }
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_server_says_is_left() {
    let host = Host::start().await;
    let client = host.http();
    let attempt = || client.lock("k").owner("me").attempt("1");
    soon(attempt().ttl(ms(60_000)).hold()).await.unwrap();
    // The same lease again, of which there is more than the ttl of this request.
    let again = acquired(attempt().ttl(ms(2_000))).await;
    assert!(again.remaining() > ms(30_000), "{:?}", again.remaining());
}
