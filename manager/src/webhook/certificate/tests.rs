//! The certificate's life on a moved clock, then a real rotation against an API server.

mod life;
mod rotation;

use std::time::{Duration, SystemTime};

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn names() -> Vec<String> {
    ["ctrlmesh-webhook-service.ctrlmesh.svc", "127.0.0.1"]
        .map(str::to_owned)
        .to_vec()
}

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn issued(now: SystemTime, life: Duration) -> Credential {
    Credential::issue(&names(), now, life).unwrap()
}
