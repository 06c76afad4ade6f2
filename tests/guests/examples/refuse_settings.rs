//! Refuses its settings with the text `because`, repeated `times` times; accepts them without a text.

use ctrlmesh_sdk::{Host, InstanceInfo, Plugin, Subscription};
use ctrlmesh_test_guests::subscribe_to_everything;
use serde::Deserialize;

#[derive(Deserialize)]
struct Settings {
    because: Option<String>,
    #[serde(default = "default_times")]
    times: usize,
}

fn default_times() -> usize {
    1
}

struct RefuseSettings;

impl Plugin for RefuseSettings {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        match settings.because {
            Some(because) => Err(because.repeat(settings.times)),
            None => Ok((RefuseSettings, subscribe_to_everything())),
        }
    }
}

ctrlmesh_sdk::export_plugin!(RefuseSettings);
