//! Which locks a caller may use, and which owner tokens it sees.

use serde_json::{Value, json};

use forrst_testkit::{Lock, request};

use crate::access::client::{Transport, acquire, code, lock};
use crate::access::keys::Guarded;

const ALL: &[&str] = &["--role", "call", "--role", "observe", "--role", "admin"];
const CALL_AND_OBSERVE: &[&str] = &["--role", "call", "--role", "observe"];

fn ask(guarded: &Guarded, key: usize, request: &Value) -> Value {
    Transport::Http.ask(&guarded.address(), Some(&guarded.keys[key]), request)
}

#[test]
fn a_confined_caller_can_use_only_its_own_locks() {
    let confined = &[
        ALL,
        &["--locks", "lock:billing:*", "--locks", "lock:demo.echo:*"],
    ]
    .concat();
    let guarded = Guarded::start(&[("billing", confined)]);
    let address = guarded.address();
    let key = Some(guarded.keys[0].as_str());
    let ttl = json!({"value": 1, "unit": "minute"});
    for (name, is_reached) in [
        ("billing:7", true),
        ("payments:7", false),
        ("billing", false),
    ] {
        let full = format!("lock:{name}");
        let with_lock = Lock::global(name).around(
            request("demo.echo", json!({})),
            "me",
            std::time::Duration::from_secs(60),
        );
        for transport in Transport::ALL {
            for request in [
                acquire(name),
                lock("status", json!({"key": full})),
                lock("extend", json!({"key": full, "owner": "o", "ttl": ttl})),
                lock("release", json!({"key": full, "owner": "o"})),
                lock(
                    "withdraw",
                    json!({"key": full, "owner": "o", "attempt": "1"}),
                ),
                lock("waiters", json!({"key": full})),
                lock("force-release", json!({"key": full})),
                with_lock.clone(),
            ] {
                let answer = transport.ask(&address, key, &request);
                let is_forbidden = code(&answer) == Some("FORBIDDEN");
                assert_eq!(
                    !is_forbidden, is_reached,
                    "{transport:?} {request}\n{answer:#}"
                );
                if is_forbidden {
                    assert_eq!(answer["errors"][0]["details"]["key"], full);
                }
            }
        }
    }
    // The full key of a function's lock has the name of the function.
    let own = acquire("k");
    let mut of_echo = own.clone();
    of_echo["call"]["arguments"]["function"] = "demo.echo".into();
    assert_eq!(code(&ask(&guarded, 0, &of_echo)), None);
    let mut of_another = own;
    of_another["call"]["arguments"]["function"] = "demo.sleep".into();
    assert_eq!(code(&ask(&guarded, 0, &of_another)), Some("FORBIDDEN"));
}

#[test]
fn a_call_with_a_forbidden_lock_neither_locks_nor_runs() {
    let confined = &[ALL, &["--locks", "lock:mine:*"]].concat();
    let guarded = Guarded::start(&[("confined", confined), ("all", ALL)]);
    let count = request("demo.counter", json!({"name": "n"}));
    let minute = std::time::Duration::from_secs(60);
    let out_of_reach = Lock::global("theirs").around(count.clone(), "me", minute);
    let answer = ask(&guarded, 0, &out_of_reach);
    assert_eq!(code(&answer), Some("FORBIDDEN"));
    let pointer = &answer["errors"][0]["source"]["pointer"];
    assert_eq!(pointer, "/extensions/0/options/key");
    let status = ask(&guarded, 1, &lock("status", json!({"key": "lock:theirs"})));
    assert_eq!(status["result"]["locked"], false);
    assert_eq!(ask(&guarded, 1, &count)["result"]["value"], 1);
}

#[test]
fn a_confined_caller_lists_only_locks_that_it_may_use() {
    let one = &[ALL, &["--locks", "lock:b:*"]].concat();
    let two = &[ALL, &["--locks", "lock:a:*", "--locks", "lock:*:3"]].concat();
    let guarded = Guarded::start(&[("all", ALL), ("one", one), ("two", two)]);
    for group in ["a", "b", "c"] {
        for number in 0..5 {
            let taken = ask(&guarded, 0, &acquire(&format!("{group}:{number}")));
            assert_eq!(code(&taken), None);
        }
    }
    let list = |key: usize, prefix: &str, limit: usize| {
        let mut seen = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let mut arguments = json!({"limit": limit, "prefix": prefix});
            if !cursor.is_null() {
                arguments["cursor"] = cursor;
            }
            let page = ask(&guarded, key, &lock("list", arguments))["result"].take();
            let locks = page["locks"].as_array().unwrap();
            assert!(locks.len() <= limit);
            seen.extend(
                locks
                    .iter()
                    .map(|lock| lock["key"].as_str().unwrap().to_owned()),
            );
            cursor = page["cursor"].clone();
            let Some(name) = cursor.as_str() else { break };
            assert_eq!(
                Some(name),
                seen.last().map(String::as_str),
                "a cursor names another caller's lock"
            );
        }
        seen.sort();
        seen
    };
    let names = |groups: &[(&str, &[u32])]| -> Vec<String> {
        let names = groups.iter();
        names
            .flat_map(|(group, all)| all.iter().map(move |n| format!("lock:{group}:{n}")))
            .collect()
    };
    for limit in [1, 2, 3, 100] {
        assert_eq!(list(0, "", limit).len(), 15);
        assert_eq!(list(1, "", limit), names(&[("b", &[0, 1, 2, 3, 4])]));
        assert_eq!(list(1, "lock:b:1", limit), names(&[("b", &[1])]));
        assert_eq!(list(1, "lock:a", limit), names(&[]));
        let expected = [("a", &[0, 1, 2, 3, 4][..]), ("b", &[3]), ("c", &[3])];
        assert_eq!(list(2, "", limit), names(&expected));
    }
}

#[test]
fn the_owner_is_shown_to_admins_and_to_the_caller_that_took_the_lock() {
    let guarded = Guarded::start(&[
        ("taker", CALL_AND_OBSERVE),
        ("other", CALL_AND_OBSERVE),
        ("admin", &["--role", "admin"]),
    ]);
    let mut taken = acquire("k");
    taken["call"]["arguments"]["owner"] = "the-token".into();
    assert_eq!(ask(&guarded, 0, &taken)["result"]["owner"], "the-token");
    let status = lock("status", json!({"key": "lock:k"}));
    let list = lock("list", json!({}));
    for (key, sees) in [(0, "the-token"), (1, "hmac:"), (2, "the-token")] {
        let shown = ask(&guarded, key, &status)["result"].take();
        let listed = ask(&guarded, key, &list)["result"]["locks"][0].take();
        for lock in [&shown, &listed] {
            let owner = lock["owner"].as_str().unwrap();
            assert!(owner.starts_with(sees), "{owner}");
            assert!(owner.len() < 24, "{owner}");
            assert_eq!(lock["caller"], "taker");
        }
        assert_eq!(shown["owner"], listed["owner"]);
    }
    let hidden = ask(&guarded, 1, &status)["result"]["owner"].take();
    let with_hash = json!({"key": "lock:k", "owner": hidden});
    let answer = ask(&guarded, 1, &lock("release", with_hash));
    assert_eq!(code(&answer), Some("LOCK_OWNERSHIP_MISMATCH"));
}

/// The owner `worker-1` as it is shown to a caller that may not see it.
fn masked_owner(guarded: &Guarded) -> String {
    let mut taken = acquire("k");
    taken["call"]["arguments"]["owner"] = "worker-1".into();
    ask(guarded, 0, &taken);
    let shown = ask(guarded, 1, &lock("status", json!({"key": "lock:k"})));
    shown["result"]["owner"].as_str().unwrap().to_owned()
}

/// If clients could compute the hash, they could find tokens that people choose by trying.
#[test]
fn a_masked_owner_cannot_be_guessed() {
    let keys: [(&str, &[&str]); 2] = [("taker", CALL_AND_OBSERVE), ("other", CALL_AND_OBSERVE)];
    let servers = [Guarded::start(&keys), Guarded::start(&keys)];
    let [one, other] = [masked_owner(&servers[0]), masked_owner(&servers[1])];
    assert_eq!(
        one,
        masked_owner(&servers[0]),
        "the same owner has the same hash"
    );
    assert_ne!(one, other, "another store has another secret");
    let hash = one.strip_prefix("hmac:").unwrap();
    assert!(hash.len() * 6 >= 96, "{hash}");
}

#[test]
fn the_owner_token_is_the_proof_whatever_the_api_key() {
    let guarded = Guarded::start(&[
        ("taker", &["--role", "call"]),
        ("other", &["--role", "call"]),
        ("admin", &["--role", "admin"]),
    ]);
    let ttl = json!({"value": 1, "unit": "minute"});
    let mut taken = acquire("k");
    taken["call"]["arguments"]["owner"] = "token".into();
    let release = |owner: &str| lock("release", json!({"key": "lock:k", "owner": owner}));
    let extend = |owner: &str| {
        lock(
            "extend",
            json!({"key": "lock:k", "owner": owner, "ttl": ttl}),
        )
    };
    for key in [0, 1, 2] {
        assert_eq!(code(&ask(&guarded, 0, &taken)), None);
        for request in [release("guess"), extend("guess")] {
            let answer = ask(&guarded, key, &request);
            assert_eq!(code(&answer), Some("LOCK_OWNERSHIP_MISMATCH"), "{key}");
        }
        assert_eq!(code(&ask(&guarded, key, &extend("token"))), None);
        assert_eq!(code(&ask(&guarded, key, &release("token"))), None);
        let again = ask(&guarded, key, &release("token"));
        assert_eq!(code(&again), Some("LOCK_ALREADY_RELEASED"));
    }
    assert_eq!(code(&ask(&guarded, 0, &taken)), None);
    let force = lock("force-release", json!({"key": "lock:k"}));
    assert_eq!(code(&ask(&guarded, 0, &force)), Some("FORBIDDEN"));
    assert_eq!(ask(&guarded, 2, &force)["result"]["forced"], true);
}

/// A lock on all of these keys, shared so that others can hold it, too.
fn acquire_set(keys: &[&str], owner: &str) -> Value {
    let ttl = json!({"value": 1, "unit": "minute"});
    let arguments = json!({"keys": keys, "owner": owner, "ttl": ttl, "mode": "shared"});
    lock("acquire", arguments)
}

#[test]
fn every_key_of_a_set_has_to_be_allowed() {
    let confined = &[ALL, &["--locks", "lock:mine:*"]].concat();
    let guarded = Guarded::start(&[("confined", confined), ("all", ALL)]);
    assert_eq!(
        code(&ask(&guarded, 0, &acquire_set(&["mine:1", "mine:2"], "me"))),
        None
    );
    let answer = ask(&guarded, 0, &acquire_set(&["mine:3", "theirs"], "me"));
    assert_eq!(code(&answer), Some("FORBIDDEN"));
    let pointer = &answer["errors"][0]["source"]["pointer"];
    assert_eq!(pointer, "/call/arguments/keys/1");
    let options = json!({"keys": ["theirs", "mine:3"], "scope": "global", "ttl": {"value": 1, "unit": "minute"}});
    let mut call = request("demo.echo", json!({}));
    call["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": options}]);
    let answer = ask(&guarded, 0, &call);
    assert_eq!(code(&answer), Some("FORBIDDEN"));
    let pointer = &answer["errors"][0]["source"]["pointer"];
    assert_eq!(pointer, "/extensions/0/options/keys/0");
    let status = ask(&guarded, 1, &lock("status", json!({"key": "lock:mine:3"})));
    assert_eq!(status["result"]["locked"], false);
}

#[test]
fn every_forbidden_key_of_a_set_is_reported() {
    let confined = &[ALL, &["--locks", "lock:mine:*"]].concat();
    let guarded = Guarded::start(&[("confined", confined)]);
    let answer = ask(
        &guarded,
        0,
        &acquire_set(&["one", "mine:1", "two", "three"], "me"),
    );
    let errors = answer["errors"].as_array().unwrap();
    let refused: Vec<(&Value, &Value, &Value)> = errors
        .iter()
        .map(|error| {
            (
                &error["code"],
                &error["source"]["pointer"],
                &error["details"]["key"],
            )
        })
        .collect();
    let expected = [(0, "lock:one"), (2, "lock:two"), (3, "lock:three")];
    let expected: Vec<(Value, Value, Value)> = expected
        .into_iter()
        .map(|(index, key)| {
            let pointer = format!("/call/arguments/keys/{index}");
            (json!("FORBIDDEN"), json!(pointer), json!(key))
        })
        .collect();
    let expected: Vec<(&Value, &Value, &Value)> =
        expected.iter().map(|(a, b, c)| (a, b, c)).collect();
    assert_eq!(refused, expected);
}

/// With the token, an admin could release a set that it may not release by force.
#[test]
fn a_confined_admin_sees_no_token_of_a_set_with_a_forbidden_key() {
    let admin = &["--role", "admin", "--locks", "lock:mine:*"];
    let guarded = Guarded::start(&[("admin", admin), ("one", ALL), ("two", ALL)]);
    for (key, keys, owner) in [
        (1, ["mine:1", "mine:2"], "inside"),
        (2, ["mine:1", "theirs"], "outside"),
    ] {
        assert_eq!(code(&ask(&guarded, key, &acquire_set(&keys, owner))), None);
    }
    let status = lock("status", json!({"key": "lock:mine:1"}));
    let list = lock("list", json!({"prefix": "lock:mine:1"}));
    for shown in [
        ask(&guarded, 0, &status)["result"].take(),
        ask(&guarded, 0, &list)["result"]["locks"][0].take(),
    ] {
        let holders = &shown["holders"];
        assert_eq!(holders[0]["owner"], "inside");
        let hidden = holders[1]["owner"].as_str().unwrap();
        assert!(hidden.starts_with("hmac:"), "{hidden}");
        assert_eq!(
            (&holders[0]["caller"], &holders[1]["caller"]),
            (&json!("one"), &json!("two"))
        );
        let release = lock("release", json!({"key": "lock:mine:1", "owner": hidden}));
        let answer = ask(&guarded, 0, &release);
        assert_eq!(code(&answer), Some("LOCK_OWNERSHIP_MISMATCH"));
    }
    // Their own callers see them, and so does an admin that may use every lock.
    let shown = ask(&guarded, 2, &status);
    assert_eq!(shown["result"]["holders"][1]["owner"], "outside");
}

#[test]
fn a_confined_admin_ends_only_as_many_leases_as_the_server_can_check() {
    let admin = &["--role", "admin", "--locks", "lock:mine:*"];
    let guarded = Guarded::start(&[("admin", admin), ("caller", ALL)]);
    let force = lock("force-release", json!({"key": "lock:mine:1"}));
    let hold = |count: usize| {
        for number in 0..count {
            let owner = format!("owner {number}");
            let set = acquire_set(&["mine:1", "mine:2"], &owner);
            assert_eq!(code(&ask(&guarded, 1, &set)), None);
        }
    };
    hold(3);
    assert_eq!(ask(&guarded, 0, &force)["result"]["leases"], 3);
    hold(101);
    let refused = ask(&guarded, 0, &force);
    assert_eq!(code(&refused), Some("FORBIDDEN"));
    let message = refused["errors"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("101 leases hold this key"), "{message}");
    let shown = ask(&guarded, 0, &lock("status", json!({"key": "lock:mine:1"})));
    assert_eq!(shown["result"]["holder_count"], 101);
    // A lease that is shown can be ended by its fence.
    let fence = &shown["result"]["holders"][0]["fence"];
    let one = lock(
        "force-release",
        json!({"key": "lock:mine:1", "fence": fence}),
    );
    assert_eq!(ask(&guarded, 0, &one)["result"]["leases"], 1);
    assert_eq!(ask(&guarded, 0, &force)["result"]["leases"], 100);
}

#[test]
fn a_confined_caller_sees_and_ends_only_its_own_part_of_a_set() {
    let confined = &[ALL, &["--locks", "lock:mine:*"]].concat();
    let guarded = Guarded::start(&[("confined", confined), ("all", ALL)]);
    let own = acquire_set(&["mine:1", "mine:2"], "own");
    assert_eq!(code(&ask(&guarded, 0, &own)), None);
    let mixed = ask(&guarded, 1, &acquire_set(&["mine:1", "theirs"], "mixed"));
    assert_eq!(code(&mixed), None);

    let status = lock("status", json!({"key": "lock:mine:1"}));
    let shown = ask(&guarded, 0, &status);
    let holders = &shown["result"]["holders"];
    assert_eq!(
        holders[0]["full_keys"],
        json!(["lock:mine:1", "lock:mine:2"])
    );
    assert_eq!(holders[1]["full_keys"], json!(["lock:mine:1"]));
    let shown = ask(&guarded, 1, &status);
    let all = json!(["lock:mine:1", "lock:theirs"]);
    assert_eq!(shown["result"]["holders"][1]["full_keys"], all);

    // One lease has a key that is out of reach: nothing is released.
    let force = |arguments: Value| ask(&guarded, 0, &lock("force-release", arguments));
    let refused = force(json!({"key": "lock:mine:1"}));
    assert_eq!(code(&refused), Some("FORBIDDEN"));
    assert!(!refused.to_string().contains("theirs"), "{refused}");
    let by_fence = json!({"key": "lock:mine:1", "fence": mixed["result"]["fence"]});
    assert_eq!(code(&force(by_fence)), Some("FORBIDDEN"));
    let shown = ask(&guarded, 0, &status);
    assert_eq!(shown["result"]["holder_count"], 2);
    // The other can be ended by its fence.
    let fence = &shown["result"]["holders"][0]["fence"];
    let forced = force(json!({"key": "lock:mine:1", "fence": fence}));
    assert_eq!(forced["result"]["leases"], 1);
    let stale = force(json!({"key": "lock:mine:1", "fence": fence}));
    assert_eq!(code(&stale), Some("LOCK_OWNERSHIP_MISMATCH"));
    let free = force(json!({"key": "lock:mine:2"}));
    assert_eq!(code(&free), Some("LOCK_NOT_FOUND"));
    let all = lock("force-release", json!({"key": "lock:mine:1"}));
    assert_eq!(ask(&guarded, 1, &all)["result"]["leases"], 1);
}
