//! Which namespaces have sidecars that said something new: what leads from answers to passes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{Stream, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

/// How long dirty are gathered: answers of many sidecars lead to few passes.
const GATHER: Duration = Duration::from_millis(50);

/// Namespaces whose sidecars said something new.
#[derive(Debug, Default)]
pub(super) struct DirtyNamespaces {
    of: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl DirtyNamespaces {
    pub(super) fn add(&self, namespace: &str) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.insert(namespace.to_owned());
        self.wake.notify_one();
    }

    fn take(&self) -> Option<String> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// One by one, as they come. For one reader.
    pub(super) fn namespaces(self: &Arc<Self>) -> impl Stream<Item = ObjectRef<Namespace>> + use<> {
        stream::unfold(Arc::clone(self), async |dirty| {
            loop {
                if let Some(namespace) = dirty.take() {
                    return Some((ObjectRef::new(&namespace), dirty));
                }
                dirty.wake.notified().await;
                tokio::time::sleep(GATHER).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    #[tokio::test]
    async fn news_of_many_are_one_and_none_is_lost() {
        let dirty = Arc::new(DirtyNamespaces::default());
        let mut namespaces = std::pin::pin!(dirty.namespaces());
        for namespace in ["a", "b", "a"] {
            dirty.add(namespace);
        }
        for expected in ["a", "b"] {
            assert_eq!(namespaces.next().await.unwrap().name, expected);
        }
        assert!(namespaces.next().now_or_never().is_none());
        let later = async {
            tokio::task::yield_now().await;
            dirty.add("c");
        };
        let (next, ()) = tokio::join!(namespaces.next(), later);
        assert_eq!(next.unwrap().name, "c");
    }
}
