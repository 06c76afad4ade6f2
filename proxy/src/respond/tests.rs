use super::*;

fn json(response: &Response<Bytes>) -> serde_json::Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn a_refusal_carries_code_reason_retry_after_and_cause() {
    let refusal = Refusal {
        code: 429,
        reason: String::new(),
        message: "over the limit".into(),
        retry_after_seconds: Some(7),
        cause: Some("rule/pods".into()),
        details: None,
    };
    let response = Reply::refusal(&refusal).into_response(&Accept::default());
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()[RETRY_AFTER], "7");
    let status = json(&response);
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["apiVersion"], "v1");
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], 7);
    assert_eq!(status["details"]["causes"][0]["message"], "rule/pods");
}

#[test]
fn a_write_that_may_have_happened_is_never_answered_with_retry_after() {
    let broken = SendError::Broken {
        maybe_executed: true,
        source: "reset".into(),
    };
    let write = Reply::upstream(&broken, "the API server", false).into_response(&Accept::default());
    assert_eq!(write.status(), 502);
    assert!(write.headers().get(RETRY_AFTER).is_none());
    let read = Reply::upstream(&broken, "the API server", true).into_response(&Accept::default());
    assert_eq!(read.headers()[RETRY_AFTER], "1");
}

#[test]
fn a_client_that_accepts_only_protobuf_gets_protobuf() {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.kubernetes.protobuf"));
    let response = Reply::bad_request("no").into_response(&Accept::of(&headers));
    assert!(response.body().starts_with(b"k8s\0"));
    assert_eq!(response.headers()[CONTENT_TYPE], "application/vnd.kubernetes.protobuf");

    headers.insert(
        ACCEPT,
        HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json"),
    );
    let response = Reply::bad_request("no").into_response(&Accept::of(&headers));
    assert_eq!(json(&response)["code"], 400);
}
