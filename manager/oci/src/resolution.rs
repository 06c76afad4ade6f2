//! A plugin reference to resolve, and its resolution.

use std::sync::Arc;

use ctrlmesh_manager_api::plugin::{PluginStatus, PullPolicy};

use super::artifact::Artifact;
use super::failure::FailureReason;

/// A plugin of an object that is to be resolved.
#[derive(Clone, Debug)]
pub struct ResolveRequest {
    /// Namespace of the object and of its Secret.
    pub namespace: String,
    /// `spec.plugins[].image`.
    pub image: String,
    /// `spec.plugins[].pullPolicy`.
    pub pull_policy: PullPolicy,
    /// `spec.plugins[].pullSecret`.
    pub pull_secret: Option<String>,
    /// `spec.plugins[].verificationKey`.
    pub verification_key: Option<String>,
    /// The plugin's element in the object's status.
    pub pinned: Option<PluginStatus>,
}

/// The result of resolving a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    Pending,
    /// The plugin can be distributed.
    Ready(Arc<Artifact>),
    Failed {
        reason: FailureReason,
        message: String,
        /// The last good artifact of the same reference. It is kept in use.
        last: Option<Arc<Artifact>>,
    },
}
