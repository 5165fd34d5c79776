//! Locks are acquired, released, inspected and listed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{force_release, fresh_name, held_by, is_free, long, release, take};
use crate::store::{ListError, ListRequest, LockStore};
use crate::{Kind, LockKey, LockName};

pub async fn a_lock_is_free_then_held_then_free_again(store: Arc<dyn LockStore>) {
    let name = fresh_name("lifecycle");
    assert_eq!(held_by(&*store, &name).await, None);

    let lease = take(&*store, &name, "a", long()).await;
    assert_eq!(lease.name(), &name);
    assert_eq!(lease.owner.as_str(), "a");
    assert_eq!(
        lease.expires_at.remaining(lease.acquired_at),
        long().as_duration()
    );
    assert_eq!(held_by(&*store, &name).await, Some(lease.clone()));

    let status = store.inspect(&name).await.unwrap();
    assert!(lease.is_live(status.now));
    assert_eq!(status.outcome.waiters, 0);
    assert_eq!(status.outcome.kind, Some(Kind::Exclusive));

    assert_eq!(release(&*store, &lease).await, Ok(lease));
    assert_eq!(held_by(&*store, &name).await, None);
    assert!(is_free(&*store, &name).await);
}

pub async fn locks_are_independent(store: Arc<dyn LockStore>) {
    let (one, other) = (fresh_name("one"), fresh_name("other"));
    let first = take(&*store, &one, "a", long()).await;
    let second = take(&*store, &other, "a", long()).await;
    release(&*store, &first).await.unwrap();
    assert_eq!(held_by(&*store, &other).await, Some(second));
}

/// Including names that are longer than a store's keys, or special in its query language.
pub async fn names_that_differ_in_one_byte_are_different_locks(store: Arc<dyn LockStore>) {
    let base = fresh_name("x").to_string();
    let key = &base[LockName::PREFIX.len()..];
    let filler = "y".repeat(LockKey::MAX_BYTES - key.len() - 1);
    let variants = [
        format!("{key}{filler}1"),
        format!("{key}{filler}2"),
        format!("{key}*"),
        format!("{key}%"),
        format!("{key}_"),
        format!("{key}'"),
        format!("{key}{{}}"),
        format!("{key} "),
        format!("{key}\u{e9}"),
        key.to_uppercase(),
        key.to_owned(),
    ];
    for (index, key) in variants.iter().enumerate() {
        let name = LockName::global(&LockKey::parse(key).unwrap());
        let owner = format!("owner {index}");
        let lease = take(&*store, &name, &owner, long()).await;
        assert_eq!(held_by(&*store, &name).await, Some(lease));
    }
}

pub async fn a_listing_shows_every_held_lock_once(store: Arc<dyn LockStore>) {
    let root = fresh_name("list").to_string();
    let mut expected = BTreeSet::new();
    for index in 0..57 {
        let name = LockName::parse(&format!("{root}:{index}")).unwrap();
        let lease = take(&*store, &name, "a", long()).await;
        match index % 5 {
            0 => drop(release(&*store, &lease).await.unwrap()),
            _ => drop(expected.insert(name.to_string())),
        }
    }
    for limit in [1, 7, 1000] {
        let mut seen = BTreeSet::new();
        let mut cursor = None;
        loop {
            let request = ListRequest {
                prefix: root.clone(),
                limit,
                cursor,
            };
            let page = store.list(&request).await.unwrap();
            assert!(page.locks.len() <= limit);
            for status in page.locks {
                assert!(status.holders.iter().all(|lease| lease.is_live(page.now)));
                let name = status.name.to_string();
                assert!(seen.insert(name.clone()), "{name} was listed twice");
            }
            match page.cursor {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, expected, "with a limit of {limit}");
    }
}

pub async fn a_listing_can_be_narrowed_by_prefix(store: Arc<dyn LockStore>) {
    let root = fresh_name("prefix").to_string();
    for key in ["a:1", "a:2", "ab:1", "b:1", "a%", "*"] {
        let name = LockName::parse(&format!("{root}:{key}")).unwrap();
        take(&*store, &name, "a", long()).await;
    }
    for (prefix, expected) in [
        ("", 6),
        (":a", 4),
        (":a:", 2),
        (":*", 1),
        (":a%", 1),
        (":c", 0),
    ] {
        let request = ListRequest {
            prefix: format!("{root}{prefix}"),
            limit: 100,
            cursor: None,
        };
        let page = store.list(&request).await.unwrap();
        assert_eq!(page.locks.len(), expected, "prefix {prefix:?}");
    }
}

pub async fn a_foreign_cursor_is_refused(store: Arc<dyn LockStore>) {
    for cursor in ["", "nonsense", "\0", "-1"] {
        let request = ListRequest {
            limit: 10,
            cursor: Some(cursor.to_owned()),
            ..ListRequest::default()
        };
        let page = store.list(&request).await;
        assert!(matches!(page, Err(ListError::BadCursor)), "{cursor:?}");
    }
}

pub async fn the_store_is_healthy(store: Arc<dyn LockStore>) {
    store.health().await.unwrap();
    let name = fresh_name("healthy");
    take(&*store, &name, "a", long()).await;
    assert!(force_release(&*store, &name, None).await.is_ok());
}

/// Other cases may use the store at the same time, so there is no upper bound.
pub async fn held_locks_are_counted(store: Arc<dyn LockStore>) {
    for number in 0..3 {
        take(
            &*store,
            &fresh_name("counted"),
            &format!("{number}"),
            long(),
        )
        .await;
    }
    assert!(store.counts().await.unwrap().keys >= 3);
}
