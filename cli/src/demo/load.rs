//! A user who keeps changing widgets one by one, directly at the API server.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::observations::SharedObservations;
use super::widget::{Widget, WidgetKey, api_resource};

/// 100 changes a second.
const EVERY: Duration = Duration::from_millis(10);

/// Bursts use numbers from here on, which [`run`] never reaches.
const BURST: u64 = 1_000_000;

/// Changes widgets until `stop`. Finishes the change in progress, so that the count is exact.
pub(crate) async fn run(client: Client, observations: SharedObservations, stop: CancellationToken) {
    let resource = api_resource();
    let mut tick = tokio::time::interval(EVERY);
    // A busy machine must not be punished with a burst.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (size, key) in (2_u64..).zip(interleaved_widgets().into_iter().cycle()) {
        if stop.run_until_cancelled(tick.tick()).await.is_none() {
            return;
        }
        let widgets = Api::<Widget>::namespaced_with(client.clone(), &key.namespace, &resource);
        let change = Patch::Merge(json!({ "spec": { "size": size } }));
        match widgets.patch(&key.name, &PatchParams::default(), &change).await {
            Ok(_) => observations.with_observations(|observations| observations.updates += 1),
            Err(error) => {
                observations.with_observations(|observations| {
                    observations.blind = Some(format!("cannot change {key}: {error}"))
                });
                return;
            }
        }
    }
}

/// Changes every widget once without pauses. Puts whole objects, which distinguishes them from the controllers' patches.
/// `number` distinguishes bursts. The widgets must be settled: no other writer may change them before their turn.
pub(crate) async fn run_burst(client: Client, observations: SharedObservations, number: u64) {
    if let Err(error) = try_burst(client, &observations, number).await {
        observations
            .with_observations(|observations| observations.blind = Some(format!("cannot change all widgets: {error}")));
    }
}

async fn try_burst(client: Client, observations: &SharedObservations, number: u64) -> Result<(), kube::Error> {
    let resource = api_resource();
    let all = Api::<Widget>::all_with(client.clone(), &resource);
    let mut widgets = all.list(&ListParams::default()).await?.items;
    widgets.sort_by_cached_key(ResourceExt::name_any);
    for mut widget in widgets {
        widget.spec.size = BURST + number;
        let (namespace, name) = (widget.namespace().unwrap_or_default(), widget.name_any());
        let widgets = Api::<Widget>::namespaced_with(client.clone(), &namespace, &resource);
        widgets.replace(&name, &PostParams::default(), &widget).await?;
        observations.with_observations(|observations| observations.updates += 1);
    }
    Ok(())
}

/// All widgets, ordered so that neighbours are of different namespaces.
fn interleaved_widgets() -> Vec<WidgetKey> {
    let mut keys: Vec<_> = WidgetKey::all_keys().collect();
    keys.sort_by(|a, b| (&a.name, &a.namespace).cmp(&(&b.name, &b.namespace)));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_widgets_are_complete_and_alternate_namespaces() {
        let keys = interleaved_widgets();
        assert_eq!(keys.len(), WidgetKey::all_keys().count());
        assert!(keys.windows(2).all(|pair| pair[0].namespace != pair[1].namespace));
    }
}
