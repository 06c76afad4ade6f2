//! The ManagerState object: addresses of the managers, and which of them leads. The leader writes it.
//!
//! As with KusionStack, managers are the pods in the manager's namespace that the webhooks' Service selects; without a Service only
//! this pod is known. Pods that have ended, or have no address yet, are left out. Nothing is written while nothing has changed.

use std::collections::BTreeMap;
use std::time::Duration;

use ctrlmesh_manager_api::ManagerState;
use ctrlmesh_manager_api::manager_state::{Endpoint, ManagerStateSpec, ManagerStateStatus};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Service};
use kube::api::{DynamicObject, ObjectMeta};
use kube::core::ApiResource;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{Config, watch_object};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::cluster::status::{StatusPatch, patch_status, timestamp_now};
use crate::cluster::{Context, Error, RbacRule, Scope, error_text, post_params};

/// Name of the only object.
const NAME: &str = "ctrlmesh-manager";
/// Pause before a failed write is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Permissions at the API server. Another name of the Service needs a Role of its own.
pub const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["managerstates"],
        verbs: &["create"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["managerstates"],
        verbs: &["list", "watch"],
        names: &[NAME],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["managerstates/status"],
        verbs: &["patch"],
        names: &[NAME],
    },
    RbacRule {
        scope: Scope::Namespace,
        group: "",
        resources: &["pods"],
        verbs: &["list", "watch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Namespace,
        group: "",
        resources: &["services"],
        verbs: &["list", "watch"],
        names: &["ctrlmesh-manager-webhook"],
    },
];

/// Keeps the object up to date until the manager stops.
///
/// # Errors
/// None: failures are logged and retried.
pub async fn run(context: Context) -> Result<(), Error> {
    let stop = context.stop.clone();
    let (mut seen, pods) = watch_cluster(&context);
    let mut keeper = StateWriter {
        context,
        pods,
        is_listed: false,
        selector: None,
        state: None,
    };
    loop {
        let is_written = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            written = keeper.write() => written,
        };
        let metrics = &keeper.context.metrics.state;
        let wait = match is_written {
            Ok(false) => None,
            Ok(true) => {
                metrics.written.inc();
                None
            }
            Err(error) => {
                metrics.failed.inc();
                tracing::warn!(error = error_text(&error), "failed to write the ManagerState; retrying");
                Some(RETRY_PAUSE)
            }
        };
        let retry = async {
            match wait {
                Some(wait) => sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = retry => {}
            Some(change) = seen.next() => keeper.observe(change),
        }
    }
}

/// Labels that a pod must have.
type Selector = BTreeMap<String, String>;

/// An event of a watch.
enum ClusterEvent {
    /// The Service's selector; `None`: there is no Service, or it has none.
    Service(Option<Selector>),
    State(Box<Option<DynamicObject>>),
    /// Pods are in their store; whether all of them were seen.
    Pods(bool),
}

fn watch_cluster(context: &Context) -> (BoxStream<'static, ClusterEvent>, Store<Pod>) {
    let (client, namespace) = (&context.client, &context.args.namespace);
    let services = Api::namespaced(client.clone(), namespace);
    let service = watch_object(services, &context.args.webhook_service_name).default_backoff();
    let state = watch_object(manager_state_api(context), NAME).default_backoff();
    let (reader, writer) = store();
    let pods = watcher(Api::namespaced(client.clone(), namespace), Config::default())
        .default_backoff()
        .modify(strip_pod)
        .reflect(writer);
    let pods = pods.map(|event| event.map(|event| ClusterEvent::Pods(matches!(event, watcher::Event::InitDone))));
    let all = [
        log_watch_errors(service.map(|seen| seen.map(|service| ClusterEvent::Service(service_selector(service))))),
        log_watch_errors(state.map(|seen| seen.map(|state| ClusterEvent::State(Box::new(state))))),
        log_watch_errors(pods),
    ];
    (futures_util::stream::select_all(all).boxed(), reader)
}

/// Logs errors of a watch, which retries by itself.
fn log_watch_errors(
    stream: impl Stream<Item = watcher::Result<ClusterEvent>> + Send + 'static,
) -> BoxStream<'static, ClusterEvent> {
    let stream = stream.filter_map(|seen| async move {
        seen.inspect_err(|error| {
            tracing::warn!(error = error_text(error), "watch for the ManagerState failed; retrying")
        })
        .ok()
    });
    stream.boxed()
}

fn service_selector(service: Option<Service>) -> Option<Selector> {
    service?.spec?.selector.filter(|selector| !selector.is_empty())
}

fn strip_pod(pod: &mut Pod) {
    pod.managed_fields_mut().clear();
    pod.spec = None;
    pod.status = pod.status.take().map(|status| PodStatus {
        phase: status.phase,
        pod_ip: status.pod_ip,
        ..PodStatus::default()
    });
}

fn manager_state_api(context: &Context) -> Api<DynamicObject> {
    Api::all_with(context.client.clone(), &ApiResource::erase::<ManagerState>(&()))
}

struct StateWriter {
    context: Context,
    pods: Store<Pod>,
    /// Whether all pods were seen once.
    is_listed: bool,
    /// `None`: not seen yet.
    selector: Option<Option<Selector>>,
    state: Option<Option<DynamicObject>>,
}

impl StateWriter {
    fn observe(&mut self, seen: ClusterEvent) {
        match seen {
            ClusterEvent::Service(selector) => self.selector = Some(selector),
            // The watch may still show a version from before the last write.
            ClusterEvent::State(state) if is_older((*state).as_ref(), self.state.as_ref().and_then(Option::as_ref)) => {
            }
            ClusterEvent::State(state) => self.state = Some(*state),
            ClusterEvent::Pods(is_listed) => self.is_listed |= is_listed,
        }
    }

    /// Writes changes once everything was seen. Returns whether anything was written.
    async fn write(&mut self) -> Result<bool, kube::Error> {
        let (Some(selector), Some(state), true) = (&self.selector, &self.state, self.is_listed) else {
            return Ok(false);
        };
        let args = &self.context.args;
        let pods = self.pods.state();
        let desired = ManagerStateStatus {
            namespace: args.namespace.clone(),
            endpoints: manager_endpoints(pods.iter().map(AsRef::as_ref), selector.as_ref(), &args.pod_name),
            ..ManagerStateStatus::default()
        };
        if state.as_ref().is_some_and(|state| is_as_desired(state, &desired)) {
            return Ok(false);
        }
        if state.is_none() {
            create_manager_state(&self.context).await?;
        }
        // Lists are replaced as a whole, because KusionStack's manager may have left endpoints that are gone.
        let status = json!({
            "namespace": desired.namespace,
            "endpoints": desired.endpoints,
            "ports": null,
            "updateTimestamp": timestamp_now(),
        });
        let kind = ApiResource::erase::<ManagerState>(&());
        let patch = StatusPatch::Overwrite { status };
        let written = patch_status(&self.context.client, &kind, None, NAME, patch).await?;
        self.state = Some(Some(written));
        Ok(true)
    }
}

fn is_older(state: Option<&DynamicObject>, known: Option<&DynamicObject>) -> bool {
    let version = |state: &DynamicObject| state.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    let versions = state.and_then(version).zip(known.and_then(version));
    versions.is_some_and(|(seen, known)| seen < known)
}

async fn create_manager_state(context: &Context) -> Result<(), kube::Error> {
    let state = ManagerState {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            ..ObjectMeta::default()
        },
        spec: ManagerStateSpec {},
        status: None,
    };
    let params = post_params();
    let states: Api<ManagerState> = Api::all(context.client.clone());
    match states.create(&params, &state).await {
        Ok(_) => Ok(()),
        // The ManagerState exists already.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a write would change nothing but the time.
fn is_as_desired(state: &DynamicObject, desired: &ManagerStateStatus) -> bool {
    let status = state.data.get("status").cloned().unwrap_or_default();
    serde_json::from_value::<ManagerStateStatus>(status).is_ok_and(|status| {
        let mut status = status;
        status.update_timestamp = None;
        status == *desired
    })
}

/// The managers, by name. Pure.
fn manager_endpoints<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    selector: Option<&Selector>,
    leader: &str,
) -> Vec<Endpoint> {
    let is_selected = |pod: &Pod| {
        let has_all = |selector: &Selector| selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value));
        pod.name_any() == leader || selector.is_some_and(has_all)
    };
    let endpoint = |pod: &Pod| {
        let status = pod.status.as_ref()?;
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let pod_ip = status.pod_ip.clone().filter(|ip| !ip.is_empty() && !is_over)?;
        let name = pod.name_any();
        Some(Endpoint {
            leader: name == leader,
            name,
            pod_ip,
        })
    };
    let mut endpoints: Vec<Endpoint> = pods.filter(|pod| is_selected(pod)).filter_map(endpoint).collect();
    endpoints.sort_by(|one, other| one.name.cmp(&other.name));
    endpoints
}

#[cfg(test)]
mod tests;
