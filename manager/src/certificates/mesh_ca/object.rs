//! An object with a fixed name in a namespace: its last seen state, and writes that bring it to the desired one.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ctrlmesh_contract::names::{CA_CONFIG_MAP, SERVING_SECRET};
use ctrlmesh_manager_api::{FIELD_MANAGER, MANAGED_BY};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Secret};
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::ObjectMeta;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::certificates::ca::Error;
use crate::cluster::events::{self, EventDraft};
use crate::cluster::{Context, post_params};

/// Files in an object.
pub(super) type Files = BTreeMap<&'static str, String>;

/// A kind of which each namespace has one object.
pub(super) trait ManagedObject:
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
    const NAME: &'static str;

    fn has_files(&self, files: &Files) -> bool;

    fn put(&mut self, files: &Files);
}

impl ManagedObject for ConfigMap {
    const NAME: &'static str = CA_CONFIG_MAP;

    fn has_files(&self, files: &Files) -> bool {
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

impl ManagedObject for Secret {
    const NAME: &'static str = SERVING_SECRET;

    fn has_files(&self, files: &Files) -> bool {
        let data = self.data.as_ref();
        let is_there =
            |name: &str, text: &str| data.is_some_and(|data| data.get(name).is_some_and(|it| it.0 == text.as_bytes()));
        files.iter().all(|(name, text)| is_there(name, text))
    }

    fn put(&mut self, files: &Files) {
        // The type can't be changed later.
        self.type_.get_or_insert_with(|| "kubernetes.io/tls".to_owned());
        let files = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), ByteString(text.clone().into_bytes())));
        self.data.get_or_insert_default().extend(files);
    }
}

/// The object of a namespace.
#[derive(Debug)]
pub(super) struct Object<K> {
    namespace: String,
    /// `None`: not read yet.
    seen: Option<Option<K>>,
    /// UID of a foreign object that was reported.
    reported_uid: Option<String>,
    /// The last reported write error.
    failed: Option<String>,
}

impl<K: ManagedObject> Object<K> {
    pub(super) const fn new(namespace: String) -> Self {
        Self {
            namespace,
            seen: None,
            reported_uid: None,
            failed: None,
        }
    }

    pub(super) const fn is_looked_for(&self) -> bool {
        self.seen.is_some()
    }

    pub(super) fn observe(&mut self, object: Option<K>) {
        self.seen = Some(object);
    }

    /// The object, if the manager created it.
    pub(super) fn own_object(&self) -> Option<&K> {
        self.seen.iter().flatten().find(|object| is_ours(*object))
    }

    /// Writes these files into the object, unless somebody else created it.
    ///
    /// # Errors
    /// The API server refuses the write. This is reported once.
    pub(super) async fn write(&mut self, context: &Context, files: &Files) -> Result<(), Error> {
        let api: Api<K> = Api::namespaced(context.client.clone(), &self.namespace);
        let written = match self.seen.iter().flatten().next() {
            Some(found) if !is_ours(found) => {
                let found = found.clone();
                self.warn_not_ours(context, &found).await;
                return Ok(());
            }
            Some(found) if found.has_files(files) => return Ok(()),
            Some(found) => {
                let mut object = found.clone();
                object.put(files);
                api.replace(K::NAME, &post_params(), &object).await
            }
            None => api.create(&post_params(), &new(files)).await,
        };
        match written {
            Ok(object) => {
                let namespace = &self.namespace;
                tracing::info!(namespace, kind = &*K::kind(&()), name = K::NAME, "object written");
                (self.seen, self.failed) = (Some(Some(object)), None);
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(source) => Err(self.write_error(context, source).await),
        }
    }

    /// Warns of a foreign object. Once, because it may be there on purpose.
    async fn warn_not_ours(&mut self, context: &Context, found: &K) {
        if self.reported_uid.is_some() && self.reported_uid == found.uid() {
            return;
        }
        self.reported_uid = found.uid();
        let namespace = &self.namespace;
        tracing::warn!(
            namespace,
            kind = &*K::kind(&()),
            name = K::NAME,
            "object was not made by ctrlmesh-manager; leaving it unchanged"
        );
        events::publish(context, &found.object_ref(&()), &EventDraft::not_ours()).await;
    }

    /// Publishes an Event about a failed write, once for each reason. Pods of the namespace wait for the object.
    async fn write_error(&mut self, context: &Context, source: kube::Error) -> Error {
        let error = Error::Refused {
            kind: K::kind(&()).into_owned(),
            name: K::NAME,
            source,
        };
        let problem = error.to_string();
        if self.failed.as_ref() != Some(&problem) {
            let about = ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: Some(K::NAME.to_owned()),
                namespace: Some(self.namespace.clone()),
                ..ObjectReference::default()
            };
            events::publish(context, &about, &EventDraft::not_written(&problem)).await;
            self.failed = Some(problem);
        }
        error
    }
}

pub(super) fn is_ours<K: ManagedObject>(object: &K) -> bool {
    object.labels().get(MANAGED_BY).is_some_and(|by| by == FIELD_MANAGER)
}

fn new<K: ManagedObject>(files: &Files) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta {
        name: Some(K::NAME.to_owned()),
        labels: Some(BTreeMap::from([(MANAGED_BY.to_owned(), FIELD_MANAGER.to_owned())])),
        ..ObjectMeta::default()
    };
    object.put(files);
    object
}

/// Whether the error passes: somebody else wrote the object, which a watch will soon show, or the namespace is gone.
fn is_transient(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409) || is_terminating(status))
}

/// `NamespaceTerminatingCause`: nothing can be created in the namespace any more.
fn is_terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}
