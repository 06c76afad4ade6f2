//! Fills the shared state with `keys` cells of `bytes` bytes, and counts each result: metric `state`, label `written` or the error.

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct StateHog {
    #[serde(default = "default_count")]
    keys: u32,
    #[serde(default)]
    bytes: usize,
}

fn default_count() -> u32 {
    1
}

impl Act for StateHog {
    fn act(&self, host: &dyn Host) {
        let value = vec![0; self.bytes];
        for key in 0..self.keys {
            let answer = match host.compare_and_swap(&key.to_string(), 0, &value) {
                Ok(Some(_)) => "written".to_owned(),
                Ok(None) => "there-already".to_owned(),
                Err(error) => error.name().to_owned(),
            };
            host.count("state", &answer, 1);
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<StateHog>);
