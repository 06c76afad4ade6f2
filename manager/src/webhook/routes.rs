//! Paths, bodies and the envelope of a review. What is decided is left to [`super::validating`],
//! [`super::labelling`] and [`super::injection`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, extract::Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Resource;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use kube::core::metadata::PartialObjectMeta;
use serde::de::DeserializeOwned;

use super::metrics::{Outcome, Webhook};
use super::{Reviewer, injection, labelling, validating};

/// An API server takes objects of up to 3 MiB; an update's review has two of them.
const MAX_BODY: usize = 7 << 20;
/// KusionStack's path, and ours for the other kinds.
pub const VALIDATE: [&str; 3] = [
    "/validate-ctrlmesh-shardingconfig",
    "/validate-ctrlmesh-circuitbreaker",
    "/validate-ctrlmesh-faultinjection",
];
/// Labels of namespaces.
pub const MUTATE_NAMESPACE: &str = "/mutate-namespace";
/// Labels of everything else.
pub const MUTATE_RESOURCE: &str = "/mutate-resource";

/// Sidecars of pods; KusionStack's path.
pub const MUTATE_POD: &str = "/mutate-pod";

pub(crate) fn router(reviewer: Arc<Reviewer>) -> Router {
    let mut router = Router::new()
        .route(MUTATE_NAMESPACE, post(namespace))
        .route(MUTATE_RESOURCE, post(resource))
        .route(MUTATE_POD, post(pod))
        .route("/healthz", get(async || "ok"));
    for path in VALIDATE {
        router = router.route(path, post(validate));
    }
    router.with_state(reviewer)
}

async fn validate(State(reviewer): State<Arc<Reviewer>>, request: Request) -> Response {
    let decide = async |request: &AdmissionRequest<DynamicObject>| validating::review(&reviewer, request).await;
    review(&reviewer, Webhook::Validate, request, decide).await
}

async fn namespace(State(reviewer): State<Arc<Reviewer>>, request: Request) -> Response {
    let decide = async |request: &AdmissionRequest<PartialObjectMeta>| labelling::namespace(&reviewer, request);
    review(&reviewer, Webhook::Namespace, request, decide).await
}

async fn resource(State(reviewer): State<Arc<Reviewer>>, request: Request) -> Response {
    let decide = async |request: &AdmissionRequest<PartialObjectMeta>| labelling::resource(&reviewer, request).await;
    review(&reviewer, Webhook::Resource, request, decide).await
}

async fn pod(State(reviewer): State<Arc<Reviewer>>, request: Request) -> Response {
    let decide = async |request: &AdmissionRequest<DynamicObject>| injection::review(&reviewer, request).await;
    review(&reviewer, Webhook::Pod, request, decide).await
}

/// Opens the envelope, has it decided, and closes it. What is no review gets a status that is no 200, and so the failure policy.
async fn review<K: Resource + DeserializeOwned>(
    reviewer: &Reviewer,
    webhook: Webhook,
    request: Request,
    decide: impl AsyncFnOnce(&AdmissionRequest<K>) -> AdmissionResponse,
) -> Response {
    let count = |outcome| reviewer.context.metrics.webhook.count(webhook, outcome);
    let place = reviewer.bodies.acquire_many(cost(request.headers()));
    let Ok(Ok(_place)) = tokio::time::timeout(reviewer.bounds.body, place).await else {
        count(Outcome::NoReview);
        return (StatusCode::SERVICE_UNAVAILABLE, "too many reviews at once; try again").into_response();
    };
    let request = match read::<K>(request.into_body(), reviewer.bounds.body).await {
        Ok(request) => request,
        Err((status, problem)) => {
            count(Outcome::NoReview);
            tracing::debug!(%problem, "a request to a webhook is no review");
            return (status, problem).into_response();
        }
    };
    let response = decide(&request).await;
    count(match (response.allowed, &response.patch) {
        (false, _) => Outcome::Refused,
        (true, Some(_)) => Outcome::Patched,
        (true, None) => Outcome::Allowed,
    });
    let patch = response.patch.as_ref().map(|patch| STANDARD.encode(patch));
    let mut review = serde_json::to_value(response.into_review()).unwrap_or_default();
    if let (Some(patch), Some(written)) = (patch, review.pointer_mut("/response/patch")) {
        // kube writes a list of numbers; the API says base64.
        *written = patch.into();
    }
    Json(review).into_response()
}

/// KiB that a review's body may take. One that is small costs something, too: reading it takes several times its size.
pub(super) fn cost(headers: &HeaderMap) -> u32 {
    const LEAST: usize = 256;
    const MOST: usize = MAX_BODY >> 10;
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let cost = length.map_or(MOST, |bytes| bytes.div_ceil(1 << 10).clamp(LEAST, MOST));
    u32::try_from(cost).unwrap_or(u32::MAX)
}

pub(super) async fn read<K: Resource + DeserializeOwned>(
    body: Body,
    deadline: Duration,
) -> Result<AdmissionRequest<K>, (StatusCode, String)> {
    let bytes = tokio::time::timeout(deadline, to_bytes(body, MAX_BODY)).await;
    let bytes = bytes.map_err(|_| {
        let problem = format!("the body did not arrive in {deadline:?}");
        (StatusCode::REQUEST_TIMEOUT, problem)
    })?;
    let bytes = bytes.map_err(|error| {
        let problem = format!("the body can't be read, or is larger than {MAX_BODY} bytes: {error}");
        (StatusCode::PAYLOAD_TOO_LARGE, problem)
    })?;
    let bad = |problem: String| (StatusCode::BAD_REQUEST, problem);
    let review: AdmissionReview<K> = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("this is no AdmissionReview of admission.k8s.io/v1: {error}")))?;
    let request = review.try_into();
    request.map_err(|_| bad("the AdmissionReview has no request".to_owned()))
}
