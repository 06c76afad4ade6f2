//! The objects, with one resource version for all of them, and per kind a bounded log of changes for past states and watches. It checks
//! no objects: [`crate::write`] does.

mod transaction;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::Error;
use crate::lock::lock_unpoisoned;
use crate::object::{Key, Object};
use crate::refusal::Refusal;
use crate::resource::KindRegistry;
pub(crate) use transaction::Transaction;

/// Timeout of [`Store::wait_until`]: longer than any healthy test takes, shorter than a person waits for a hung one.
pub const WAIT_DEADLINE: Duration = Duration::from_secs(20);

/// Changes kept per kind by default; some 16 MiB per busy kind with objects of 2 KiB.
pub(crate) const DEFAULT_EVENT_LOG: usize = 4_096;

/// The state of an [`crate::ApiServer`]. Clones share it. It survives a simulated outage.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Arc<KindRegistry>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    event_log: usize,
}

#[derive(Debug)]
struct State {
    resource_version: u64,
    /// The version that a lagging watch cache shows, if it lags.
    cached: Option<u64>,
    collections: HashMap<String, Collection>,
}

/// The objects of one kind, and their recent changes.
#[derive(Debug)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    log: VecDeque<Arc<Event>>,
    /// Changes up to this resource version are no longer in `log`.
    compacted: u64,
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) resource_version: u64,
    pub(crate) key: Key,
    pub(crate) previous: Option<Arc<Object>>,
    pub(crate) change: Change,
}

/// The object after a change.
#[derive(Debug)]
pub(crate) enum Change {
    Stored(Arc<Object>),
    /// Deleted: its last state, with the resource version of the deletion.
    Deleted(Arc<Object>),
}

/// The objects of a kind at one resource version, in key order.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) resource_version: u64,
    pub(crate) objects: Vec<Arc<Object>>,
}

/// The requested resource version is older than the event log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compacted {
    pub(crate) oldest: u64,
}

impl Store {
    pub(crate) fn new(registry: Arc<KindRegistry>, event_log: usize) -> Self {
        let collections = registry.iter().map(|resource| {
            let (changed, _) = watch::channel(1);
            let collection = Collection {
                objects: BTreeMap::new(),
                log: VecDeque::new(),
                compacted: 1,
                changed,
            };
            (resource.qualified_name(), collection)
        });
        // Resource version 0 means "any" to a client, so the first state is 1, as with etcd's first revision.
        let state = State {
            resource_version: 1,
            cached: None,
            collections: collections.collect(),
        };
        let (changed, _) = watch::channel(1);
        Self {
            inner: Arc::new(Inner {
                registry,
                state: Mutex::new(state),
                changed,
                event_log,
            }),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        // A predicate of a test may panic under the lock, but it only reads, so the state is consistent.
        lock_unpoisoned(&self.inner.state)
    }

    pub(crate) fn registry(&self) -> &KindRegistry {
        &self.inner.registry
    }

    /// The resource version of the latest write.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        self.lock_state().resource_version
    }

    /// Reads a consistent state. `reader` runs under the store's lock, so it must be quick.
    pub fn read<T>(&self, reader: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        reader(&Snapshot {
            state: &self.lock_state(),
        })
    }

    /// Waits until `condition` holds, checking after each write. `condition` runs under the store's lock.
    ///
    /// # Errors
    /// [`Error::Deadline`] after [`WAIT_DEADLINE`].
    pub async fn wait_until(&self, condition: impl FnMut(&Snapshot<'_>) -> bool) -> Result<(), Error> {
        self.wait_until_within(WAIT_DEADLINE, condition).await
    }

    /// Like [`Store::wait_until`], with another timeout.
    ///
    /// # Errors
    /// [`Error::Deadline`] after `deadline`.
    pub async fn wait_until_within(
        &self,
        deadline: Duration,
        mut condition: impl FnMut(&Snapshot<'_>) -> bool,
    ) -> Result<(), Error> {
        let mut changed = self.inner.changed.subscribe();
        let met = changed.wait_for(|_| self.read(&mut condition));
        match tokio::time::timeout(deadline, met).await {
            Ok(Ok(_)) => Ok(()),
            // The sender lives in `self`, so only the deadline can end the wait.
            Ok(Err(_)) | Err(_) => Err(Error::Deadline { after: deadline }),
        }
    }

    /// Drops all past states: older resource versions are answered with 410 from now on.
    pub fn compact(&self) {
        let mut state = self.lock_state();
        let current = state.resource_version;
        for collection in state.collections.values_mut() {
            collection.log.clear();
            collection.compacted = current;
        }
    }

    /// From now on, reads that allow old data (`resourceVersion=0`, or a minimum version) show the current state, like an API server
    /// whose watch cache lags, until [`Store::catch_up`]. Watches are not affected.
    pub fn fall_behind(&self) {
        let mut state = self.lock_state();
        state.cached = Some(state.resource_version);
    }

    /// Ends the effect of [`Store::fall_behind`].
    pub fn catch_up(&self) {
        self.lock_state().cached = None;
    }

    pub(crate) fn get(&self, collection: &str, key: &Key) -> Option<Arc<Object>> {
        self.lock_state().collections.get(collection)?.objects.get(key).cloned()
    }

    /// The current state of one namespace, or of all if it is empty.
    pub(crate) fn list(&self, collection: &str, namespace: &str) -> Listing {
        let state = self.lock_state();
        let objects = state
            .collections
            .get(collection)
            .map(|c| in_namespace(&c.objects, namespace));
        Listing {
            resource_version: state.resource_version,
            objects: objects.unwrap_or_default(),
        }
    }

    /// The state in the watch cache, at least at this version.
    pub(crate) fn list_cached(&self, collection: &str, namespace: &str, not_older_than: u64) -> Listing {
        let cached = self.lock_state().cached;
        let behind = cached.and_then(|at| self.list_at(collection, namespace, at.max(not_older_than)).ok());
        // Without the past state, the cache has caught up.
        behind.unwrap_or_else(|| self.list(collection, namespace))
    }

    /// The state at a past resource version: the current state with the log undone.
    pub(crate) fn list_at(&self, collection: &str, namespace: &str, at: u64) -> Result<Listing, Compacted> {
        let state = self.lock_state();
        let Some(collection) = state.collections.get(collection) else {
            return Ok(Listing {
                resource_version: at,
                objects: Vec::new(),
            });
        };
        if at < collection.compacted {
            return Err(Compacted {
                oldest: collection.compacted,
            });
        }
        let newer = |event: &&Arc<Event>| event.resource_version > at;
        if collection.log.iter().rev().take_while(newer).next().is_none() {
            return Ok(Listing {
                resource_version: at,
                objects: in_namespace(&collection.objects, namespace),
            });
        }
        let mut objects = collection.objects.clone();
        for event in collection.log.iter().rev().take_while(newer) {
            match &event.previous {
                Some(previous) => objects.insert(event.key.clone(), Arc::clone(previous)),
                None => objects.remove(&event.key),
            };
        }
        Ok(Listing {
            resource_version: at,
            objects: in_namespace(&objects, namespace),
        })
    }

    /// Up to `most` changes after `since`, oldest first, and the resource version up to which they are complete.
    pub(crate) fn changes_since(
        &self,
        collection: &str,
        since: u64,
        most: usize,
    ) -> Result<(Vec<Arc<Event>>, u64), Compacted> {
        let state = self.lock_state();
        let Some(collection) = state.collections.get(collection) else {
            return Ok((Vec::new(), since));
        };
        if since < collection.compacted {
            return Err(Compacted {
                oldest: collection.compacted,
            });
        }
        let first = collection.log.partition_point(|event| event.resource_version <= since);
        let events: Vec<_> = collection.log.range(first..).take(most).cloned().collect();
        let reached = match events.last() {
            Some(last) if events.len() == most => last.resource_version,
            _ => state.resource_version,
        };
        Ok((events, reached))
    }

    /// A channel that is notified of each change of the collection.
    pub(crate) fn subscribe(&self, collection: &str) -> Option<watch::Receiver<u64>> {
        Some(self.lock_state().collections.get(collection)?.changed.subscribe())
    }

    /// Runs `body` with the store locked, so that what it reads stays true until it writes.
    pub(crate) fn run_transaction<T>(
        &self,
        collection: &str,
        dry_run: bool,
        body: impl FnOnce(&mut Transaction<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut state = self.lock_state();
        let before = state.resource_version;
        let done = body(&mut Transaction {
            state: &mut state,
            collection,
            dry_run,
            event_log: self.inner.event_log,
        });
        let after = state.resource_version;
        if after != before {
            if let Some(collection) = state.collections.get(collection) {
                collection.changed.send_replace(after);
            }
            drop(state);
            self.inner.changed.send_replace(after);
        }
        done
    }
}

fn in_namespace(objects: &BTreeMap<Key, Arc<Object>>, namespace: &str) -> Vec<Arc<Object>> {
    let from = Bound::Included(Key::new(namespace, ""));
    let range = objects.range((from, Bound::Unbounded));
    range
        .take_while(|(key, _)| namespace.is_empty() || key.namespace == namespace)
        .map(|(_, object)| Arc::clone(object))
        .collect()
}

/// A consistent state of all kinds, borrowed from the store.
#[derive(Debug)]
pub struct Snapshot<'a> {
    state: &'a State,
}

impl<'a> Snapshot<'a> {
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        self.state.resource_version
    }

    /// One object. `resource` is the plural name with its group: `configmaps`, `deployments.apps`. `namespace` is empty for
    /// cluster-scoped objects.
    #[must_use]
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&'a Value> {
        let objects = &self.state.collections.get(resource)?.objects;
        objects.get(&Key::new(namespace, name)).map(|object| &object.value)
    }

    /// All objects of a kind, ordered by namespace and name; none for an unknown kind.
    pub fn list(&self, resource: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        let objects = self.state.collections.get(resource).map(|c| c.objects.values());
        objects.into_iter().flatten().map(|object| &object.value)
    }
}
