//! Serialising and parsing a message keeps its meaning, and no input makes a parser panic.

use forrst_protocol::{
    Duration, ErrorObject, Errors, ExtensionRequest, FunctionName, Pointer, RawObject, Request,
    RequestId, Response, Unit, Urn, Version,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1.0e6..1.0e6).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn json_object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(any::<String>(), json_value(), 0..6)
        .prop_map(|members| members.into_iter().collect())
}

fn raw_object() -> impl Strategy<Value = RawObject<'static>> {
    json_object().prop_map(|object| RawObject::from_serialize(&object).unwrap())
}

fn request_id() -> impl Strategy<Value = RequestId> {
    any::<String>().prop_filter_map("1 to 256 bytes", |text| RequestId::parse(&text).ok())
}

fn function_name() -> impl Strategy<Value = FunctionName> {
    prop_oneof![
        "[A-Za-z0-9_][A-Za-z0-9_-]{0,8}(\\.[A-Za-z0-9_][A-Za-z0-9_-]{0,8}){1,3}",
        "urn:[a-z][a-z0-9-]{0,5}:forrst:(ext|fn)(:[a-z][a-z0-9-]{0,5}){1,3}",
    ]
    .prop_map(|text| text.parse().unwrap())
}

fn urn() -> impl Strategy<Value = Urn> {
    "urn:[a-z][a-z0-9]{1,8}:[a-zA-Z0-9:._/-]{0,16}[a-z]"
        .prop_filter_map("no slash first", |text| text.parse().ok())
}

fn version() -> impl Strategy<Value = Version> {
    "(0|[1-9][0-9]{0,3})\\.(0|[1-9][0-9]{0,3})\\.(0|[1-9][0-9]{0,3})(-[a-z]{1,4}(\\.[1-9])?)?(\\+[a-z0-9]{1,4})?"
        .prop_map(|text| text.parse().unwrap())
}

fn extension() -> impl Strategy<Value = ExtensionRequest<'static>> {
    (urn(), prop::option::of(raw_object()), any::<bool>()).prop_map(|(urn, options, required)| {
        ExtensionRequest {
            urn,
            options,
            required,
        }
    })
}

prop_compose! {
    fn request()(
        id in request_id(),
        function in function_name(),
        version in prop::option::of(version()),
        arguments in raw_object(),
        context in prop::option::of(raw_object()),
        extensions in prop::collection::vec(extension(), 0..4),
    ) -> Request<'static> {
        let mut request = Request::new(id, function).with_arguments(arguments);
        request.call.version = version;
        request.context = context;
        request.extensions = extensions;
        request
    }
}

fn error() -> impl Strategy<Value = ErrorObject> {
    let source = prop_oneof![
        Just(json!(null)),
        any::<String>().prop_map(|key| json!({"pointer": Pointer::root().key(&key)})),
        any::<u32>().prop_map(|position| json!({"position": position})),
    ];
    let code = "[A-Z][A-Z0-9]{0,6}(_[A-Z0-9]{1,6}){0,3}";
    (
        code,
        any::<String>(),
        source,
        prop::option::of(json_object()),
    )
        .prop_map(|(code, message, source, details)| {
            let error =
                json!({"code": code, "message": message, "source": source, "details": details});
            serde_json::from_value(error).unwrap()
        })
}

fn outcome() -> impl Strategy<Value = Result<Value, Errors>> {
    prop_oneof![
        json_value().prop_map(Ok),
        prop::collection::vec(error(), 1..4).prop_map(|errors| Err(errors.try_into().unwrap())),
    ]
}

prop_compose! {
    fn response()(
        id in request_id(),
        is_id_known in any::<bool>(),
        outcome in outcome(),
        extensions in prop::collection::vec((urn(), raw_object()), 0..3),
        node in prop::option::of(any::<String>()),
    ) -> Response {
        let mut response = match outcome {
            Ok(result) => Response::success(id, &result).unwrap(),
            Err(errors) => Response::failure(is_id_known.then_some(id), errors),
        };
        for (urn, data) in extensions {
            response = response.with_extension(urn, data);
        }
        match node {
            Some(node) => response.with_node(node),
            None => response,
        }
    }
}

fn unit() -> impl Strategy<Value = Unit> {
    prop::sample::select(vec![
        Unit::Millisecond,
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
    ])
}

fn meaning(written: &impl serde::Serialize) -> Value {
    serde_json::to_value(written).unwrap()
}

proptest! {
    #[test]
    fn a_request_means_the_same_when_written_and_read_again(request in request()) {
        let body = serde_json::to_vec(&request).unwrap();
        let read = Request::parse(&body).unwrap();
        prop_assert_eq!(meaning(&read), meaning(&request));
        prop_assert_eq!(meaning(&read.into_owned()), meaning(&request));
    }

    #[test]
    fn a_request_means_the_same_however_it_is_spaced(request in request()) {
        let pretty = serde_json::to_vec_pretty(&meaning(&request)).unwrap();
        prop_assert_eq!(meaning(&Request::parse(&pretty).unwrap()), meaning(&request));
    }

    #[test]
    fn a_response_means_the_same_when_written_and_read_again(response in response()) {
        let body = serde_json::to_vec(&response).unwrap();
        let read = Response::parse(&body).unwrap();
        prop_assert_eq!(meaning(&read), meaning(&response));
        prop_assert_eq!(read.http_status(), response.http_status());
        let from_value: Response = serde_json::from_value(meaning(&response)).unwrap();
        prop_assert_eq!(meaning(&from_value), meaning(&response));
    }

    #[test]
    fn a_rejection_is_a_legal_response(body in ".{0,64}") {
        if let Err(rejection) = Request::parse(body.as_bytes()) {
            let response = Response::from(rejection);
            let written = serde_json::to_vec(&response).unwrap();
            prop_assert_eq!(meaning(&Response::parse(&written).unwrap()), meaning(&response));
        }
    }

    #[test]
    fn a_duration_is_read_as_it_was_written(value: u64, unit in unit()) {
        let duration = Duration::new(value, unit);
        let written = serde_json::to_string(&duration).unwrap();
        prop_assert_eq!(serde_json::from_str::<Duration>(&written).unwrap(), duration);
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Request::parse(&body);
        let _ = Response::parse(&body);
    }

    #[test]
    fn mutated_requests_never_panic_and_mean_the_same_if_still_accepted(
        request in request(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = serde_json::to_vec(&request).unwrap();
        for (index, byte) in mutations {
            let index = index.index(body.len());
            body[index] = byte;
        }
        if let Ok(accepted) = Request::parse(&body) {
            let again = serde_json::to_vec(&accepted).unwrap();
            let again = Request::parse(&again).unwrap();
            prop_assert_eq!(
                serde_json::to_string(&again).unwrap(),
                serde_json::to_string(&accepted).unwrap()
            );
        }
    }
}
