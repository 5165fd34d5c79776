//! The requests in `docs/protocol.md` are answered as it says.

use std::thread;

use forrst_testkit::{Serve, post, until};
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../../../docs/protocol.md");

/// The requests of the document, in order; of a JSON-RPC frame, its Forrst request.
fn requests() -> Vec<Value> {
    let blocks = DOCUMENT.split("```json\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let parsed = blocks.map(|block| serde_json::from_str::<Value>(block).unwrap());
    parsed
        .map(|mut block| match block["params"].take() {
            Value::Null => block,
            params => params,
        })
        .filter(|block| block["call"].is_object())
        .collect()
}

#[test]
fn the_requests_of_the_protocol_document_are_answered() {
    let arguments = ["--demo", "--store", "memory:"];
    let server = Serve::new(env!("CARGO_BIN_EXE_forrst"), &arguments).start();
    let address = server.address();
    let mut requests = requests();
    let [cancel, cancelled] = [(); 2].map(|()| requests.pop().unwrap());
    assert!(requests.len() >= 3, "{}", requests.len());
    for request in requests {
        let answer = post(&address, &request).unwrap();
        assert_eq!(answer.status, 200, "{request}: {}", answer.body);
        assert_eq!(answer.body["id"], request["id"]);
    }
    let slow = thread::spawn({
        let address = address.clone();
        move || post(&address, &cancelled).unwrap()
    });
    until("the call is under way and cancelled", || {
        post(&address, &cancel).unwrap().status == 200
    });
    let cancelled = slow.join().unwrap();
    assert_eq!(cancelled.body["errors"][0]["code"], "CANCELLED");
    assert_eq!(cancelled.status, 499);
}
