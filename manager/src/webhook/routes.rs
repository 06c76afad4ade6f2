//! Paths, bodies and the envelope of a review. Decisions are made in [`super::validating`], [`super::labelling`] and
//! [`super::injection`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
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

use super::bodies::{NoReview, read_body, too_many};
use super::connections::Peer;
use super::{Reviewer, injection, labelling, validating};
use crate::metrics::webhook::{Outcome, Webhook};

/// KusionStack's path, and ours for the other kinds.
pub const VALIDATE: [&str; 3] = [
    "/validate-ctrlmesh-shardingconfig",
    "/validate-ctrlmesh-circuitbreaker",
    "/validate-ctrlmesh-faultinjection",
];
pub const MUTATE_NAMESPACE: &str = "/mutate-namespace";
/// Path for labels of all other objects.
pub const MUTATE_RESOURCE: &str = "/mutate-resource";

/// Path for sidecars of pods; KusionStack's.
pub const MUTATE_POD: &str = "/mutate-pod";

/// The connection that a request came on.
type PeerExtension = Extension<Arc<Peer>>;

pub(crate) fn router(reviewer: Arc<Reviewer>) -> Router {
    let mut router = Router::new()
        .route(MUTATE_NAMESPACE, post(respond_to_namespace))
        .route(MUTATE_RESOURCE, post(respond_to_resource))
        .route(MUTATE_POD, post(respond_to_pod))
        .route("/healthz", get(async || "ok"));
    for path in VALIDATE {
        router = router.route(path, post(respond_to_custom_resource));
    }
    router.with_state(reviewer)
}

async fn respond_to_custom_resource(
    State(reviewer): State<Arc<Reviewer>>,
    Extension(peer): PeerExtension,
    request: Request,
) -> Response {
    let decide =
        async |request: &AdmissionRequest<DynamicObject>| validating::review_custom_resource(&reviewer, request).await;
    decided_response(&reviewer, Webhook::Validate, peer, request, decide).await
}

async fn respond_to_namespace(
    State(reviewer): State<Arc<Reviewer>>,
    Extension(peer): PeerExtension,
    request: Request,
) -> Response {
    let decide = async |request: &AdmissionRequest<PartialObjectMeta>| labelling::review_namespace(&reviewer, request);
    decided_response(&reviewer, Webhook::Namespace, peer, request, decide).await
}

async fn respond_to_resource(
    State(reviewer): State<Arc<Reviewer>>,
    Extension(peer): PeerExtension,
    request: Request,
) -> Response {
    let decide =
        async |request: &AdmissionRequest<PartialObjectMeta>| labelling::review_resource(&reviewer, request).await;
    decided_response(&reviewer, Webhook::Resource, peer, request, decide).await
}

async fn respond_to_pod(
    State(reviewer): State<Arc<Reviewer>>,
    Extension(peer): PeerExtension,
    request: Request,
) -> Response {
    let decide = async |request: &AdmissionRequest<DynamicObject>| injection::review_pod(&reviewer, request).await;
    decided_response(&reviewer, Webhook::Pod, peer, request, decide).await
}

/// Parses a review, has it decided, and returns the response. Other bodies get an error status, so that the API server applies the
/// failure policy.
async fn decided_response<K: Resource + DeserializeOwned>(
    reviewer: &Reviewer,
    webhook: Webhook,
    peer: Arc<Peer>,
    request: Request,
    decide: impl AsyncFnOnce(&AdmissionRequest<K>) -> AdmissionResponse,
) -> Response {
    let count = |outcome| reviewer.context.metrics.webhook.count(webhook, outcome);
    let none = |(status, problem): NoReview| {
        count(Outcome::NoReview);
        tracing::debug!(%problem, "webhook request is not an AdmissionReview");
        (status, problem).into_response()
    };
    let Some(permit) = reviewer.bodies.begin_body(peer.source()) else {
        return none(too_many());
    };
    let bytes = match read_body(request.into_body(), &permit, reviewer.bounds.body).await {
        Ok(bytes) => bytes,
        Err(problem) => return none(problem),
    };
    let Ok(Some(_decision_permit)) = tokio::time::timeout(reviewer.bounds.body, permit.wait_to_decide()).await else {
        return none(too_many());
    };
    let request = match parse_review::<K>(&bytes) {
        Ok(request) => request,
        Err(problem) => return none(problem),
    };
    drop(bytes);
    // Only a review protects the connection: other bodies cost their sender nothing.
    let _reviewing = peer.begin_review();
    let response = decide(&request).await;
    count(match (response.allowed, &response.patch) {
        (false, _) => Outcome::Refused,
        (true, Some(_)) => Outcome::Patched,
        (true, None) => Outcome::Allowed,
    });
    let patch = response.patch.as_ref().map(|patch| STANDARD.encode(patch));
    let mut review = serde_json::to_value(response.into_review()).unwrap_or_default();
    if let (Some(patch), Some(written)) = (patch, review.pointer_mut("/response/patch")) {
        // kube writes a list of numbers; the API requires base64.
        *written = patch.into();
    }
    Json(review).into_response()
}

fn parse_review<K: Resource + DeserializeOwned>(bytes: &[u8]) -> Result<AdmissionRequest<K>, NoReview> {
    let bad = |problem: String| (StatusCode::BAD_REQUEST, problem);
    let review: AdmissionReview<K> = serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("this is no AdmissionReview of admission.k8s.io/v1: {error}")))?;
    let request = review.try_into();
    request.map_err(|_| bad("the AdmissionReview has no request".to_owned()))
}
