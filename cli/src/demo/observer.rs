//! Watches the API server directly, bypassing the sidecars: every write of every widget, in the order of resource versions.

use std::pin::pin;

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};

use super::observations::SharedObservations;
use super::widget::{Widget, api_resource};

/// Watches all widgets until dropped. A gap would make every count worthless, so any error is final.
pub(crate) async fn run(client: Client, observations: SharedObservations) {
    let widgets = Api::<Widget>::all_with(client, &api_resource());
    let mut events = pin!(watcher(widgets, watcher::Config::default()));
    let mut is_listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitDone) => is_listed = true,
            // The observer would have to list again, and would miss writes in between.
            Ok(Event::Init) if is_listed => observations
                .with_observations(|observations| observations.blind = Some("its watch was interrupted".to_owned())),
            Ok(Event::Init | Event::Delete(_)) => {}
            Ok(Event::InitApply(widget) | Event::Apply(widget)) => {
                observations.with_observations(|observations| observations.audit.record_write(&widget))
            }
            Err(error) => {
                observations.with_observations(|observations| observations.blind = Some(error.to_string()));
                return;
            }
        }
    }
}
