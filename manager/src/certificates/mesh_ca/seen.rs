//! Objects of one kind, at most one for each namespace: as they were last seen, and told to whoever keeps that namespace. One watch
//! is enough for all of them.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// `None`: nobody has looked yet.
type Known<K> = Option<Option<K>>;

pub(super) struct Seen<K> {
    /// For which namespace an object is.
    namespace_of: fn(&K) -> Option<String>,
    all: BTreeMap<String, K>,
    /// Those of a list that is not complete.
    listed: BTreeMap<String, K>,
    is_complete: bool,
    followed: BTreeMap<String, watch::Sender<Known<K>>>,
}

impl<K: Clone + Send + Sync + 'static> Seen<K> {
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
                    self.tell(namespace);
                }
            }
            Event::Apply(object) => {
                if let Some(namespace) = (self.namespace_of)(&object) {
                    self.all.insert(namespace.clone(), object);
                    self.tell(&namespace);
                }
            }
            Event::Delete(object) => {
                if let Some(namespace) = (self.namespace_of)(&object) {
                    self.all.remove(&namespace);
                    self.tell(&namespace);
                }
            }
        }
    }

    pub(super) fn get(&self, namespace: &str) -> Option<&K> {
        self.all.get(namespace)
    }

    /// Each one of a namespace, from the one that there is now; `None`: there is none.
    pub(super) fn follow(&mut self, namespace: &str) -> BoxStream<'static, Option<K>> {
        let (sender, mut receiver) = watch::channel(self.known(namespace));
        self.followed.insert(namespace.to_owned(), sender);
        receiver.mark_changed();
        let next = |mut receiver: watch::Receiver<Known<K>>| async move {
            receiver.changed().await.ok()?;
            let known = receiver.borrow_and_update().clone();
            Some((known, receiver))
        };
        stream::unfold(receiver, next)
            .filter_map(|known| async move { known })
            .boxed()
    }

    pub(super) fn forget(&mut self, namespace: &str) {
        self.followed.remove(namespace);
    }

    fn known(&self, namespace: &str) -> Known<K> {
        self.is_complete.then(|| self.all.get(namespace).cloned())
    }

    fn tell(&self, namespace: &str) {
        if let Some(sender) = self.followed.get(namespace) {
            sender.send_replace(self.known(namespace));
        }
    }
}
