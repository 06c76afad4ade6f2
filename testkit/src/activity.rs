//! Counts of connections, requests, watches and tunnels that are open right now. [`crate::requests`] has the requests themselves.

use std::time::Duration;

use tokio::sync::watch;

use crate::Error;

/// Counts of open connections, watches and requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Client connections, on both ports.
    pub connections: usize,
    /// Connections accepted since the start.
    pub accepted: usize,
    /// Watches whose body has not ended.
    pub watches: usize,
    pub tunnels: usize,
    /// Requests whose response has not begun.
    pub requests: usize,
    /// Maximum of `requests` since the start.
    pub most_requests: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    sender: watch::Sender<Activity>,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self {
            sender: watch::Sender::new(Activity::default()),
        }
    }

    pub(crate) fn current_activity(&self) -> Activity {
        *self.sender.borrow()
    }

    pub(crate) async fn wait_until(
        &self,
        deadline: Duration,
        mut condition: impl FnMut(&Activity) -> bool,
    ) -> Result<Activity, Error> {
        let mut receiver = self.sender.subscribe();
        let met = receiver.wait_for(|activity| condition(activity));
        match tokio::time::timeout(deadline, met).await {
            Ok(Ok(activity)) => Ok(*activity),
            Ok(Err(_)) | Err(_) => Err(Error::Deadline { after: deadline }),
        }
    }

    pub(crate) fn count_connection(&self) -> ConnectionGuard {
        self.sender.send_modify(|activity| {
            activity.connections += 1;
            activity.accepted += 1;
        });
        ConnectionGuard(self.clone())
    }

    pub(crate) fn count_watch(&self) -> WatchGuard {
        self.sender.send_modify(|activity| activity.watches += 1);
        WatchGuard(self.clone())
    }

    pub(crate) fn count_request(&self) -> RequestGuard {
        self.sender.send_modify(|activity| {
            activity.requests += 1;
            activity.most_requests = activity.most_requests.max(activity.requests);
        });
        RequestGuard(self.clone())
    }

    pub(crate) fn count_tunnel(&self) -> TunnelGuard {
        self.sender.send_modify(|activity| activity.tunnels += 1);
        TunnelGuard(self.clone())
    }
}

/// An open connection; counted until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Gauges);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.sender.send_modify(|activity| activity.connections -= 1);
    }
}

/// An open watch; counted until dropped.
#[derive(Debug)]
pub(crate) struct WatchGuard(Gauges);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.sender.send_modify(|activity| activity.watches -= 1);
    }
}

/// An upgraded connection; counted until dropped.
#[derive(Debug)]
pub(crate) struct TunnelGuard(Gauges);

impl Drop for TunnelGuard {
    fn drop(&mut self) {
        self.0.sender.send_modify(|activity| activity.tunnels -= 1);
    }
}

/// A request in hand; counted until dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard(Gauges);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.sender.send_modify(|activity| activity.requests -= 1);
    }
}
