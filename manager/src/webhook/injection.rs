//! Handles pods that request a sidecar: reads the objects that [`ctrlmesh_manager_inject`] needs for its decision.
//!
//! Fails closed: a pod that requests a sidecar and can't have one is not created. Controllers retry creating pods.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use ctrlmesh_manager_inject::flags::NativeSidecar;
use ctrlmesh_manager_inject::{ClusterInfo, Refusal, Rule, Settings, inject, is_asked_for, is_redirected};
use ctrlmesh_manager_planner::switches;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{ApiResource, ListParams};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::response::{Status, StatusSummary, reason};
use kube::{Api, Client, Resource};
use serde_json::Value;
use tokio::time::timeout;

use super::Reviewer;
use crate::certificates::mesh_ca;
use crate::cluster::error_text;
use crate::controllers::distribution;

type Request = AdmissionRequest<DynamicObject>;

/// Time for all reads of a review. API servers wait for ten seconds (`deploy/webhook/mutating.yaml`).
const REVIEW_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum rules of a kind that are read from a namespace. A list without a limit could take all memory.
const MAX_RULES: u32 = 5000;
/// From this release on, every kubelet of a supported cluster restarts init containers with `restartPolicy: Always`: those of 1.29
/// were the first that do so by default, and kubelets may be three releases behind.
const NATIVE_SINCE: (u32, u32) = (1, 32);

/// Warning for a pod with redirected traffic when the API server's addresses are not known.
const ONE_ADDRESS: &str = "the Service kubernetes of namespace default does not exist, or ctrlmesh-manager may not list it: of what this pod \
     sends to the API server, only that to KUBERNETES_SERVICE_HOST is redirected. Where the Service has an IPv4 and an IPv6 address, the other \
     one leads past the sidecar";

/// Why a pod can't be injected now.
type Problem = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn review_pod(reviewer: &Reviewer, request: &Request) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    let Some(pod) = pod_to_inject(request) else {
        return response;
    };
    let known = match timeout(REVIEW_TIMEOUT, read_known(reviewer, request, &pod)).await {
        Ok(Ok(known)) => known,
        Ok(Err(problem)) => return unavailable_response(response, &error_text(&*problem)),
        Err(_) => return unavailable_response(response, "the API server did not answer in time"),
    };
    let args = &reviewer.context.args;
    let settings = Settings::new(&args.proxy, args.sidecar_port);
    let injected = inject(&pod, &known, &settings);
    let mut warnings = switches::pod_warnings(&pod);
    if injected.is_ok() && is_redirected(&pod) && known.service_addresses.is_empty() {
        tracing::warn!(
            namespace = known.namespace,
            "addresses of Service kubernetes are unknown; redirecting only traffic to KUBERNETES_SERVICE_HOST"
        );
        warnings.push(ONE_ADDRESS.to_owned());
    }
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    let patch = match injected {
        Ok(patch) if patch.is_empty() => return response,
        Ok(patch) => patch,
        Err(refusal) => {
            let code = axum::http::StatusCode::FORBIDDEN.as_u16();
            let message = refusal_text(reviewer, &known.namespace, &refusal);
            return deny_with(response, code, reason::FORBIDDEN, message);
        }
    };
    match serde_json::from_value(Value::Array(patch)).map(|patch| response.clone().with_patch(patch)) {
        Ok(Ok(patched)) => patched,
        Ok(Err(error)) => unavailable_response(response, &error.to_string()),
        Err(error) => unavailable_response(response, &error.to_string()),
    }
}

/// The pod, if the request creates one that requests a sidecar.
fn pod_to_inject(request: &Request) -> Option<Value> {
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let object = request.object.as_ref()?;
    if request.operation != Operation::Create || !is_whole {
        return None;
    }
    let pod = serde_json::to_value(object).ok()?;
    is_asked_for(&pod).then_some(pod)
}

/// Clients that have not proved to be API servers do not learn what is in a namespace. The log has it.
fn refusal_text(reviewer: &Reviewer, namespace: &str, refusal: &Refusal) -> String {
    if reviewer.knows_clients() {
        return refusal.to_string();
    }
    tracing::info!(%refusal, namespace, "rejected pod: sidecar injection refused");
    refusal.to_anybody()
}

fn unavailable_response(response: AdmissionResponse, problem: &str) -> AdmissionResponse {
    tracing::warn!(problem, "rejected pod: sidecar injection is unavailable");
    let code = axum::http::StatusCode::SERVICE_UNAVAILABLE.as_u16();
    let message = format!("this pod asks for a sidecar of ctrlmesh, and can't get one now: {problem}; try again");
    deny_with(response, code, reason::SERVICE_UNAVAILABLE, message)
}

fn deny_with(response: AdmissionResponse, code: u16, reason: &str, message: String) -> AdmissionResponse {
    let mut response = response.deny("");
    response.result = Status {
        status: Some(StatusSummary::Failure),
        code,
        message,
        metadata: None,
        reason: reason.to_owned(),
        details: None,
    };
    response
}

/// Reads everything that the decision on the pod depends on. The pod waits for this, so it uses the client for urgent requests.
async fn read_known(reviewer: &Reviewer, request: &Request, pod: &Value) -> Result<ClusterInfo, Problem> {
    let context = &reviewer.context;
    let (client, own) = (&context.urgent, &context.args.namespace);
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), own);
    let (shards, breakers, faults, key, native, service) = tokio::try_join!(
        list_rules::<ShardingConfig>(client, namespace),
        list_rules::<CircuitBreaker>(client, namespace),
        list_rules::<FaultInjection>(client, namespace),
        async { Ok(distribution::public_key(&secrets).await?) },
        has_native_sidecars(reviewer),
        service_addresses(client, context.args.proxy.mesh_ca && is_redirected(pod)),
    )?;
    Ok(ClusterInfo {
        namespace: namespace.to_owned(),
        rules: [shards, breakers, faults].concat(),
        public_key: key,
        has_native_sidecars: native,
        service_addresses: service,
    })
}

async fn list_rules<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Result<Vec<Rule>, Problem> {
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let listed = api.list(&ListParams::default().limit(MAX_RULES)).await?;
    if listed.metadata.continue_.is_some_and(|more| !more.is_empty()) {
        let plural = &resource.plural;
        return Err(format!("namespace {namespace} has more than {MAX_RULES} {plural}").into());
    }
    let documents = listed.items.iter().map(serde_json::to_value);
    let rules = documents.map(|document| Ok(Rule::from_document(&document?)));
    let rules: Result<Vec<Option<Rule>>, serde_json::Error> = rules.collect();
    Ok(rules?.into_iter().flatten().collect())
}

async fn has_native_sidecars(reviewer: &Reviewer) -> Result<bool, Problem> {
    match reviewer.context.args.proxy.native_sidecar {
        NativeSidecar::On => Ok(true),
        NativeSidecar::Off => Ok(false),
        NativeSidecar::Auto => {
            let ask = async || {
                let version = reviewer.context.urgent.apiserver_version().await?;
                Ok::<_, kube::Error>((version.major, version.minor))
            };
            let release = reviewer.api_server_version.release_of(Instant::now(), ask).await?;
            Ok(release.is_some_and(|release| release >= NATIVE_SINCE))
        }
    }
}

/// Addresses of the API server's Service. Empty: they are not needed, or the manager may not read them, of which the pod is warned.
async fn service_addresses(client: &Client, is_asked_for: bool) -> Result<Vec<IpAddr>, Problem> {
    if !is_asked_for {
        return Ok(Vec::new());
    }
    let (namespace, name) = mesh_ca::SERVICE;
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    match api.list(&named).await {
        Ok(found) => Ok(found.items.first().map(mesh_ca::service_addresses).unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
