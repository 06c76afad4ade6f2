//! The state of a server that all of its connections share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::watch;

use crate::activity::Gauges;
use crate::faults::Faults;
use crate::requests::RequestLog;
use crate::resource::KindRegistry;
use crate::store::Store;
use crate::watch_stream::Signals;

#[derive(Debug)]
pub(crate) struct Shared {
    /// Host and port that clients are told to reach it at.
    pub(crate) advertised: Vec<String>,
    /// Accepted since the start.
    pub(crate) connections: AtomicUsize,
    pub(crate) registry: Arc<KindRegistry>,
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) requests: RequestLog,
    pub(crate) gauges: Gauges,
    pub(crate) signals: watch::Sender<Signals>,
    pub(crate) max_concurrent_streams: u32,
    pub(crate) bookmark_every: Duration,
}
