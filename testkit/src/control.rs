//! Actions of a request on its connection: end it, reset it, open a tunnel.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::socket::SocketControl;
use crate::upgrade::Tunnels;

/// Lets a request handler end or reset its connection.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) tricks: Arc<SocketControl>,
    goaway: Notify,
    abort: CancellationToken,
    pub(crate) tunnels: Tunnels,
    /// Connections that were accepted before it.
    pub(crate) number: usize,
}

impl Control {
    pub(crate) fn new(tricks: Arc<SocketControl>, abort: CancellationToken, tunnels: Tunnels, number: usize) -> Self {
        Self {
            tricks,
            goaway: Notify::new(),
            abort,
            tunnels,
            number,
        }
    }

    /// Ends the connection once the requests in flight are answered.
    pub(crate) fn goaway(&self) {
        self.goaway.notify_one();
    }

    /// Waits for [`Self::goaway`].
    pub(crate) async fn goaway_requested(&self) {
        self.goaway.notified().await;
    }

    /// Ends the connection now, with RST.
    pub(crate) fn reset(&self) {
        self.tricks.reset_on_drop();
        self.abort.cancel();
    }
}
