//! A user who keeps changing widgets, one after the other, straight at the API server.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::facts::Shared;
use super::widget::{Widget, WidgetKey, api_resource};

/// One change so often: 100 a second.
const EVERY: Duration = Duration::from_millis(10);

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
