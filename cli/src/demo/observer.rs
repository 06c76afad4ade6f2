//! The demo's own look at the API server, past all sidecars: every write of every widget, in the order of resource versions.

use std::pin::pin;

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};

use super::facts::Shared;
use super::widget::{Widget, api_resource};

/// Follows all widgets until it is dropped. A gap in what it sees would make every count worthless, so any error is final.
pub(crate) async fn run(client: Client, facts: Shared) {
    let widgets = Api::<Widget>::all_with(client, &api_resource());
    let mut events = pin!(watcher(widgets, watcher::Config::default()));
    let mut is_listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitDone) => is_listed = true,
            // It would have to list again: writes in between are lost.
            Ok(Event::Init) if is_listed => {
                facts.with(|facts| facts.blind = Some("its watch had to start anew".to_owned()))
            }
            Ok(Event::Init | Event::Delete(_)) => {}
            Ok(Event::InitApply(widget) | Event::Apply(widget)) => facts.with(|facts| facts.ledger.stored(&widget)),
            Err(error) => {
                facts.with(|facts| facts.blind = Some(error.to_string()));
                return;
            }
        }
    }
}
