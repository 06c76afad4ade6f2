//! What a controller of the demo writes to its standard output: one JSON object per line. The controller writes it, the demo reads it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Report {
    /// An object was handled. Times are microseconds since 1970 on the machine's clock, which all processes of the demo share.
    Reconciled {
        namespace: String,
        name: String,
        /// Whether its status had to be written.
        wrote: bool,
        began: u64,
        ended: u64,
    },
    /// A request of the controller failed.
    RequestFailed { message: String },
    /// A watch ended with 410 Expired: the controller lists again.
    WatchExpired,
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
