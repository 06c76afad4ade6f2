//! One write: the locked store, limited to one collection. [`crate::write`] has the rules.

use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

use super::{Change, Event, State};
use crate::object::{Key, Object};

pub(crate) struct Transaction<'a> {
    pub(super) state: &'a mut State,
    pub(super) collection: &'a str,
    pub(super) dry_run: bool,
    pub(super) event_log: usize,
}

impl Transaction<'_> {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.state.collections.get(self.collection)?.objects.get(key).cloned()
    }

    /// Whether an object exists in any collection.
    pub(crate) fn object_exists(&self, collection: &str, key: &Key) -> bool {
        self.state
            .collections
            .get(collection)
            .is_some_and(|c| c.objects.contains_key(key))
    }

    /// Whether `namespace` has any object.
    pub(crate) fn is_populated(&self, namespace: &str) -> bool {
        let first = (Bound::Included(Key::new(namespace, "")), Bound::Unbounded);
        let mut collections = self.state.collections.values();
        collections.any(|c| {
            c.objects
                .range(first.clone())
                .next()
                .is_some_and(|(key, _)| key.namespace == namespace)
        })
    }

    /// Stores `value` at the next resource version. A dry run only returns the object.
    pub(crate) fn put(&mut self, key: Key, value: Value) -> Arc<Object> {
        if self.dry_run {
            return Arc::new(Object::without_version(value, self.state.resource_version));
        }
        let object = Arc::new(Object::new(value, self.state.resource_version + 1));
        self.record_change(key, Change::Stored(Arc::clone(&object)));
        object
    }

    /// Removes an object; `last` is its final state.
    pub(crate) fn remove(&mut self, key: Key, last: Value) -> Arc<Object> {
        if self.dry_run {
            return Arc::new(Object::without_version(last, self.state.resource_version));
        }
        let object = Arc::new(Object::new(last, self.state.resource_version + 1));
        self.record_change(key, Change::Deleted(Arc::clone(&object)));
        object
    }

    fn record_change(&mut self, key: Key, change: Change) {
        let Some(collection) = self.state.collections.get_mut(self.collection) else {
            return;
        };
        self.state.resource_version += 1;
        let previous = match &change {
            Change::Stored(object) => collection.objects.insert(key.clone(), Arc::clone(object)),
            Change::Deleted(_) => collection.objects.remove(&key),
        };
        let resource_version = self.state.resource_version;
        collection.log.push_back(Arc::new(Event {
            resource_version,
            key,
            previous,
            change,
        }));
        while collection.log.len() > self.event_log {
            if let Some(forgotten) = collection.log.pop_front() {
                collection.compacted = forgotten.resource_version;
            }
        }
    }
}
