//! All conformance vectors against the real server, `forrst serve --demo`, over each transport and on each store.

use forrst_conformance::{Options, Transport, run_in_turn};
use forrst_testkit::{Node, Serve, SharedPostgres, SharedRedis};

#[tokio::test(flavor = "multi_thread")]
async fn over_http() {
    check(Transport::Http, "memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    check(Transport::Http, &store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_json_rpc() {
    check(Transport::Rpc, "memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket() {
    check(Transport::Ws, "memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_by_two_nodes_on_one_redis() {
    check_in_turn(Transport::Http).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket_by_two_nodes_on_one_redis() {
    check_in_turn(Transport::Ws).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_on_postgres() {
    on_postgres(Transport::Http, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_by_two_nodes_on_one_postgres() {
    on_postgres(Transport::Http, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_websocket_by_two_nodes_on_one_postgres() {
    on_postgres(Transport::Ws, 2).await;
}

/// A call that ends at its deadline is rolled back a moment later, and a release through another node may come first. The next call
/// would see a lock that is about to be free. On one node, the order is kept.
const ASYNCHRONOUS: [&str; 2] = [
    "2-atomic-lock/deadline-ends-the-wait",
    "5-extensions/deadline-works-on-system-functions",
];

async fn on_postgres(transport: Transport, count: usize) {
    let postgres = SharedPostgres::join();
    let node = || {
        serve(&postgres.url())
            .argument("--postgres-schema")
            .argument(postgres.schema())
            .node()
    };
    let nodes: Vec<Node> = (0..count).map(|_| node()).collect();
    // A command is two round trips to another process. With more at once, a busy machine needs longer than the shortest leases last.
    let without = if count > 1 { &ASYNCHRONOUS[..] } else { &[] };
    check_all_with(&nodes, transport, without, 3).await;
}

async fn check(transport: Transport, store: &str) {
    check_all(&[serve(store).node()], transport, &[]).await;
}

async fn check_in_turn(transport: Transport) {
    let redis = SharedRedis::join();
    let node = || {
        serve(&redis.url())
            .argument("--redis-prefix")
            .argument(redis.prefix())
    };
    let nodes = [node().node(), node().node()];
    check_all(&nodes, transport, &[]).await;
}

async fn check_all(nodes: &[Node], transport: Transport, without: &[&str]) {
    check_all_with(nodes, transport, without, Options::default().jobs).await;
}

async fn check_all_with(nodes: &[Node], transport: Transport, without: &[&str], jobs: usize) {
    for left_out in without {
        println!("left out on this store: {left_out}");
    }
    let options = Options {
        transports: vec![transport],
        without: without.iter().map(ToString::to_string).collect(),
        jobs,
        ..Options::default()
    };
    let urls: Vec<String> = nodes
        .iter()
        .map(|node| format!("http://{}", node.address()))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let report = run_in_turn(&urls, &options).await.unwrap();
    println!("{report}");
    assert!(report.counts().passed > 0, "no vector ran");
    // A busy machine may stall for longer than the shortest leases last, so each that failed is played once more, alone.
    for (outcome, _) in report.failures() {
        let alone = Options {
            filter: Some(format!("{}/{}", outcome.group, outcome.name)),
            jobs: 1,
            ..options.clone()
        };
        let report = run_in_turn(&urls, &alone).await.unwrap();
        println!("{report}");
        assert_eq!(report.counts().failed, 0, "its reports are above");
    }
}

/// A server on a port of its own, which is killed at the end of the test.
fn serve(store: &str) -> Serve {
    Serve::new(env!("CARGO_BIN_EXE_forrst"), &["--demo", "--store", store])
}
