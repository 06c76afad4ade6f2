//! The objects of one name in many namespaces: as they were last seen, and made what they shall be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use ctrlmesh_contract::names::{CA_CONFIG_MAP, SERVING_SECRET};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::ObjectMeta;
use kube::runtime::events::EventType;
use kube::runtime::watcher::Event;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::{Context, FIELD_MANAGER, MANAGED_BY, post_params};
use crate::events;
use crate::plain::plain;

/// Files that an object holds.
pub(super) type Files = BTreeMap<&'static str, String>;

/// A kind of which each namespace has one.
pub(super) trait Kept:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Default
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Its name everywhere.
    const NAME: &'static str;

    fn holds(&self, files: &Files) -> bool;

    fn put(&mut self, files: &Files);
}

impl Kept for ConfigMap {
    const NAME: &'static str = CA_CONFIG_MAP;

    fn holds(&self, files: &Files) -> bool {
        let data = self.data.as_ref();
        files
            .iter()
            .all(|(name, text)| data.and_then(|data| data.get(*name)) == Some(text))
    }

    fn put(&mut self, files: &Files) {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), text.clone()));
        self.data.get_or_insert_default().extend(files);
    }
}

impl Kept for Secret {
    const NAME: &'static str = SERVING_SECRET;

    fn holds(&self, files: &Files) -> bool {
        let data = self.data.as_ref();
        let is_there =
            |name: &str, text: &str| data.is_some_and(|data| data.get(name).is_some_and(|it| it.0 == text.as_bytes()));
        files.iter().all(|(name, text)| is_there(name, text))
    }

    fn put(&mut self, files: &Files) {
        // It can't be changed later.
        self.type_.get_or_insert_with(|| "kubernetes.io/tls".to_owned());
        let files = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), ByteString(text.clone().into_bytes())));
        self.data.get_or_insert_default().extend(files);
    }
}

/// How writing one went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is what it shall be, or a watch will soon say more.
    Well,
    /// There is no such namespace any more.
    Gone,
    /// It must be tried again.
    Failed,
}

/// All of them, by namespace.
#[derive(Debug)]
pub(super) struct Copies<K> {
    seen: BTreeMap<String, K>,
    /// Those of a list that is not complete.
    listed: BTreeMap<String, K>,
    is_seen: bool,
    /// Objects of somebody else that were told of.
    told: BTreeSet<String>,
}

impl<K: Kept> Copies<K> {
    pub(super) fn new() -> Self {
        Self {
            seen: BTreeMap::new(),
            listed: BTreeMap::new(),
            is_seen: false,
            told: BTreeSet::new(),
        }
    }

    /// Whether all that were there have been seen.
    pub(super) const fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Takes note, and says whether that is of use yet.
    pub(super) fn see(&mut self, event: Event<K>) -> bool {
        let place = |object: &K| object.namespace().unwrap_or_default();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => drop(self.listed.insert(place(&object), object)),
            Event::InitDone => {
                self.seen = std::mem::take(&mut self.listed);
                self.is_seen = true;
                return true;
            }
            Event::Apply(object) => {
                self.seen.insert(place(&object), object);
                return true;
            }
            Event::Delete(object) => {
                self.seen.remove(&place(&object));
                return true;
            }
        }
        false
    }

    /// Ours, and where they lie.
    pub(super) fn ours(&self) -> impl Iterator<Item = (&String, &K)> {
        self.seen.iter().filter(|(_, object)| is_ours(*object))
    }

    /// Makes the object of a namespace hold these files, unless it is somebody else's.
    pub(super) async fn write(&mut self, context: &Context, namespace: &str, files: &Files) -> Written {
        let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
        let written = match self.seen.get(namespace) {
            Some(found) if !is_ours(found) => {
                self.tell(context, namespace).await;
                return Written::Well;
            }
            Some(found) if found.holds(files) => return Written::Well,
            Some(found) => {
                let mut object = found.clone();
                object.put(files);
                api.replace(K::NAME, &post_params(), &object).await
            }
            None => api.create(&post_params(), &new(files)).await,
        };
        match written {
            Ok(object) => {
                tracing::info!(namespace, kind = &*K::kind(&()), name = K::NAME, "written");
                self.seen.insert(namespace.to_owned(), object);
                Written::Well
            }
            Err(error) => failure::<K>(namespace, &error),
        }
    }

    /// Once: it may be on purpose.
    async fn tell(&mut self, context: &Context, namespace: &str) {
        let Some(object) = self.seen.get(namespace) else { return };
        if !self.told.insert(object.uid().unwrap_or_default()) {
            return;
        }
        let note = format!(
            "Pods of this namespace have sidecars that serve TLS, and mount this. ctrlmesh-manager did not make it and leaves it alone. \
             Delete it, or give it the label {MANAGED_BY}={FIELD_MANAGER}, unless what it holds is meant"
        );
        tracing::warn!(namespace, kind = &*K::kind(&()), name = K::NAME, "{note}");
        events::publish(context, &object.object_ref(&()), EventType::Warning, "NotOurs", &note).await;
    }
}

fn is_ours<K: Kept>(object: &K) -> bool {
    object.labels().get(MANAGED_BY).is_some_and(|by| by == FIELD_MANAGER)
}

fn new<K: Kept>(files: &Files) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta {
        name: Some(K::NAME.to_owned()),
        labels: Some(BTreeMap::from([(MANAGED_BY.to_owned(), FIELD_MANAGER.to_owned())])),
        ..ObjectMeta::default()
    };
    object.put(files);
    object
}

fn failure<K: Kept>(namespace: &str, error: &kube::Error) -> Written {
    match error {
        // Somebody else wrote it.
        kube::Error::Api(status) if status.code == 409 => Written::Well,
        kube::Error::Api(status) if status.code == 404 || is_terminating(status) => Written::Gone,
        _ => {
            let (kind, error) = (K::kind(&()), plain(error));
            tracing::warn!(namespace, kind = &*kind, name = K::NAME, %error, "can't be written; it is tried again");
            Written::Failed
        }
    }
}

/// `NamespaceTerminatingCause`: nothing can be made there any more.
fn is_terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
