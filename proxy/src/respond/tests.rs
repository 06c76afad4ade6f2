use super::*;

fn json_body(response: &Response<Bytes>) -> serde_json::Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn refusal_carries_code_reason_retry_after_and_cause() {
    let refusal = Refusal {
        code: 429,
        reason: String::new(),
        message: "over the limit".into(),
        retry_after_seconds: Some(7),
        cause: Some("rule/pods".into()),
        details: None,
    };
    let response = Reply::refused_by_plugin(&refusal).into_response(&Accept::default());
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()[RETRY_AFTER], "7");
    let status = json_body(&response);
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["apiVersion"], "v1");
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], 7);
    assert_eq!(status["details"]["causes"][0]["message"], "rule/pods");
}

#[test]
fn write_that_may_have_happened_is_never_answered_with_retry_after() {
    let broken = SendError::Broken {
        maybe_executed: true,
        source: "reset".into(),
    };
    let write = Reply::upstream_failed(&broken, "the API server", false).into_response(&Accept::default());
    assert_eq!(write.status(), 502);
    assert!(write.headers().get(RETRY_AFTER).is_none());
    let read = Reply::upstream_failed(&broken, "the API server", true).into_response(&Accept::default());
    assert_eq!(read.headers()[RETRY_AFTER], "1");
}

#[test]
fn client_that_prefers_protobuf_gets_protobuf() {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.kubernetes.protobuf"));
    let response = Reply::bad_request("no").into_response(&Accept::from_headers(&headers));
    assert!(response.body().starts_with(b"k8s\0"));
    assert_eq!(response.headers()[CONTENT_TYPE], "application/vnd.kubernetes.protobuf");

    headers.insert(
        ACCEPT,
        HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json"),
    );
    let response = Reply::bad_request("no").into_response(&Accept::from_headers(&headers));
    assert!(response.body().starts_with(b"k8s\0"), "client-go's own field");
}

#[test]
fn encoding_is_chosen_like_api_server() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    for (field, is_protobuf) in [
        (format!("{PROTOBUF},application/json"), true),
        (format!("{PROTOBUF}, */*"), true),
        (format!("{PROTOBUF};stream=watch,application/json;stream=watch"), true),
        (format!("application/json,{PROTOBUF}"), false),
        (format!("*/*,{PROTOBUF}"), false),
        (format!("{PROTOBUF};q=0.5,application/json"), false),
        (format!("application/json;q=0.5, {PROTOBUF};q=0.9"), true),
        (
            format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,application/json"),
            false,
        ),
        (format!("application/cbor,{PROTOBUF},application/json"), true),
        ("application/json".into(), false),
        ("text/html".into(), false),
    ] {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::try_from(&field).unwrap())]);
        assert_eq!(Accept::from_headers(&headers).is_protobuf(), is_protobuf, "{field}");
    }
    assert!(!Accept::from_headers(&HeaderMap::new()).is_protobuf());
}

fn upstream_reply(message: &str, reason: &str) -> Reply {
    Reply::refused_by_plugin(&Refusal {
        code: 500,
        reason: reason.into(),
        message: message.into(),
        retry_after_seconds: None,
        cause: None,
        details: Some(verdict::Details {
            kind: "pods".into(),
            ..verdict::Details::default()
        }),
    })
}

#[test]
fn name_is_filled_in_only_where_message_has_placeholder() {
    assert!(!upstream_reply("pods is forbidden", "").lacks_name());
    let mut reply = upstream_reply("pods \"{name}\" already exists", "");
    assert!(reply.lacks_name());
    reply.set_name("a");
    let status = json_body(&reply.into_response(&Accept::default()));
    assert_eq!(
        (&status["message"], &status["details"]["name"]),
        (&"pods \"a\" already exists".into(), &"a".into())
    );
}

#[test]
fn unknown_reason_is_left_out() {
    let reason = |text| {
        json_body(&upstream_reply("", text).into_response(&Accept::default()))
            .get("reason")
            .cloned()
    };
    assert_eq!([reason("Unknown"), reason("")], [None, Some("InternalError".into())]);
}

#[test]
fn error_of_the_api_server_passes_with_its_details() {
    let body = br#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"pods \"a\" is forbidden: no","reason":"Forbidden",
        "details":{"name":"a","kind":"pods"},"code":403}"#;
    let reply = Reply::of_api_server(StatusCode::FORBIDDEN, body, Some(7)).lacking_right("delete");
    let response = reply.into_response(&Accept::default());
    assert_eq!(
        (response.status(), &response.headers()[RETRY_AFTER]),
        (StatusCode::FORBIDDEN, &HeaderValue::from(7))
    );
    let status = json_body(&response);
    assert_eq!(
        (&status["reason"], &status["details"]["name"]),
        (&"Forbidden".into(), &"a".into())
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("pods \"a\" is forbidden: no; "), "{message}");
    assert!(
        message.contains("if these lack the right, grant the verb \"delete\""),
        "{message}"
    );
}

#[test]
fn error_without_a_status_gets_one_with_the_beginning_of_its_text() {
    let text = "x".repeat(2 * MAX_ERROR_CHARACTERS);
    let response =
        Reply::of_api_server(StatusCode::SERVICE_UNAVAILABLE, text.as_bytes(), None).into_response(&Accept::default());
    assert_eq!(
        (response.status(), response.headers().get(RETRY_AFTER)),
        (StatusCode::SERVICE_UNAVAILABLE, None)
    );
    let status = json_body(&response);
    assert_eq!(
        (&status["reason"], &status["code"]),
        (&"ServiceUnavailable".into(), &503.into())
    );
    let message = status["message"].as_str().unwrap();
    assert_eq!(message.matches('x').count(), MAX_ERROR_CHARACTERS, "{message}");
}

#[test]
fn deleted_collection_is_a_success_in_the_encoding_of_the_client() {
    let response = deleted_collection("apps", "deployments", &Accept::default());
    assert_eq!(response.status(), 200);
    let status = json_body(&response);
    assert_eq!(
        (&status["status"], &status["details"]["kind"]),
        (&"Success".into(), &"deployments".into())
    );
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/vnd.kubernetes.protobuf"))]);
    let response = deleted_collection("apps", "deployments", &Accept::from_headers(&accept));
    assert!(response.body().starts_with(b"k8s\0"));
}

#[test]
fn deletion_that_takes_too_long_is_a_timeout_that_no_client_repeats_by_itself() {
    let response = Reply::slow_deletion(Duration::from_secs(60)).into_response(&Accept::default());
    assert_eq!(
        (response.status(), response.headers().get(RETRY_AFTER)),
        (StatusCode::GATEWAY_TIMEOUT, None)
    );
    let status = json_body(&response);
    assert_eq!(status["reason"], "Timeout");
    assert!(status["message"].as_str().unwrap().contains("within 60 s"), "{status}");
}
