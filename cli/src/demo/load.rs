//! A user who keeps changing widgets, one after the other, straight at the API server.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::facts::Shared;
use super::widget::{Widget, WidgetKey, api_resource};

/// One change so often: 100 a second.
const EVERY: Duration = Duration::from_millis(10);

/// Sizes of bursts begin here, where [`run`] does not get.
const BURST: u64 = 1_000_000;

/// Changes widgets until `stop`. The change under way is finished, so that the count is exact.
pub(crate) async fn run(client: Client, facts: Shared, stop: CancellationToken) {
    let resource = api_resource();
    let mut tick = tokio::time::interval(EVERY);
    // A busy machine must not be punished with a burst.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for (size, key) in (2_u64..).zip(spread().into_iter().cycle()) {
        if stop.run_until_cancelled(tick.tick()).await.is_none() {
            return;
        }
        let widgets = Api::<Widget>::namespaced_with(client.clone(), &key.namespace, &resource);
        let change = Patch::Merge(json!({ "spec": { "size": size } }));
        match widgets.patch(&key.name, &PatchParams::default(), &change).await {
            Ok(_) => facts.with(|facts| facts.updates += 1),
            Err(error) => {
                facts.with(|facts| facts.blind = Some(format!("cannot change {key}: {error}")));
                return;
            }
        }
    }
}

/// Changes every widget once, one right after the other. Whole objects are put, so that they are told from the controllers' patches.
/// `number` tells bursts apart. The widgets must be settled: nobody else may change them before their turn.
pub(crate) async fn burst(client: Client, facts: Shared, number: u64) {
    if let Err(error) = try_burst(client, &facts, number).await {
        facts.with(|facts| facts.blind = Some(format!("cannot change all widgets: {error}")));
    }
}

async fn try_burst(client: Client, facts: &Shared, number: u64) -> Result<(), kube::Error> {
    let resource = api_resource();
    let all = Api::<Widget>::all_with(client.clone(), &resource);
    let mut widgets = all.list(&ListParams::default()).await?.items;
    widgets.sort_by_cached_key(ResourceExt::name_any);
    for mut widget in widgets {
        widget.spec.size = BURST + number;
        let (namespace, name) = (widget.namespace().unwrap_or_default(), widget.name_any());
        let widgets = Api::<Widget>::namespaced_with(client.clone(), &namespace, &resource);
        widgets.replace(&name, &PostParams::default(), &widget).await?;
        facts.with(|facts| facts.updates += 1);
    }
    Ok(())
}

/// All widgets, neighbours being of different namespaces.
fn spread() -> Vec<WidgetKey> {
    let mut keys: Vec<_> = WidgetKey::all().collect();
    keys.sort_by(|a, b| (&a.name, &a.namespace).cmp(&(&b.name, &b.namespace)));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_widget_has_its_turn_and_namespaces_alternate() {
        let keys = spread();
        assert_eq!(keys.len(), WidgetKey::all().count());
        assert!(keys.windows(2).all(|pair| pair[0].namespace != pair[1].namespace));
    }
}
