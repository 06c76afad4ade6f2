//! Reads the time from the standard library instead of the host.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ctrlmesh_sdk::{Host, InstanceInfo, Plugin, Request, RequestEdit, RequestVerdict, Subscription, settings};
use ctrlmesh_test_guests::subscribe_to_everything;

struct StdClock(Instant);

impl Plugin for StdClock {
    type Settings = settings::NoSettings;

    fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        Ok((StdClock(Instant::now()), subscribe_to_everything()))
    }

    fn on_request(&mut self, _: &dyn Request, _: &dyn Host) -> RequestVerdict {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = format!("age-ns={} unix-ms={}", self.0.elapsed().as_nanos(), wall.as_millis());
        RequestVerdict::edit([RequestEdit::set_header("x-std", text)])
    }
}

ctrlmesh_sdk::export_plugin!(StdClock);
