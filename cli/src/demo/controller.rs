//! The controller of the demo, as anyone would write it with kube-rs: it watches all widgets, or all gadgets, and records in the status
//! of each that it handled it. It knows a kubeconfig and its own name, but no shards, sidecars or other replicas. The demo can pause it
//! between a read and the write that follows.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::{HeaderValue, USER_AGENT};
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::runtime::controller::{self, Action};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::json;

use super::gadget;
use super::report::{Report, now_micros};
use super::widget::{self, Widget};
use crate::args::ControllerArgs;
use crate::error::Error;
use crate::print;

pub(crate) const AGENT: &str = "widget-controller/1.0";

/// Objects handled at a time.
const CONCURRENCY: u16 = 2;

/// How long handling one object takes, as if it called another system.
const WORK: Duration = Duration::from_millis(4);

/// Pause before an object is retried whose status could not be written.
const RETRY: Duration = Duration::from_millis(500);

/// Interval between two looks for the pause file.
const LOOK_EVERY: Duration = Duration::from_millis(10);

struct Context {
    client: Client,
    resource: ApiResource,
    name: String,
    pause_file: Option<PathBuf>,
}

/// Runs until standard input ends: the parent process keeps it open.
pub(crate) async fn run(args: ControllerArgs) -> Result<ExitCode, Error> {
    let client = connect_client(&args).await?;
    let resource = match args.gadgets {
        true => gadget::api_resource(),
        false => widget::api_resource(),
    };
    let widgets = Api::<Widget>::all_with(client.clone(), &resource);
    Controller::new_with(widgets, watcher::Config::default(), resource.clone())
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(standard_input_ended())
        .run(
            reconcile,
            |_, _, _| Action::requeue(RETRY),
            Arc::new(Context {
                client,
                resource,
                name: args.name,
                pause_file: args.pause_file,
            }),
        )
        .for_each(async |outcome| {
            if let Err(error) = outcome {
                report_failure(&error);
            }
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

async fn connect_client(args: &ControllerArgs) -> Result<Client, Error> {
    let problem = |source| Error::Kubeconfig {
        path: args.kubeconfig.clone(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig).map_err(problem)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(problem)?;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    Client::try_from(config).map_err(Error::client("the controller's client"))
}

async fn standard_input_ended() {
    let read_to_end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    // An error ends it as well.
    let _ = tokio::task::spawn_blocking(read_to_end).await;
}

async fn reconcile(widget: Arc<Widget>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let began = now_micros();
    let (namespace, name) = (widget.namespace().unwrap_or_default(), widget.name_any());
    let generation = widget.metadata.generation.unwrap_or_default();
    let is_done = widget
        .status
        .as_ref()
        .is_some_and(|status| status.handled_by == context.name && status.observed_generation >= generation);
    if !is_done {
        tokio::time::sleep(WORK).await;
        if let Some(file) = &context.pause_file {
            wait_while_exists(file, &name).await;
        }
        let status = json!({ "status": { "handledBy": context.name, "observedGeneration": generation } });
        let widgets = Api::<Widget>::namespaced_with(context.client.clone(), &namespace, &context.resource);
        let params = PatchParams {
            field_manager: Some(context.name.clone()),
            ..PatchParams::default()
        };
        widgets.patch_status(&name, &params, &Patch::Merge(&status)).await?;
    }
    print_report(&Report::Reconciled {
        namespace,
        name,
        wrote: !is_done,
        began,
        ended: now_micros(),
    });
    Ok(Action::await_change())
}

/// Reports that it waits, if it does.
async fn wait_while_exists(pause_file: &Path, name: &str) {
    if !pause_file.exists() {
        return;
    }
    print_report(&Report::Paused { name: name.to_owned() });
    while pause_file.exists() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn report_failure(error: &controller::Error<kube::Error, watcher::Error>) {
    match error {
        // The object left the controller's view while it was queued.
        controller::Error::ObjectNotFound(object) => print_report(&Report::Dropped {
            name: object.name.clone(),
        }),
        controller::Error::ReconcilerFailed(kube::Error::Api(status), object) if status.code == 409 => {
            print_report(&Report::Conflict {
                name: object.name.clone(),
                message: error.to_string(),
            });
        }
        controller::Error::QueueError(watcher::Error::WatchError(status)) if status.code == 410 => {
            print_report(&Report::WatchExpired);
        }
        failure => print_report(&Report::RequestFailed {
            message: failure.to_string(),
        }),
    }
}

fn print_report(report: &Report) {
    // A report consists of texts and numbers, so it can always be written as JSON.
    if let Ok(line) = serde_json::to_string(report) {
        print::line(&line);
    }
}
