//! Operations on locks by their full keys, and the system functions about the server.

use std::collections::BTreeSet;

use forrst_client::{Error, HealthStatus, LockInfo, LockKind, LockStatus};
use futures_util::TryStreamExt;

use crate::host::{Host, ms, soon};

#[tokio::test]
async fn a_lock_can_be_inspected_extended_and_released() {
    let host = Host::start().await;
    for client in host.clients() {
        let locks = client.locks();
        assert!(!soon(locks.status("lock:k")).await.unwrap().is_held());
        let held = soon(client.lock("k").ttl(ms(5_000)).owner("me").hold())
            .await
            .unwrap();
        let status = soon(locks.status("lock:k")).await.unwrap().held().unwrap();
        let holder = status.holder().unwrap();
        assert_eq!(
            (status.full_key.as_str(), holder.owner.as_str()),
            ("lock:k", "me")
        );
        assert_eq!(
            (holder.fence, holder.expires_at),
            (Some(held.fence), held.expires_at)
        );
        assert!(holder.ttl_remaining <= ms(5_000) && !holder.ttl_remaining.is_zero());
        assert!(holder.acquired_at < holder.expires_at);
        assert_eq!((status.kind, status.holder_count), (LockKind::Exclusive, 1));

        let extended = locks.extend("lock:k", "me", Some(held.fence), ms(60_000));
        let extended = soon(extended).await.unwrap();
        assert_eq!(extended.fence, held.fence);
        assert!(extended.expires_at > held.expires_at + ms(30_000));

        let foreign = soon(locks.release("lock:k", "another", None)).await;
        assert!(matches!(foreign, Err(Error::Mismatch(_))), "{foreign:?}");
        let stale = soon(locks.extend(
            "lock:k",
            "me",
            Some("000000000000001".parse().unwrap()),
            ms(1),
        ));
        if held.fence.number() != 1 {
            assert!(matches!(stale.await, Err(Error::Mismatch(_))));
        }
        soon(locks.release("lock:k", "me", None)).await.unwrap();
        let free = soon(locks.extend("lock:k", "me", None, ms(1_000))).await;
        assert!(matches!(free, Err(Error::AlreadyReleased(_))), "{free:?}");
        let never = soon(locks.release("lock:never", "me", None)).await;
        assert!(matches!(never, Err(Error::NotHeld(_))), "{never:?}");
        let never = soon(locks.force_release("lock:never", None)).await;
        assert!(matches!(never, Err(Error::NotHeld(_))), "{never:?}");

        let next = soon(client.lock("k").owner("next").hold()).await.unwrap();
        let stale = soon(locks.force_release("lock:k", Some(held.fence))).await;
        assert!(matches!(stale, Err(Error::Mismatch(_))), "{stale:?}");
        let forced = locks.force_release("lock:k", Some(next.fence));
        soon(forced).await.unwrap();
    }
}

#[tokio::test]
async fn all_locks_are_listed_page_by_page() {
    let host = Host::start().await;
    let client = host.websocket();
    let locks = client.locks();
    for index in 0..1_205 {
        soon(client.lock(format!("a:{index:04}")).hold())
            .await
            .unwrap();
    }
    soon(client.lock("b").hold()).await.unwrap();

    let first = soon(locks.list("lock:a:", Some(2), None)).await.unwrap();
    let second = locks.list("lock:a:", Some(2), first.cursor.as_deref());
    let second = soon(second).await.unwrap();
    assert_eq!((first.locks.len(), second.locks.len()), (2, 2));
    assert!(first.locks.iter().all(|lock| !second.locks.contains(lock)));

    let all: Vec<_> = soon(locks.list_all("lock:a:").try_collect()).await.unwrap();
    assert_eq!(all.len(), 1_205);
    let keys: BTreeSet<_> = all.into_iter().map(|lock| lock.full_key).collect();
    assert_eq!(keys.len(), 1_205);
    assert!(keys.iter().all(|key| key.starts_with("lock:a:")));
    let none: Vec<_> = soon(locks.list_all("lock:c").try_collect()).await.unwrap();
    assert!(none.is_empty());
    let wrong = soon(locks.list("", Some(0), None)).await;
    assert!(matches!(wrong, Err(Error::Rejected(_))), "{wrong:?}");
}

#[tokio::test]
async fn a_query_also_returns_the_json_of_the_answer() {
    let host = Host::start().await;
    let client = host.http();
    soon(client.lock("k").hold()).await.unwrap();
    let locks = client.locks();
    let (status, json) = soon(locks.status("lock:k").with_json()).await.unwrap();
    assert_eq!(
        serde_json::from_str::<LockStatus>(json.get()).unwrap(),
        status
    );
    let page = soon(locks.list("", None, None).raw()).await.unwrap();
    let lock: LockInfo = serde_json::from_str(page.locks[0].get()).unwrap();
    assert_eq!(lock.full_key, "lock:k");
}

#[tokio::test]
async fn a_server_reports_its_health_and_capabilities() {
    let host = Host::start().await;
    for client in host.clients() {
        soon(client.ping()).await.unwrap();
        let health = soon(client.health()).await.unwrap();
        assert_eq!(health.status, HealthStatus::Healthy);
        assert_eq!(health.components["store"].status, HealthStatus::Healthy);
        assert!(health.components["store"].latency.is_some());
        let capabilities = soon(client.capabilities()).await.unwrap();
        assert!(
            capabilities
                .functions
                .iter()
                .any(|name| name == "payments.charge")
        );
        assert!(
            capabilities
                .extensions
                .iter()
                .any(|e| e.urn == "urn:forrst:ext:atomicLock")
        );
        let all = soon(client.describe(None, None)).await.unwrap();
        assert!(all["functions"].as_array().unwrap().len() > 10);
        let one = soon(client.describe(Some("payments.charge"), Some("1.0.0")))
            .await
            .unwrap();
        assert_eq!(one["functions"][0]["name"], "payments.charge");
        let none = soon(client.describe(Some("payments.nothing"), None)).await;
        assert!(matches!(none, Err(Error::Rejected(_))), "{none:?}");
    }
}
