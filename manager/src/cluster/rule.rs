//! What a part of the manager may do in a cluster. It stands beside the part's code as `RULES`; `process::rbac` makes roles of it.

/// Where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    /// In the manager's own.
    Namespace,
}

/// Calls that a part of the manager makes.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub scope: Scope,
    /// API group; "" is the core group.
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Names of objects; empty: any. `create` can't be limited so; `list` and `watch` only of one object, by a field selector
    /// for its name.
    pub names: &'static [&'static str],
}
