//! Records how requests ended, one line each, in the state cell `outcomes`: `<verb> <resource>/<name> status=… upstream=…
//! failure=… request=… response=… timed=… agent=…`. Answers a request with the user agent `recorder` with the recorded
//! lines (400, message).

use ctrlmesh_sdk::{Host, InstanceInfo, Outcome, Plugin, Refusal, Request, RequestVerdict, Subscription, settings};
use ctrlmesh_test_guests::subscribe_to_everything;

const READER: &str = "recorder";
const CELL: &str = "outcomes";
/// A cell holds 4 KiB; the oldest lines are dropped first.
const ROOM: usize = 4096;

struct Recorder;

impl Plugin for Recorder {
    type Settings = settings::NoSettings;

    fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        Ok((Recorder, subscribe_to_everything()))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        if req.user_agent() != READER {
            return RequestVerdict::proceed();
        }
        RequestVerdict::refuse(Refusal::new(400, read_outcomes(host).1))
    }

    fn on_complete(&mut self, req: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        if req.user_agent() == READER {
            return;
        }
        let line = format!(
            "{:?} {}/{} status={} upstream={} failure={:?} request={} response={} timed={} agent={}\n",
            req.verb(),
            req.resource(),
            req.name(),
            outcome.status,
            outcome.upstream_status,
            outcome.failure,
            outcome.request_bytes,
            outcome.response_bytes,
            outcome.duration_us > 0 && outcome.duration_us >= outcome.upstream_us,
            req.user_agent(),
        );
        loop {
            let (version, mut text) = read_outcomes(host);
            text.push_str(&line);
            while text.len() > ROOM {
                text = text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned());
            }
            match host.compare_and_swap(CELL, version, text.as_bytes()) {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

fn read_outcomes(host: &dyn Host) -> (u64, String) {
    match host.get(CELL) {
        Ok(Some(cell)) => (cell.version, String::from_utf8_lossy(&cell.value).into_owned()),
        Ok(None) | Err(_) => (0, String::new()),
    }
}

ctrlmesh_sdk::export_plugin!(Recorder);
