//! Faults D1 to D5: admission.

use ctrlmesh_sdk::{Details, Refusal, RequestVerdict, Verb};

use super::support::{
    api_request, bench_with_fault, create_request, expect_refusal, is_hit, request_verdict, rule_error,
};

#[test]
fn d1_webhook_denies() {
    let mut bench = bench_with_fault(r#"{"deny": {"webhook": "v.example.com", "message": "no"}}"#);
    let expected = Refusal::new(403, "admission webhook \"v.example.com\" denied the request: no").reason("Forbidden");
    assert_eq!(expect_refusal(&mut bench, &api_request(Verb::Update)), expected);
    assert!(!is_hit(&mut bench, &api_request(Verb::Get)));
    let mut bench = bench_with_fault(r#"{"deny": {"webhook": "v.example.com", "message": "", "code": 400}}"#);
    let expected = Refusal::new(
        400,
        "admission webhook \"v.example.com\" denied the request without explanation",
    )
    .reason("Unknown");
    assert_eq!(expect_refusal(&mut bench, &create_request()), expected);
}

#[test]
fn d1_policy_denies_with_422() {
    let mut bench = bench_with_fault(r#"{"deny": {"policy": "limits", "binding": "all", "message": "too many"}}"#);
    let denied = "ValidatingAdmissionPolicy 'limits' with binding 'all' denied request: too many";
    let expected = Refusal::new(422, format!("deployments.apps \"web\" is forbidden: {denied}"))
        .reason("Invalid")
        .details(Details::new("apps", "deployments", "web").cause("", denied, ""));
    assert_eq!(expect_refusal(&mut bench, &api_request(Verb::Update)), expected);
    let error = rule_error(r#""do": {"deny": {"policy": "a", "webhook": "b"}}"#);
    assert!(error.starts_with("faults[0].do.deny.policy: "), "{error}");
}

#[test]
fn d2_quota_is_exceeded_or_conflicts() {
    let mut bench = bench_with_fault(
        r#"{"quota": {"quota": "small", "requested": "pods=1", "used": "pods=4", "limited": "pods=4"}}"#,
    );
    let message =
        "pods \"{name}\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4";
    let expected = Refusal::new(403, message)
        .reason("Forbidden")
        .details(Details::new("", "pods", ""));
    assert_eq!(expect_refusal(&mut bench, &create_request()), expected);
    assert!(!is_hit(&mut bench, &api_request(Verb::Update)));
    let refusal = expect_refusal(
        &mut bench_with_fault(r#"{"quota": {"how": "conflict", "quota": "small"}}"#),
        &create_request(),
    );
    assert_eq!((refusal.code, refusal.reason.as_str()), (409, "Conflict"));
    assert!(
        refusal
            .message
            .starts_with("Operation cannot be fulfilled on resourcequotas \"small\": "),
        "{}",
        refusal.message
    );
    assert_eq!(refusal.details, Some(Details::new("", "resourcequotas", "small")));
}

#[test]
fn d3_webhook_is_unreachable() {
    let mut bench = bench_with_fault(
        r#"{"webhookDown": {"webhook": "v.example.com", "url": "https://v.ns.svc:443/v?timeout=10s"}}"#,
    );
    let cause = "failed calling webhook \"v.example.com\": failed to call webhook: Post \"https://v.ns.svc:443/v?timeout=10s\": \
                 dial tcp 10.96.0.99:443: connect: connection refused";
    let expected = Refusal::new(500, format!("Internal error occurred: {cause}"))
        .reason("InternalError")
        .details(Details::new("", "", "").cause("", cause, ""));
    assert_eq!(
        request_verdict(&mut bench, &create_request()),
        RequestVerdict::refuse(expected)
    );
    let verdict = request_verdict(
        &mut bench_with_fault(r#"{"webhookDown": {"after": "10s"}}"#),
        &create_request(),
    );
    assert_eq!(verdict.delay_ms, 10_000);
    assert!(format!("{verdict:?}").contains("context deadline exceeded"));
    let error = rule_error(r#""do": {"webhookDown": {"after": "31s"}}"#);
    assert!(
        error.starts_with("faults[0].do.webhookDown.after: at most 30s"),
        "{error}"
    );
}

#[test]
fn d4_webhook_is_slow_for_writes_only() {
    let mut bench = bench_with_fault(r#"{"webhookSlow": {"for": "10s"}}"#);
    assert_eq!(
        request_verdict(&mut bench, &api_request(Verb::Patch)),
        RequestVerdict::proceed().after_ms(10_000)
    );
    assert!(!is_hit(&mut bench, &api_request(Verb::List)));
    let error = rule_error(r#""do": {"webhookSlow": {"min": "1s", "max": "40s"}}"#);
    assert!(
        error.starts_with("faults[0].do.webhookSlow.max: at most 30s"),
        "{error}"
    );
}

#[test]
fn d5_namespace_is_being_terminated() {
    let mut bench = bench_with_fault(r#""namespaceTerminating""#);
    let message =
        "pods \"{name}\" is forbidden: unable to create new content in namespace team because it is being terminated";
    let details = Details::new("", "pods", "").cause(
        "NamespaceTerminating",
        "namespace team is being terminated",
        "metadata.namespace",
    );
    let expected = Refusal::new(403, message).reason("Forbidden").details(details);
    assert_eq!(expect_refusal(&mut bench, &create_request()), expected);
    assert!(!is_hit(&mut bench, &api_request(Verb::Update)));
    assert!(!is_hit(
        &mut bench,
        &ctrlmesh_sdk::testing::TestRequest::api(Verb::Create, "", "nodes")
    ));
}
