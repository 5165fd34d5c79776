//! The vectors of the profile `core` against a server that has nothing but what the published specification of atomicLock asks for:
//! no fences, no queue, no node, no headers, no HTTP statuses, and times in whole seconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use forrst_conformance::{Options, Profile, Transport, run};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::runner::read_request;

const LOCK: &str = "urn:forrst:ext:atomicLock";
const FUNCTIONS: &str = "urn:cline:forrst:ext:atomic-lock:fn:";

/// A failure has a code and details.
type Outcome = Result<Value, (String, Value)>;

struct Lock {
    owner: String,
    acquired_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    until: Instant,
}

#[derive(Clone, Default)]
struct Core {
    locks: Arc<Mutex<HashMap<String, Lock>>>,
    counters: Arc<Mutex<HashMap<String, u64>>>,
}

impl Core {
    async fn start() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let core = Self::default();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(core.clone().serve(stream));
            }
        });
        url
    }

    async fn serve(self, mut stream: TcpStream) {
        let Some(request) = read_request(&mut stream).await else {
            return;
        };
        let (outcome, data) = self.answer(&request).await;
        let mut body = json!({
            "protocol": {"name": "forrst", "version": "0.1.0"},
            "id": request["id"],
        });
        match outcome {
            Ok(result) => body["result"] = result,
            Err((code, details)) => {
                body["result"] = Value::Null;
                body["errors"] =
                    json!([{"code": code, "message": "It failed", "details": details}]);
            }
        }
        if let Some(data) = data {
            body["extensions"] = json!([{"urn": LOCK, "data": data}]);
        }
        let body = body.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let _ = stream.write_all((head + &body).as_bytes()).await;
    }

    /// The outcome, and the data of the lock.
    async fn answer(&self, request: &Value) -> (Outcome, Option<Value>) {
        let options = &request["extensions"][0]["options"];
        if options.is_null() {
            return (self.call(request), None);
        }
        let (Some(key), Some(ttl)) = (options["key"].as_str(), duration(&options["ttl"])) else {
            return (failed("INVALID_ARGUMENTS", json!({})), None);
        };
        let scope = options["scope"].as_str().unwrap_or("function");
        let full_key = match scope {
            "global" => format!("lock:{key}"),
            _ => format!(
                "lock:{}:{key}",
                request["call"]["function"].as_str().unwrap()
            ),
        };
        let owner = options["owner"].as_str().map_or_else(uuid, str::to_owned);
        let give_up = duration(&options["block"]).map(|block| Instant::now() + block);
        let expires_at = loop {
            if let Some(expires_at) = self.acquire(&full_key, &owner, ttl) {
                break expires_at;
            }
            let mut details = json!({"key": key, "scope": scope, "full_key": full_key});
            let code = match give_up {
                Some(give_up) if Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
                Some(_) => {
                    details["waited"] = options["block"].clone();
                    "LOCK_TIMEOUT"
                }
                None => "LOCK_ACQUISITION_FAILED",
            };
            return (
                failed(code, details),
                Some(json!({"key": key, "acquired": false})),
            );
        };
        let outcome = self.call(request);
        if options["auto_release"] != false {
            self.locks.lock().unwrap().remove(&full_key);
        }
        let data = json!({
            "key": key, "acquired": true, "owner": owner, "scope": scope, "expires_at": time(expires_at)
        });
        (outcome, Some(data))
    }

    fn acquire(&self, full_key: &str, owner: &str, ttl: Duration) -> Option<DateTime<Utc>> {
        let mut locks = self.locks.lock().unwrap();
        locks.retain(|_, lock| lock.until > Instant::now());
        if locks.contains_key(full_key) {
            return None;
        }
        let acquired_at = Utc::now();
        let expires_at = acquired_at + ttl;
        let lock = Lock {
            owner: owner.to_owned(),
            acquired_at,
            expires_at,
            until: Instant::now() + ttl,
        };
        locks.insert(full_key.to_owned(), lock);
        Some(expires_at)
    }

    fn call(&self, request: &Value) -> Outcome {
        let function = request["call"]["function"].as_str().unwrap();
        let arguments = &request["call"]["arguments"];
        match function {
            "demo.echo" => Ok(arguments.clone()),
            "payments.charge" => Ok(json!({"charge_id": "c", "status": "succeeded"})),
            "billing.generateReport" => Ok(json!({"rows": 1})),
            "demo.fail" => failed(arguments["code"].as_str().unwrap(), json!({})),
            "demo.panic" => failed("INTERNAL_ERROR", json!({})),
            "demo.counter" => {
                let mut counters = self.counters.lock().unwrap();
                let value = counters.entry(arguments["name"].to_string()).or_default();
                *value += 1;
                Ok(json!({"value": *value}))
            }
            _ => self.lock_function(function.strip_prefix(FUNCTIONS).unwrap(), arguments),
        }
    }

    fn lock_function(&self, function: &str, arguments: &Value) -> Outcome {
        let key = arguments["key"].as_str().unwrap();
        let mut locks = self.locks.lock().unwrap();
        locks.retain(|_, lock| lock.until > Instant::now());
        let lock = locks.get(key);
        match (function, lock) {
            ("status", None) => Ok(json!({"key": key, "locked": false})),
            ("status", Some(lock)) => Ok(json!({
                "key": key,
                "locked": true,
                "owner": lock.owner,
                "acquired_at": time(lock.acquired_at),
                "expires_at": time(lock.expires_at),
                "ttl_remaining": (lock.until - Instant::now()).as_secs(),
            })),
            (_, None) => failed("LOCK_NOT_FOUND", json!({"key": key})),
            ("release", Some(lock)) if arguments["owner"] != lock.owner.as_str() => {
                failed("LOCK_OWNERSHIP_MISMATCH", json!({"key": key}))
            }
            (_, Some(_)) => {
                locks.remove(key);
                let mut result = json!({"released": true, "key": key});
                if function == "force-release" {
                    result["forced"] = json!(true);
                }
                Ok(result)
            }
        }
    }
}

fn failed(code: &str, details: Value) -> Outcome {
    Err((code.to_owned(), details))
}

fn duration(value: &Value) -> Option<Duration> {
    let seconds = match value["unit"].as_str()? {
        "second" => 1,
        "minute" => 60,
        "hour" => 3600,
        other => panic!("the specification has no unit {other}"),
    };
    Some(Duration::from_secs(value["value"].as_u64()? * seconds))
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn uuid() -> String {
    let random = fastrand::u128(..);
    let hex = format!("{random:032x}");
    format!(
        "{}-{}-4{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    )
}

#[tokio::test]
async fn the_core_profile_asks_for_nothing_but_the_specification() {
    let url = Core::start().await;
    let options = Options {
        profile: Profile::Core,
        transports: vec![Transport::Http],
        ..Options::default()
    };
    let report = run(&url, &options).await.unwrap();
    let counts = report.counts();
    assert_eq!((counts.failed, counts.skipped), (0, 0), "{report}");
    assert!(counts.passed > 20, "{report}");
    // The whole contract asks for more.
    let whole = Options {
        profile: Profile::Extended,
        filter: Some("release-of-a-lock-never-held".to_owned()),
        ..options
    };
    assert_eq!(run(&url, &whole).await.unwrap().counts().failed, 1);
}
