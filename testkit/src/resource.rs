//! The kinds that the server stores: group, version, names, scope, and the write rules that differ between kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Error;
use crate::accept::Encoding;
use crate::protobuf;

/// One kind of object, as `APIResource` describes it in discovery.
///
/// The write rules of a custom resource are those of `customresourcedefinitions`: an update must carry a
/// `resourceVersion`, it never creates, and `metadata.generation` follows everything but metadata (and `status`, where
/// that is a subresource).
#[derive(Debug, Clone)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// API version, such as `v1`.
    pub version: String,
    /// Plural name, the one in paths.
    pub plural: String,
    /// Singular name, for `kubectl get <singular>`.
    pub singular: String,
    /// Kind, such as `ConfigMap`.
    pub kind: String,
    /// Short names, for `kubectl get cm`.
    pub short_names: Vec<String>,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether `status` is a subresource: then the main resource ignores `.status`, and `/status` everything else.
    pub status: bool,
    /// Whether `metadata.generation` is kept (upstream: `PrepareForUpdate` of each strategy).
    pub(crate) generation: bool,
    /// Whether an update without `resourceVersion` is taken (upstream: `AllowUnconditionalUpdate`).
    pub(crate) unconditional_update: bool,
    /// Whether an update of a missing object creates it (upstream: `AllowCreateOnUpdate`).
    pub(crate) create_on_update: bool,
}

impl Resource {
    /// A custom resource whose objects live in namespaces.
    #[must_use]
    pub fn namespaced(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            short_names: Vec::new(),
            namespaced: true,
            status: false,
            generation: true,
            unconditional_update: false,
            create_on_update: false,
        }
    }

    /// A custom resource outside namespaces.
    #[must_use]
    pub fn cluster(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        Self {
            namespaced: false,
            ..Self::namespaced(group, version, plural, kind)
        }
    }

    /// Makes `status` a subresource.
    #[must_use]
    pub fn with_status(mut self) -> Self {
        self.status = true;
        self
    }

    /// Adds a short name.
    #[must_use]
    pub fn short_name(mut self, name: &str) -> Self {
        self.short_names.push(name.into());
        self
    }

    /// `v1` or `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `configmaps` or `deployments.apps`: the name in messages and in [`crate::Store`].
    #[must_use]
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Whether its objects have an encoding in protobuf.
    pub(crate) fn has_protobuf(&self) -> bool {
        protobuf::has_kind(&self.api_version(), &self.kind)
    }

    /// The media types of its objects, for errors.
    pub(crate) fn media_types(&self) -> String {
        let json = Encoding::Json.media_type();
        if self.has_protobuf() {
            format!("{json}, {}", Encoding::Protobuf.media_type())
        } else {
            json.to_owned()
        }
    }

    fn built_in(mut self) -> Self {
        self.generation = false;
        self.unconditional_update = true;
        self
    }

    fn keeping_generation(mut self) -> Self {
        self.generation = true;
        self
    }

    fn creating_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }
}

/// The kinds that are always served: those of the core group and of `apps`, `batch`, `coordination.k8s.io`, `events.k8s.io` and
/// `rbac.authorization.k8s.io` that only need to be stored.
fn built_in_kinds() -> Vec<Resource> {
    let mut lease = Resource::namespaced("coordination.k8s.io", "v1", "leases", "Lease")
        .built_in()
        .creating_on_update();
    lease.unconditional_update = false;
    let events = Resource::namespaced("events.k8s.io", "v1", "events", "Event");
    let mut resources = core_kinds();
    resources.push(lease);
    resources.push(events.built_in().creating_on_update().short_name("ev"));
    resources.extend(workload_kinds());
    resources.extend(rbac_kinds());
    resources
}

fn core_kinds() -> Vec<Resource> {
    let namespaced = |plural: &str, kind: &str| Resource::namespaced("", "v1", plural, kind).built_in();
    let cluster = |plural: &str, kind: &str| Resource::cluster("", "v1", plural, kind).built_in();
    vec![
        cluster("namespaces", "Namespace").with_status().short_name("ns"),
        cluster("nodes", "Node").with_status().short_name("no"),
        cluster("persistentvolumes", "PersistentVolume")
            .with_status()
            .short_name("pv"),
        namespaced("configmaps", "ConfigMap").short_name("cm"),
        namespaced("secrets", "Secret"),
        namespaced("events", "Event").creating_on_update().short_name("ev"),
        namespaced("pods", "Pod")
            .keeping_generation()
            .with_status()
            .short_name("po"),
        namespaced("podtemplates", "PodTemplate").keeping_generation(),
        namespaced("replicationcontrollers", "ReplicationController")
            .keeping_generation()
            .with_status()
            .short_name("rc"),
        namespaced("endpoints", "Endpoints")
            .creating_on_update()
            .short_name("ep"),
        namespaced("services", "Service").with_status().short_name("svc"),
        namespaced("serviceaccounts", "ServiceAccount").short_name("sa"),
        namespaced("persistentvolumeclaims", "PersistentVolumeClaim")
            .with_status()
            .short_name("pvc"),
        namespaced("resourcequotas", "ResourceQuota")
            .with_status()
            .short_name("quota"),
        namespaced("limitranges", "LimitRange")
            .creating_on_update()
            .short_name("limits"),
    ]
}

/// `apps` and `batch`.
fn workload_kinds() -> Vec<Resource> {
    let namespaced = |group, plural, kind| Resource::namespaced(group, "v1", plural, kind).built_in();
    let running = |group, plural, kind| namespaced(group, plural, kind).keeping_generation().with_status();
    vec![
        running("apps", "deployments", "Deployment").short_name("deploy"),
        running("apps", "statefulsets", "StatefulSet").short_name("sts"),
        running("apps", "daemonsets", "DaemonSet").short_name("ds"),
        running("apps", "replicasets", "ReplicaSet").short_name("rs"),
        namespaced("apps", "controllerrevisions", "ControllerRevision"),
        running("batch", "jobs", "Job"),
        running("batch", "cronjobs", "CronJob").short_name("cj"),
    ]
}

fn rbac_kinds() -> Vec<Resource> {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let resources = [
        Resource::namespaced(GROUP, "v1", "roles", "Role"),
        Resource::namespaced(GROUP, "v1", "rolebindings", "RoleBinding"),
        Resource::cluster(GROUP, "v1", "clusterroles", "ClusterRole"),
        Resource::cluster(GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding"),
    ];
    resources
        .map(|resource| resource.built_in().creating_on_update())
        .into()
}

/// Every kind of a server, by group, version and plural name. Immutable once the server runs.
#[derive(Debug)]
pub(crate) struct KindRegistry {
    resources: Vec<Arc<Resource>>,
}

impl KindRegistry {
    /// The built-in kinds and the `custom` ones.
    ///
    /// # Errors
    /// [`Error::Resource`] when two kinds share a group and a plural name: objects are stored by these two, and the
    /// server converts nothing between versions.
    pub(crate) fn new(custom: Vec<Resource>) -> Result<Self, Error> {
        let mut seen = BTreeMap::new();
        let mut resources = Vec::new();
        for resource in built_in_kinds().into_iter().chain(custom) {
            if resource.plural.is_empty() || resource.kind.is_empty() || resource.version.is_empty() {
                return Err(Error::Resource {
                    name: resource.qualified_name(),
                    problem: "needs plural, kind and version",
                });
            }
            if seen.insert(resource.qualified_name(), ()).is_some() {
                return Err(Error::Resource {
                    name: resource.qualified_name(),
                    problem: "is registered twice; one version per group and plural name",
                });
            }
            resources.push(Arc::new(resource));
        }
        Ok(Self { resources })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.iter()
            .find(|r| r.plural == plural && r.group == group && r.version == version)
    }

    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.iter().find(|r| r.kind == kind && r.api_version() == api_version)
    }

    pub(crate) fn by_qualified_name(&self, name: &str) -> Option<&Arc<Resource>> {
        self.iter().find(|r| r.qualified_name() == name)
    }

    /// The groups and the one version of each, without the core group, in order of registration.
    pub(crate) fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        for resource in self.iter().filter(|r| !r.group.is_empty()) {
            match groups.iter_mut().find(|(group, _)| *group == resource.group) {
                Some((_, versions)) if versions.contains(&resource.version.as_str()) => {}
                Some((_, versions)) => versions.push(&resource.version),
                None => groups.push((&resource.group, vec![&resource.version])),
            }
        }
        groups
    }
}
