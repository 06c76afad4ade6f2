//! Builders for what a plugin wants to see.

use crate::{MatchRule, Phases, Subscription, Traffic, Verb};

impl Subscription {
    /// Called in `phases` for what at least one rule matches.
    pub fn new(phases: Phases, rules: impl IntoIterator<Item = MatchRule>) -> Self {
        Self {
            phases,
            rules: rules.into_iter().collect(),
        }
    }

    /// Subscribes to nothing: the plugin is configured, but never called.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Phases::empty(), [])
    }
}

impl MatchRule {
    /// Matches everything of one kind of traffic.
    #[must_use]
    pub fn of(traffic: Traffic) -> Self {
        Self {
            traffic: vec![traffic],
            ..Self::any()
        }
    }

    /// Matches every call of the controller to the Kubernetes API server.
    #[must_use]
    pub fn api() -> Self {
        Self::of(Traffic::Api)
    }

    /// Matches everything.
    #[must_use]
    pub fn any() -> Self {
        Self {
            traffic: Vec::new(),
            verbs: Vec::new(),
            groups: Vec::new(),
            resources: Vec::new(),
            subresources: Vec::new(),
            namespaces: Vec::new(),
            names: Vec::new(),
            paths: Vec::new(),
            hosts: Vec::new(),
            user_agents: Vec::new(),
        }
    }

    /// Only these verbs.
    #[must_use]
    pub fn verbs(mut self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        self.verbs = verbs.into_iter().collect();
        self
    }
}

macro_rules! text_fields {
    ($($(#[$doc:meta])* $field:ident),+ $(,)?) => {
        /// Each replaces the field's list. An empty list matches everything; `*` alone, at the end or at the beginning of
        /// a value matches any text there.
        impl MatchRule {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field<T: Into<String>>(mut self, values: impl IntoIterator<Item = T>) -> Self {
                    self.$field = values.into_iter().map(Into::into).collect();
                    self
                }
            )+
        }
    };
}

text_fields!(
    /// Only these API groups; `""` is the core group.
    groups,
    /// Only these resources: plural, lower case.
    resources,
    /// Only these subresources; `""` is the resource itself.
    subresources,
    /// Only these namespaces; `""` is cluster scope and lists over all namespaces.
    namespaces,
    /// Only objects of these names.
    names,
    /// Only these decoded paths.
    paths,
    /// Only these host names, without port.
    hosts,
    /// Only these user agents.
    user_agents,
);
