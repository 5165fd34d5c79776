//! Requests about locks as clients send them, and what is in the answers.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::http::request;

/// A lock of the function `demo.echo`, or of all functions.
#[derive(Debug, Clone)]
pub struct Lock {
    /// The key in requests of clients.
    pub key: String,
    /// Whether it is one lock for all functions.
    pub is_global: bool,
}

impl Lock {
    /// A lock for all functions.
    pub fn global(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            is_global: true,
        }
    }

    /// The key as system functions name it.
    pub fn full_key(&self) -> String {
        if self.is_global {
            format!("lock:{}", self.key)
        } else {
            format!("lock:demo.echo:{}", self.key)
        }
    }

    /// Requests the lock, without a wait.
    pub fn acquire(&self, owner: &str, ttl: Duration) -> Value {
        let mut arguments = json!({"key": self.key, "owner": owner, "ttl": milliseconds(ttl)});
        if !self.is_global {
            arguments["function"] = "demo.echo".into();
        }
        lock_function("acquire", arguments)
    }

    /// As [`acquire`](Self::acquire), with a wait.
    pub fn acquire_within(&self, owner: &str, ttl: Duration, block: Duration) -> Value {
        let mut request = self.acquire(owner, ttl);
        request["call"]["arguments"]["block"] = milliseconds(block);
        request
    }

    /// A call of `demo.echo` with this lock.
    pub fn locked_call(&self, owner: &str, ttl: Duration, auto_release: bool) -> Value {
        let echo = request("demo.echo", json!({"said": owner}));
        let mut request = self.around(echo, owner, ttl);
        request["extensions"][0]["options"]["auto_release"] = auto_release.into();
        request
    }

    /// A call with this lock, which is released after it.
    pub fn around(&self, mut request: Value, owner: &str, ttl: Duration) -> Value {
        request["extensions"] = json!([{"urn": "urn:forrst:ext:atomicLock", "options": {
            "key": self.key,
            "scope": if self.is_global { "global" } else { "function" },
            "owner": owner,
            "ttl": milliseconds(ttl),
        }}]);
        request
    }

    /// Releases the lease with this fence.
    pub fn release(&self, owner: &str, fence: u64) -> Value {
        let fence = format!("{fence:015}");
        let arguments = json!({"key": self.full_key(), "owner": owner, "fence": fence});
        lock_function("release", arguments)
    }

    /// Changes the expiry of the lease with this fence.
    pub fn extend(&self, owner: &str, fence: u64, ttl: Duration) -> Value {
        let mut request = self.release(owner, fence);
        request["call"]["function"] = function_urn("extend").into();
        request["call"]["arguments"]["ttl"] = milliseconds(ttl);
        request
    }

    /// Releases the lock, whichever owner holds it.
    pub fn force_release(&self) -> Value {
        lock_function("force-release", json!({"key": self.full_key()}))
    }

    /// Requests the waiters for the lock.
    pub fn waiters(&self) -> Value {
        lock_function("waiters", json!({"key": self.full_key()}))
    }

    /// Requests the holder of the lock.
    pub fn status(&self) -> Value {
        lock_function("status", json!({"key": self.full_key()}))
    }
}

/// All locks that are held, up to a thousand.
pub fn list() -> Value {
    lock_function("list", json!({"limit": 1000}))
}

fn lock_function(name: &str, arguments: Value) -> Value {
    request(&function_urn(name), arguments)
}

fn function_urn(name: &str) -> String {
    format!("urn:cline:forrst:ext:atomic-lock:fn:{name}")
}

fn milliseconds(duration: Duration) -> Value {
    let value = u64::try_from(duration.as_millis()).unwrap();
    json!({"value": value, "unit": "millisecond"})
}

/// The answer of a server.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// The whole response.
    pub body: Value,
}

/// A lease, as shown in a grant or by `status`. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The owner.
    pub owner: String,
    /// The fence.
    pub fence: u64,
    /// The expiry.
    pub expires_at: u64,
}

impl Answer {
    /// The code of the error, if it is one.
    pub fn code(&self) -> Option<&str> {
        self.body["errors"][0]["code"].as_str()
    }

    /// The lease that was granted by `acquire` or to a locked call.
    pub fn granted(&self) -> Option<Shown> {
        let data = match &self.body["extensions"][0]["data"] {
            Value::Null => &self.body["result"],
            data => data,
        };
        (data["acquired"] == true).then(|| shown(data))
    }

    /// The lease of the holder, in the answer of `status`.
    ///
    /// # Panics
    ///
    /// When it is not the answer of `status`.
    #[track_caller]
    pub fn holder(&self) -> Option<Shown> {
        let result = &self.body["result"];
        match result["locked"].as_bool() {
            Some(locked) => locked.then(|| shown(result)),
            None => panic!("not the answer of `status`: {self:?}"),
        }
    }

    /// When the lock of a `status` was granted.
    pub fn acquired_at(&self) -> u64 {
        moment(&self.body["result"]["acquired_at"])
    }

    /// The owners in the answer of `waiters`.
    pub fn waiting(&self) -> Vec<&str> {
        let waiters = self.body["result"]["waiters"].as_array().unwrap();
        let owners = waiters
            .iter()
            .map(|waiter| waiter["owner"].as_str().unwrap());
        owners.collect()
    }

    /// The full keys in the answer of `list`.
    pub fn listed(&self) -> Vec<&str> {
        let locks = self.body["result"]["locks"].as_array().unwrap();
        let keys = locks.iter().map(|lock| lock["key"].as_str().unwrap());
        keys.collect()
    }
}

fn shown(lease: &Value) -> Shown {
    Shown {
        owner: lease["owner"].as_str().unwrap().to_owned(),
        fence: lease["fence"].as_str().unwrap().parse().unwrap(),
        expires_at: moment(&lease["expires_at"]),
    }
}

/// A time in an answer, as milliseconds since 1970.
pub fn moment(text: &Value) -> u64 {
    let time = humantime::parse_rfc3339(text.as_str().unwrap()).unwrap();
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since_epoch.as_millis()).unwrap()
}
