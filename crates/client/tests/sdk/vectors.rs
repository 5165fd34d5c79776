//! The client does what the vectors for clients say (`conformance/client`).

use std::time::{Duration, Instant};

use forrst_client::{Acquire, Client, Error, Fence, Key, Lease, Lock};
use forrst_conformance::{ClientVector, Stub, embedded_client_vectors};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_does_what_the_vectors_say() {
    let vectors = embedded_client_vectors().unwrap();
    let only = std::env::var("FORRST_CLIENT_VECTOR").ok();
    let played = vectors
        .into_iter()
        .filter(|vector| only.as_ref().is_none_or(|only| vector.name.contains(only)))
        .map(|vector| tokio::spawn(play(vector)));
    let failures: Vec<String> = join_all(played)
        .await
        .into_iter()
        .filter_map(|failure| failure.unwrap())
        .collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// Plays one vector, and returns what was wrong.
async fn play(vector: ClientVector) -> Option<String> {
    let name = vector.name.clone();
    let stub = Stub::start(vector).unwrap();
    let instructions = stub.instructions();
    let mut player = Player::new(&instructions);
    let mut outcome = Vec::new();
    for action in instructions["do"].as_array().unwrap() {
        outcome.push(player.run(action).await);
    }
    let outcome = Value::Array(outcome);
    let verdict = stub.judge(&outcome).await;
    let mismatches: Vec<String> = verdict
        .mismatches
        .iter()
        .map(|m| format!("  {m}"))
        .collect();
    (!verdict.passed()).then(|| format!("{name}: {outcome}\n{}", mismatches.join("\n")))
}

struct Player {
    client: Client,
    lease: Option<Lease>,
    /// Whether the lease was taken from this player by a release.
    was_released: bool,
}

impl Player {
    fn new(instructions: &Value) -> Self {
        let settings = &instructions["client"];
        let mut builder = Client::builder(instructions["url"].as_str().unwrap());
        if let Some(key) = settings["api_key"].as_str() {
            builder = builder.api_key(key);
        }
        if let Some(time) = span(&settings["timeout_ms"]) {
            builder = builder.timeout(time);
        }
        Self {
            client: builder.build().unwrap(),
            lease: None,
            was_released: false,
        }
    }

    async fn run(&mut self, action: &Value) -> Value {
        let (name, options) = action.as_object().unwrap().iter().next().unwrap();
        match name.as_str() {
            "acquire" => match self.acquisition(options).acquire().await {
                Ok(lease) => {
                    let shown = shown(&lease);
                    self.lease = Some(lease);
                    shown
                }
                Err(error) => failed(&error),
            },
            "abandon" => {
                let after = span(&options["after_ms"]).unwrap();
                let acquiring = self.acquisition(options).acquire();
                let given_up = timeout(after, acquiring).await.is_err();
                json!({"abandoned": given_up})
            }
            "hold" => {
                let lease = self.lease.as_ref().unwrap();
                let start = Instant::now();
                let held = timeout(span(&options["for_ms"]).unwrap(), lease.lost()).await;
                let after = u64::try_from(start.elapsed().as_millis()).unwrap();
                json!({"lost": held.is_ok(), "after_ms": after, "held": lease.is_held()})
            }
            "sleep" => {
                sleep(span(&options["for_ms"]).unwrap()).await;
                json!({"ok": true})
            }
            "is_held" => json!({"held": self.lease.as_ref().is_some_and(Lease::is_held)}),
            "release" => match self.lease.take() {
                Some(lease) => {
                    self.was_released = true;
                    outcome_of(lease.release().await)
                }
                // The type system forbids what the vector tries.
                None if self.was_released => json!({"ok": true}),
                None => panic!("nothing is held"),
            },
            "drop" => {
                self.lease = None;
                json!({"ok": true})
            }
            "release_by" => {
                let text = |name: &str| options[name].as_str();
                let fence = text("fence").map(|fence| fence.parse::<Fence>().unwrap());
                let locks = self.client.locks();
                let released = locks.release(text("key").unwrap(), text("owner").unwrap(), fence);
                outcome_of(released.await)
            }
            "call" => self.call(options).await,
            "with_lock" => self.with_lock(options).await,
            "settle" => json!({"ok": self.client.settle(Duration::from_secs(20)).await}),
            other => panic!("unknown action {other}"),
        }
    }

    fn acquisition(&self, options: &Value) -> Acquire {
        let mut acquire = match options["keys"].as_array() {
            Some(keys) => self.client.lock_all(keys.iter().map(key)),
            None => self.client.lock(options["key"].as_str().unwrap()),
        };
        if let Some(ttl) = span(&options["ttl_ms"]) {
            acquire = acquire.ttl(ttl);
        }
        if let Some(wait) = span(&options["wait_ms"]) {
            acquire = acquire.wait(wait);
        }
        if let Some(deadline) = span(&options["deadline_ms"]) {
            acquire = acquire.deadline(deadline);
        }
        if options["shared"] == true {
            acquire = acquire.shared();
        }
        if let Some(limit) = limit(options) {
            acquire = acquire.limit(limit);
        }
        for (name, set) in [
            ("owner", Acquire::owner as fn(Acquire, String) -> Acquire),
            ("function", Acquire::function),
            ("note", Acquire::note),
        ] {
            if let Some(text) = options[name].as_str() {
                acquire = set(acquire, text.to_owned());
            }
        }
        acquire
    }

    async fn call(&self, options: &Value) -> Value {
        let function = options["function"].as_str().unwrap();
        let mut call = self
            .client
            .call::<&Value, Value>(function, &options["arguments"]);
        if let lock @ Value::Object(_) = &options["lock"] {
            call = call.lock(lock_of(lock));
        }
        if options["idempotent"] == true {
            call = call.idempotent();
        }
        if let Some(deadline) = span(&options["deadline_ms"]) {
            call = call.deadline(deadline);
        }
        match call.await {
            Ok(result) => json!({"ok": true, "result": result}),
            Err(error) => failed(&error),
        }
    }

    /// A body under a lock, which is cancelled when the lock is lost.
    async fn with_lock(&self, options: &Value) -> Value {
        let lease = match self.acquisition(options).acquire().await {
            Ok(lease) => lease,
            Err(error) => {
                let mut shown = failed(&error);
                shown["body"] = "not_run".into();
                return shown;
            }
        };
        let fence = lease.fence().to_string();
        let body = sleep(span(&options["body_ms"]).unwrap());
        let (mut shown, body) = tokio::select! {
            () = body => match (options["body_fails"] == true, lease.release().await) {
                (true, _) => (json!({"ok": false, "error": "body"}), "failed"),
                (false, released) => (outcome_of(released), "completed"),
            },
            loss = lease.lost() => (failed(&Error::Lost(loss)), "cancelled"),
        };
        shown["fence"] = fence.into();
        shown["body"] = body.into();
        shown
    }
}

fn lock_of(options: &Value) -> Lock {
    let mut lock = match options["keys"].as_array() {
        Some(keys) => Lock::keys(keys.iter().map(key)),
        None => Lock::key(options["key"].as_str().unwrap()),
    };
    if let Some(ttl) = span(&options["ttl_ms"]) {
        lock = lock.ttl(ttl);
    }
    if let Some(wait) = span(&options["wait_ms"]) {
        lock = lock.wait(wait);
    }
    if options["global"] == true {
        lock = lock.global();
    }
    if options["shared"] == true {
        lock = lock.shared();
    }
    if let Some(limit) = limit(options) {
        lock = lock.limit(limit);
    }
    if options["keep"] == true {
        lock = lock.keep();
    }
    if options["renew"] == true {
        lock = lock.renew();
    }
    for (name, set) in [
        ("owner", Lock::owner as fn(Lock, String) -> Lock),
        ("note", Lock::note),
    ] {
        if let Some(text) = options[name].as_str() {
            lock = set(lock, text.to_owned());
        }
    }
    lock
}

fn key(entry: &Value) -> Key {
    let Some(own) = entry.as_object() else {
        return Key::new(entry.as_str().unwrap());
    };
    let key = Key::new(own["key"].as_str().unwrap());
    match (entry["shared"] == true, limit(entry)) {
        (true, _) => key.shared(),
        (false, Some(limit)) => key.limit(limit),
        (false, None) => key.exclusive(),
    }
}

fn limit(options: &Value) -> Option<u32> {
    u32::try_from(options["limit"].as_u64()?).ok()
}

fn span(milliseconds: &Value) -> Option<Duration> {
    milliseconds.as_u64().map(Duration::from_millis)
}

fn shown(lease: &Lease) -> Value {
    json!({
        "ok": true,
        "fence": lease.fence().to_string(),
        "owner": lease.owner(),
        "full_keys": lease.full_keys(),
        "remaining_ms": u64::try_from(lease.remaining().as_millis()).unwrap(),
    })
}

fn outcome_of(result: Result<(), Error>) -> Value {
    match result {
        Ok(()) => json!({"ok": true}),
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> Value {
    let kind = match error {
        Error::Contended(_) => "contended",
        Error::TimedOut(_) => "timed_out",
        Error::Lost(_) => "lost",
        Error::Mismatch(_) => "mismatch",
        Error::NotHeld(_) => "not_held",
        Error::AlreadyReleased(_) => "already_released",
        Error::DeadlineExceeded(_) => "deadline",
        Error::Unavailable(_) => "unavailable",
        Error::Unreachable(_) => "unreachable",
        Error::Interrupted(_) => "lost_answer",
        Error::RateLimited(_) => "rate_limited",
        Error::Unauthorized(_) => "unauthorized",
        Error::Forbidden(_) => "forbidden",
        Error::Rejected(_) => "rejected",
        Error::Function(_) => "failed",
        Error::Protocol(_) => "not_understood",
        other => panic!("not expected: {other}"),
    };
    let code = error.code().map(forrst_protocol::ErrorCode::as_str);
    json!({"ok": false, "error": kind, "code": code})
}
