use crate::contract_section_1::checks::{accepted, check_invalid, sound, values_other_than, with};

#[test]
fn is_handed_over_unchanged() {
    let sent = "{ \"tenant\" : \"é\\u00e9\",\n\"n\":1.0 }";
    let body = sound()
        .to_string()
        .replace(r#"{"caller":"checkout"}"#, sent);
    assert_eq!(accepted(&body).context.unwrap().get(), sent);
}

#[test]
fn of_another_type_is_an_invalid_request() {
    for (value, _) in values_other_than(&["an object"]) {
        check_invalid(&with("/context", value), "/context");
    }
}
