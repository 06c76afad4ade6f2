//! Rotations of certificates on a simulated clock.

mod leaf;
mod rotation_model;

use std::time::{Duration, SystemTime};

use super::*;
use crate::certificates::lifetimes::WEBHOOKS;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn names() -> Vec<String> {
    ["ctrlmesh-manager-webhook.ctrlmesh.svc", "127.0.0.1"]
        .map(str::to_owned)
        .to_vec()
}

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn schedule_with_life(life: Duration) -> Schedule {
    Schedule { life, ..WEBHOOKS }
}

fn issue_credential(now: SystemTime, life: Duration) -> Credential {
    Credential::issue(&names(), now, &schedule_with_life(life)).unwrap()
}
