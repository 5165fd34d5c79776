//! A custom extension: a call that names `urn:acme:forrst:ext:audit` leaves a record of who called what, and why.
//!
//! It runs inside `atomicLock`, in whatever order the request lists the two, so it knows the lock that the call holds.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use forrst_protocol::{ErrorCode, ErrorObject, Errors, Urn};
use forrst_server::{
    Around, Context, Extension, ExtensionCall, FunctionError, Next, Outcome, Server,
};
use forrst_stores::MemoryStore;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

const AUDIT: &str = "urn:acme:forrst:ext:audit";

type Records = Arc<Mutex<Vec<String>>>;

#[derive(Default)]
struct Audit(Records);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    reason: String,
}

impl Extension for Audit {
    fn urn(&self) -> &str {
        AUDIT
    }

    /// Invalid options end the request here, before any lock is acquired.
    fn prepare(&self, call: &ExtensionCall<'_>) -> Result<Box<dyn Around>, Errors> {
        let options = call.options.cloned().unwrap_or_default();
        let wrong = |error: serde_json::Error| {
            ErrorObject::new(ErrorCode::InvalidArguments, error.to_string())
                .at(call.pointer().key("options"))
        };
        let Options { reason } = options.deserialize().map_err(wrong)?;
        Ok(Box::new(AuditedCall {
            urn: call.urn.clone(),
            reason,
            records: self.0.clone(),
        }))
    }
}

struct AuditedCall {
    urn: Urn,
    reason: String,
    records: Records,
}

#[derive(Deserialize)]
struct Caller {
    user: String,
}

#[async_trait]
impl Around for AuditedCall {
    async fn run(self: Box<Self>, context: Context, next: Next) -> Outcome {
        let sent = context.caller_context();
        let caller = sent.and_then(|sent| sent.deserialize::<Caller>().ok());
        let user = caller.map_or("unknown".to_owned(), |caller| caller.user);
        let function = context.function().clone();
        let lease = context.lease();
        let lock = lease.map_or("no lock".to_owned(), |lease| lease.key().to_owned());

        let outcome = next.run(context).await;

        let result = match &outcome.result {
            Ok(_) => "done",
            Err(errors) => errors.as_slice()[0].code.as_str(),
        };
        let reason = self.reason;
        let mut records = self.records.lock().await;
        records.push(format!("{user}, {function}, {lock}, {reason}: {result}"));
        let data = json!({"record": records.len()});
        outcome.with_data(self.urn, &data)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Account {
    account: String,
}

async fn close(_: Context, Account { account }: Account) -> Result<Value, FunctionError> {
    match account.as_str() {
        "acc_1" => Ok(json!({"closed": account})),
        _ => Err(FunctionError::application(
            "ACCOUNTS_NOT_EMPTY",
            "Not empty",
        )),
    }
}

async fn send(server: &Server, account: &str, extensions: Value) -> serde_json::Result<Value> {
    let request = json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": account,
        "call": {"function": "accounts.close", "arguments": {"account": account}},
        "context": {"user": "ada"},
        "extensions": extensions,
    });
    let response = server.handle(request.to_string().as_bytes()).await;
    serde_json::to_value(response)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let audit = Audit::default();
    let records = audit.0.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .extension(audit)
        .function("accounts.close", "1.0.0", close)
        .build()?;

    let audit = json!({"urn": AUDIT, "options": {"reason": "requested by letter"}});
    let lock = json!({
        "urn": "urn:forrst:ext:atomicLock",
        "options": {"key": "acc_1", "ttl": {"value": 10, "unit": "second"}},
    });
    let closed = send(&server, "acc_1", json!([audit, lock])).await?;
    let data = &closed["extensions"][0];
    println!("The answer has the number of the record: {data}");
    assert_eq!(closed["result"]["closed"], "acc_1");
    assert_eq!(*data, json!({"urn": AUDIT, "data": {"record": 1}}));

    let failed = send(&server, "acc_2", json!([audit])).await?;
    assert_eq!(failed["errors"][0]["code"], "ACCOUNTS_NOT_EMPTY");

    let no_reason = send(&server, "acc_1", json!([lock, {"urn": AUDIT}])).await?;
    let error = &no_reason["errors"][0];
    println!("Without a reason the call is refused: {error}");
    assert_eq!(error["code"], "INVALID_ARGUMENTS");
    assert_eq!(error["source"]["pointer"], "/extensions/1/options");

    let records = records.lock().await;
    println!("The records:\n  {}", records.join("\n  "));
    let expected = [
        "ada, accounts.close, lock:accounts.close:acc_1, requested by letter: done",
        "ada, accounts.close, no lock, requested by letter: ACCOUNTS_NOT_EMPTY",
    ];
    assert_eq!(*records, expected);
    Ok(())
}
