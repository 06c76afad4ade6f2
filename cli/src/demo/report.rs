//! The reports that the demo's controller writes to its standard output: one JSON object per line.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Report {
    /// An object was handled. Times are microseconds since 1970 on the machine's clock, which all processes share.
    Reconciled {
        namespace: String,
        name: String,
        /// Whether the status had to be written.
        wrote: bool,
        began: u64,
        ended: u64,
    },
    RequestFailed {
        message: String,
    },
    /// A write was answered with 409 Conflict: the cached object is out of date.
    Conflict {
        name: String,
        message: String,
    },
    /// An object is in the queue and not in the cache any more, so it is not handled.
    Dropped {
        name: String,
    },
    /// The controller has read an object and is paused before it writes.
    Paused {
        name: String,
    },
    /// A watch ended with 410 Expired, so the controller lists again.
    WatchExpired,
}

pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
