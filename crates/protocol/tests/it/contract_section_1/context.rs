//! `context`: an object that is not interpreted.

use crate::contract_section_1::checks::{accepted, check_invalid, valid, values_other_than, with};

#[test]
fn the_context_is_passed_on_unchanged() {
    let sent = "{ \"tenant\" : \"é\\u00e9\",\n\"n\":1.0 }";
    let body = valid()
        .to_string()
        .replace(r#"{"caller":"checkout"}"#, sent);
    assert_eq!(accepted(&body).context.unwrap().get(), sent);
}

#[test]
fn a_context_of_another_type_is_an_invalid_request() {
    for (value, _) in values_other_than(&["an object"]) {
        check_invalid(&with("/context", value), "/context");
    }
}
