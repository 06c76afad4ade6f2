//! The last seen objects of one kind, at most one for each namespace, from a single watch. The tasks that keep namespaces get their
//! changes.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// `None`: not read yet.
type KnownState<K> = Option<Option<K>>;

pub(super) struct LastSeen<K> {
    /// The namespace that an object is for.
    namespace_of: fn(&K) -> Option<String>,
    all: BTreeMap<String, K>,
    /// Objects of a list that is not complete.
    listed: BTreeMap<String, K>,
    is_complete: bool,
    followed: BTreeMap<String, watch::Sender<KnownState<K>>>,
}

impl<K: Clone + Send + Sync + 'static> LastSeen<K> {
    pub(super) fn new(namespace_of: fn(&K) -> Option<String>) -> Self {
        Self {
            namespace_of,
            all: BTreeMap::new(),
            listed: BTreeMap::new(),
            is_complete: false,
            followed: BTreeMap::new(),
        }
    }

    pub(super) fn observe(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                let namespace = (self.namespace_of)(&object);
                self.listed.extend(namespace.map(|namespace| (namespace, object)));
            }
            Event::InitDone => {
                self.all = std::mem::take(&mut self.listed);
                self.is_complete = true;
                for namespace in self.followed.keys() {
                    self.notify(namespace);
                }
            }
            Event::Apply(object) => {
                if let Some(namespace) = (self.namespace_of)(&object) {
                    self.all.insert(namespace.clone(), object);
                    self.notify(&namespace);
                }
            }
            Event::Delete(object) => {
                if let Some(namespace) = (self.namespace_of)(&object) {
                    self.all.remove(&namespace);
                    self.notify(&namespace);
                }
            }
        }
    }

    pub(super) fn get(&self, namespace: &str) -> Option<&K> {
        self.all.get(namespace)
    }

    /// The states of a namespace's object, beginning with the current one; `None`: there is none.
    pub(super) fn states_of(&mut self, namespace: &str) -> BoxStream<'static, Option<K>> {
        let (sender, mut receiver) = watch::channel(self.known_state(namespace));
        self.followed.insert(namespace.to_owned(), sender);
        receiver.mark_changed();
        let next = |mut receiver: watch::Receiver<KnownState<K>>| async move {
            receiver.changed().await.ok()?;
            let known = receiver.borrow_and_update().clone();
            Some((known, receiver))
        };
        stream::unfold(receiver, next)
            .filter_map(|known| async move { known })
            .boxed()
    }

    pub(super) fn stop_following(&mut self, namespace: &str) {
        self.followed.remove(namespace);
    }

    fn known_state(&self, namespace: &str) -> KnownState<K> {
        self.is_complete.then(|| self.all.get(namespace).cloned())
    }

    fn notify(&self, namespace: &str) {
        if let Some(sender) = self.followed.get(namespace) {
            sender.send_replace(self.known_state(namespace));
        }
    }
}
