//! Refuses its settings with the text `because`, repeated `times` times; accepts them without one.

use ctrlmesh_sdk::{Host, InstanceInfo, Plugin, Subscription};
use ctrlmesh_test_guests::everything;
use serde::Deserialize;

#[derive(Deserialize)]
struct Settings {
    because: Option<String>,
    #[serde(default = "once")]
    times: usize,
}

fn once() -> usize {
    1
}

struct RefuseSettings;

impl Plugin for RefuseSettings {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        match settings.because {
            Some(because) => Err(because.repeat(settings.times)),
            None => Ok((RefuseSettings, everything())),
        }
    }
}

ctrlmesh_sdk::export_plugin!(RefuseSettings);
