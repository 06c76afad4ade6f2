//! Clients whose caches show an earlier view: they had to list again, and have not begun a watch since.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ctrlmesh_contract::status::StaleCache;
use tokio::time::Instant;

use super::{MAX_READERS, Reader};
use crate::timestamp::rfc3339;

/// A live client that had to list again has listed and watches within this time: client-go waits 30 s plus a random time of at most as much
/// (`NewReflectorWithOptions` in tools/cache/reflector.go), and a list takes its time.
const RELIST_TIMEOUT: Duration = Duration::from_secs(120);

/// A client that is refused under one view for this long ignores the 410. client-go would have listed five times by now.
const MAX_REFUSAL_TIME: Duration = Duration::from_secs(300);

/// Maximum number of clients in `/status`.
const MAX_NAMED: usize = 5;
/// Maximum length of a client's name, in characters.
const MAX_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    user_agent: Box<str>,
    resource: Box<str>,
    namespace: Box<str>,
}

impl Client {
    pub(super) fn from_reader(reader: &Reader<'_>) -> Arc<Self> {
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let user_agent = String::from_utf8_lossy(reader.user_agent);
        let resource = match (reader.resource, reader.group) {
            (resource, "") => resource.to_owned(),
            (resource, group) => format!("{resource}.{group}"),
        };
        Arc::new(Self {
            user_agent: user_agent.chars().take(MAX_NAME).map(printable).collect(),
            resource: resource.chars().take(MAX_NAME).collect(),
            namespace: reader.namespace.into(),
        })
    }
}

/// By the reader's key. Bounded to [`MAX_READERS`]; the earliest count.
#[derive(Debug, Default)]
pub(super) struct Outdated(HashMap<u64, Sent>);

/// The clients of one reader that had to list again.
#[derive(Debug)]
struct Sent {
    clients: u16,
    client: Arc<Client>,
    /// Time of the last change to their view.
    since: Instant,
    /// Time of the last refusal or change.
    at: Instant,
    /// View under which they were last refused.
    view: Option<u64>,
    /// Number of refusals since the last change to their view.
    refusals: u64,
}

impl Sent {
    fn is_given_up(&self) -> bool {
        self.since.elapsed() >= MAX_REFUSAL_TIME
    }

    fn to_status(&self) -> StaleCache {
        let since = SystemTime::now().checked_sub(self.since.elapsed());
        StaleCache {
            client: self.client.user_agent.to_string(),
            resource: self.client.resource.to_string(),
            namespace: self.client.namespace.to_string(),
            since: since.map(rfc3339).unwrap_or_default(),
            refused_watches: self.refusals,
            given_up: self.is_given_up(),
        }
    }
}

impl Outdated {
    /// Notes that a new chain shows an open watch another view. `most`: maximum number of watches that its reader ever had at once, if
    /// known.
    pub(super) fn note_change(&mut self, key: u64, most: Option<u16>, client: &Arc<Client>) {
        let Some(sent) = self.entry_or_insert(key, most, || Arc::clone(client)) else {
            return;
        };
        (sent.since, sent.view, sent.refusals) = (sent.at, None, 0);
    }

    /// Notes that a watch from another view is refused. A watch that comes twice counts once, and repeating it extends the wait only up to
    /// [`MAX_REFUSAL_TIME`]. Returns whether this is the first refusal beyond that.
    pub(super) fn note_refusal(&mut self, key: u64, most: Option<u16>, view: u64, reader: &Reader<'_>) -> bool {
        let was_given_up = self
            .0
            .get(&key)
            .is_some_and(|sent| sent.at - sent.since >= MAX_REFUSAL_TIME);
        let Some(sent) = self.entry_or_insert(key, most, || Client::from_reader(reader)) else {
            return false;
        };
        if sent.view.is_some_and(|known| known != view) {
            (sent.since, sent.refusals) = (sent.at, 0);
        }
        sent.view = Some(view);
        sent.refusals = sent.refusals.saturating_add(1);
        sent.is_given_up() && !was_given_up
    }

    fn entry_or_insert(
        &mut self,
        key: u64,
        most: Option<u16>,
        client: impl FnOnce() -> Arc<Client>,
    ) -> Option<&mut Sent> {
        if self.0.len() >= MAX_READERS {
            self.forget_late();
        }
        if self.0.len() >= MAX_READERS && !self.0.contains_key(&key) {
            return None;
        }
        let now = Instant::now();
        let sent = self.0.entry(key).or_insert_with(|| Sent {
            clients: 0,
            client: client(),
            since: now,
            at: now,
            view: None,
            refusals: 0,
        });
        let most = most.map_or(u16::MAX, |most| most.max(1));
        sent.clients = sent.clients.saturating_add(1).min(most);
        sent.at = now;
        Some(sent)
    }

    /// Notes that a client begins a watch: its cache is of the view that the watch shows.
    pub(super) fn begin_watch(&mut self, key: u64) {
        if let Some(sent) = self.0.get_mut(&key) {
            sent.clients = sent.clients.saturating_sub(1);
            if sent.clients == 0 {
                self.0.remove(&key);
            }
        }
    }

    /// Number of clients that are waited for.
    pub(super) fn count(&mut self) -> u64 {
        self.forget_late();
        let waited_for = self.0.values().filter(|sent| !sent.is_given_up());
        waited_for.map(|sent| u64::from(sent.clients)).sum()
    }

    /// The clients that have waited longest.
    pub(super) fn longest_waiting(&mut self) -> Vec<StaleCache> {
        self.forget_late();
        let mut sent: Vec<&Sent> = self.0.values().collect();
        sent.sort_by_key(|sent| sent.since);
        sent.into_iter().take(MAX_NAMED).map(Sent::to_status).collect()
    }

    /// A client that keeps repeating its watch is kept beyond [`MAX_REFUSAL_TIME`]; otherwise it would be waited for again from the start.
    fn forget_late(&mut self) {
        self.0.retain(|_, sent| sent.at.elapsed() < RELIST_TIMEOUT);
    }
}
