//! Permissions of a part of the manager in a cluster. They stand beside the part's code as `RULES`; `process::rbac` makes roles of
//! them.

/// The part of a cluster to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    /// The manager's namespace.
    Namespace,
}

/// Requests that a part of the manager sends.
#[derive(Clone, Copy, Debug)]
pub struct RbacRule {
    pub scope: Scope,
    /// API group; "" is the core group.
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Names of objects; empty: any. Names can't restrict `create`. They restrict `list` and `watch` only for one object, selected
    /// by its name.
    pub names: &'static [&'static str],
}
