//! Adds functions with locks to an existing axum application: the server's router is mounted under `/api`.
//!
//! The prefix keeps the application's own `/health`. Both share the same orders: functions change them, and the routes of the
//! application show them.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use forrst_server::{Context, FunctionError, Server};
use forrst_stores::MemoryStore;
use reqwest::Client;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{RwLock, oneshot};

type Orders = Arc<RwLock<BTreeMap<u32, String>>>;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Order {
    id: u32,
    status: String,
}

/// A function, at `/api/forrst`.
async fn set_status(_: Context, order: Order, orders: Orders) -> Result<Order, FunctionError> {
    orders.write().await.insert(order.id, order.status.clone());
    Ok(order)
}

/// A route of the application.
async fn show(State(orders): State<Orders>, Path(id): Path<u32>) -> Result<String, StatusCode> {
    let orders = orders.read().await;
    let status = orders.get(&id).ok_or(StatusCode::NOT_FOUND)?;
    Ok(format!("Order {id} is {status}"))
}

/// A request that sets the status of order 7 under a lock on that order.
fn set(status: &str) -> Value {
    json!({
        "protocol": {"name": "forrst", "version": "0.1.0"},
        "id": status,
        "call": {"function": "orders.setStatus", "arguments": {"id": 7, "status": status}},
        "extensions": [{
            "urn": "urn:forrst:ext:atomicLock",
            "options": {"key": "order:7", "ttl": {"value": 10, "unit": "second"}},
        }],
    })
}

async fn get_page(client: &Client, url: String) -> reqwest::Result<String> {
    let response = client.get(&url).send().await?;
    let (status, text) = (response.status().as_u16(), response.text().await?);
    println!("GET  {url} → {status} {text}");
    Ok(text)
}

async fn post(client: &Client, url: String, body: Value) -> reqwest::Result<Value> {
    let answer = client.post(&url).json(&body).send().await?;
    let (status, answer) = (answer.status().as_u16(), answer.json().await?);
    println!("POST {url} → {status} {answer}");
    Ok(answer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let orders = Orders::default();
    let state = orders.clone();
    let server = Server::builder()
        .store(Arc::new(MemoryStore::new()))
        .function("orders.setStatus", "1.0.0", move |context, order| {
            set_status(context, order, state.clone())
        })
        .build()?;
    let app = Router::new()
        .route("/orders/{id}", get(show))
        .route("/health", get(async || "the application is fine"))
        .with_state(orders)
        .nest("/api", server.router());

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let home = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let serving = tokio::spawn(serving.into_future());

    let client = Client::new();
    assert_eq!(
        get_page(&client, format!("{home}/health")).await?,
        "the application is fine"
    );
    assert_eq!(
        get_page(&client, format!("{home}/api/health")).await?,
        r#"{"status":"healthy"}"#
    );

    let paid = post(&client, format!("{home}/api/forrst"), set("paid")).await?;
    assert_eq!(paid["result"]["status"], "paid");
    assert_eq!(paid["extensions"][0]["data"]["acquired"], true);
    assert_eq!(
        get_page(&client, format!("{home}/orders/7")).await?,
        "Order 7 is paid"
    );

    let frame =
        json!({"jsonrpc": "2.0", "id": 1, "method": "forrst.call", "params": set("shipped")});
    let shipped = post(&client, format!("{home}/api/rpc"), frame).await?;
    assert_eq!(shipped["result"]["result"]["status"], "shipped");
    assert_eq!(
        get_page(&client, format!("{home}/orders/7")).await?,
        "Order 7 is shipped"
    );

    // The server first: it answers the calls that wait for a lock, so that axum does not have to wait for them.
    server.shut_down(Duration::from_secs(5)).await;
    let _ = stop.send(());
    serving.await??;
    println!("One port, one process: the routes of the application, and functions with locks");
    Ok(())
}
