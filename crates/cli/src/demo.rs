//! The functions of `forrst serve --demo`, to try a server with.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forrst_protocol::ErrorCode;
use forrst_server::{Context, Function, FunctionError, ServerBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// Registers all of them.
pub(crate) fn register(builder: ServerBuilder) -> ServerBuilder {
    let counters = Counters::default();
    builder
        .register(
            Function::new("payments.charge", "1.0.0", charge)
                .summary("Charges a user; a demonstration, which moves no money"),
        )
        .register(
            Function::new("billing.generateReport", "1.0.0", generate_report)
                .summary("Makes a report about a month"),
        )
        .register(
            Function::new("demo.echo", "1.0.0", echo).summary("Returns its arguments as they are"),
        )
        .register(Function::new("demo.sleep", "1.0.0", sleep).summary("Takes its time"))
        .register(
            Function::new("demo.fail", "1.0.0", fail)
                .summary("Fails with the code and message of choice"),
        )
        .register(Function::new("demo.panic", "1.0.0", panic).summary("Panics"))
        .register(
            Function::new("demo.counter", "1.0.0", move |context, arguments| {
                count(context, arguments, counters.clone())
            })
            .summary(
                "Reads a number, waits, and writes it plus one: loses updates unless it is locked",
            ),
        )
}

#[derive(Deserialize, JsonSchema)]
struct Charge {
    /// Who pays.
    user_id: String,
    /// How much.
    amount: Number,
}

#[derive(Serialize, JsonSchema)]
struct Charged {
    charge_id: String,
    status: &'static str,
    user_id: String,
    amount: Number,
}

async fn charge(_: Context, charge: Charge) -> Result<Charged, FunctionError> {
    if charge.amount.as_f64().is_none_or(|amount| amount <= 0.0) {
        let error = FunctionError::new(ErrorCode::InvalidArguments, "`amount` must be positive");
        return Err(error.at_argument(["amount"]));
    }
    Ok(Charged {
        charge_id: format!("ch_{}", uuid::Uuid::new_v4().simple()),
        status: "succeeded",
        user_id: charge.user_id,
        amount: charge.amount,
    })
}

#[derive(Deserialize, JsonSchema)]
struct ReportOf {
    /// The month, such as `2024-03`.
    month: String,
}

#[derive(Serialize, JsonSchema)]
struct Report {
    report_id: String,
    month: String,
    status: &'static str,
}

async fn generate_report(_: Context, of: ReportOf) -> Result<Report, FunctionError> {
    Ok(Report {
        report_id: format!("rep_{}", uuid::Uuid::new_v4().simple()),
        month: of.month,
        status: "generated",
    })
}

async fn echo(
    _: Context,
    arguments: Map<String, Value>,
) -> Result<Map<String, Value>, FunctionError> {
    Ok(arguments)
}

#[derive(Deserialize, JsonSchema)]
struct Sleep {
    /// For how many milliseconds.
    ms: u32,
}

#[derive(Serialize, JsonSchema)]
struct Slept {
    slept_ms: u32,
}

async fn sleep(context: Context, Sleep { ms }: Sleep) -> Result<Slept, FunctionError> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(ms.into())) => Ok(Slept { slept_ms: ms }),
        () = context.cancelled() => {
            Err(FunctionError::new(ErrorCode::Cancelled, "The sleep was interrupted"))
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct Fail {
    /// A code in `SCREAMING_SNAKE_CASE`; `DEMO_FAILED` when omitted.
    code: Option<String>,
    /// What to say about it.
    message: Option<String>,
}

async fn fail(_: Context, Fail { code, message }: Fail) -> Result<Value, FunctionError> {
    let code = code.as_deref().unwrap_or("DEMO_FAILED");
    let Ok(code) = code.parse() else {
        let message = "`code` must be in SCREAMING_SNAKE_CASE";
        let error = FunctionError::new(ErrorCode::InvalidArguments, message);
        return Err(error.at_argument(["code"]));
    };
    let message = message.unwrap_or_else(|| "This function always fails".to_owned());
    Err(FunctionError::new(code, message))
}

async fn panic(_: Context, _: Map<String, Value>) -> Result<Value, FunctionError> {
    panic!("the demonstration of a panic")
}

type Counters = Arc<Mutex<HashMap<String, u64>>>;

#[derive(Deserialize, JsonSchema)]
struct Count {
    /// Which number.
    name: String,
    /// How many milliseconds to wait between reading and writing it.
    #[serde(default)]
    ms: u32,
}

#[derive(Serialize, JsonSchema)]
struct Counted {
    value: u64,
}

async fn count(_: Context, count: Count, counters: Counters) -> Result<Counted, FunctionError> {
    let open = || counters.lock().unwrap_or_else(PoisonError::into_inner);
    let read = open().get(&count.name).copied().unwrap_or_default();
    tokio::time::sleep(Duration::from_millis(count.ms.into())).await;
    open().insert(count.name, read + 1);
    Ok(Counted { value: read + 1 })
}
