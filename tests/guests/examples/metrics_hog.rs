//! Counts with `series` different labels, and with each of `names`.

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct MetricsHog {
    #[serde(default)]
    series: u32,
    #[serde(default)]
    names: Vec<String>,
}

impl Act for MetricsHog {
    fn act(&self, host: &dyn Host) {
        for label in 0..self.series {
            host.count("hog", &label.to_string(), 1);
        }
        for name in &self.names {
            host.count(name, "", 1);
            host.gauge(name, "", 1.0);
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<MetricsHog>);
