//! The built-in plugins: their names, their order in the chain, and their own checks of settings.

use ctrlmesh_contract::{FailurePolicy, Mistake};
use ctrlmesh_manager_api::PluginRef;
use ctrlmesh_sdk::InstanceInfo;
use serde_json::Value;

/// The built-in plugins, in the order in which they are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltIn {
    /// First, so that faults apply also to requests that a later plugin refuses.
    FaultInject,
    RateLimit,
    /// Circuit breakers, and allow and block lists of external services.
    CircuitBreaker,
    /// Leaves fields out of objects. It runs only where `spec.plugins` names it, among the user's plugins.
    TrimObjects,
    /// Limits lists and watches to the shard. Last, so that no other plugin can widen them again.
    ShardSelector,
}

/// Order of the user's first plugin. A thousand fit between it and shard-selector.
pub(crate) const FIRST_OWN_ORDER: i32 = 1000;

impl BuiltIn {
    pub const ALL: [Self; 5] = [
        Self::FaultInject,
        Self::RateLimit,
        Self::CircuitBreaker,
        Self::TrimObjects,
        Self::ShardSelector,
    ];

    /// The plugin's name in entries and in `spec.plugins`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FaultInject => "fault-inject",
            Self::RateLimit => "rate-limit",
            Self::CircuitBreaker => "circuit-breaker",
            Self::TrimObjects => "trim-objects",
            Self::ShardSelector => "shard-selector",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|built_in| built_in.name() == name)
    }

    /// The built-in plugin that a plugin of this name in `spec.plugins` replaces.
    pub(crate) fn replaced_by(name: &str) -> Option<Self> {
        Self::from_name(name).filter(|built_in| *built_in != Self::TrimObjects)
    }

    /// The built-in plugin that an element of `spec.plugins` without an image stands for.
    #[must_use]
    pub fn named_by(plugin: &PluginRef) -> Option<Self> {
        let is_named = plugin.image.is_empty() && plugin.name == Self::TrimObjects.name();
        is_named.then_some(Self::TrimObjects)
    }

    /// `order` of its entries; of trim-objects, the lowest.
    pub(crate) const fn order(self) -> i32 {
        match self {
            Self::FaultInject => 100,
            Self::RateLimit => 200,
            Self::CircuitBreaker => 300,
            Self::TrimObjects => FIRST_OWN_ORDER,
            Self::ShardSelector => 2000,
        }
    }

    /// Without its shard's rule a controller would see the whole cluster, so shard-selector fails closed. Without a limit or
    /// breaker, a controller works as it did before. Entries of trim-objects have what `spec.plugins` says, and this is the
    /// default there.
    pub(crate) const fn on_failure(self) -> FailurePolicy {
        match self {
            Self::ShardSelector | Self::TrimObjects => FailurePolicy::Closed,
            Self::FaultInject | Self::RateLimit | Self::CircuitBreaker => FailurePolicy::Open,
        }
    }

    /// Fields of its settings that are computed from custom resources.
    pub(crate) const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::FaultInject => &["httpFault", "faults", "seed", "class", "disabled"],
            Self::RateLimit => &["rateLimitings", "rules"],
            Self::CircuitBreaker => &["rateLimitings", "rules", "trafficInterceptRules"],
            Self::TrimObjects => &[],
            Self::ShardSelector => &["limits", "leaderElectionName", "shard", "consistentReads", "namedGets"],
        }
    }

    /// Validates settings by the plugin's own code. Returns the plugin's warnings.
    ///
    /// # Errors
    /// The invalid field and how to correct it, in the words in which a sidecar would refuse the chain.
    pub fn check(self, settings: &Value, namespace: &str) -> Result<Vec<String>, Mistake> {
        let about = InstanceInfo {
            entry: self.name().to_owned(),
            digest: String::new(),
            pod_namespace: namespace.to_owned(),
            pod_name: String::new(),
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let ask = match self {
            Self::FaultInject => ctrlmesh_native_fault_inject::check,
            Self::RateLimit => ctrlmesh_native_rate_limit::check,
            Self::CircuitBreaker => ctrlmesh_native_circuit_breaker::check,
            Self::TrimObjects => ctrlmesh_native_trim_objects::check,
            Self::ShardSelector => ctrlmesh_native_shard_selector::check,
        };
        ask(&settings.to_string(), &about).map_err(|text| split_mistake(&text))
    }
}

/// Splits `limits[2].selector: is wrong`. A message without a path may have a colon too, but words before it.
fn split_mistake(text: &str) -> Mistake {
    let is_path = |path: &str| !path.is_empty() && !path.contains(|c: char| c.is_whitespace() || c == '"');
    let (path, problem) = match text.split_once(": ") {
        Some((path, problem)) if is_path(path) => (path, problem),
        _ => ("", text),
    };
    Mistake {
        path: path.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn built_in_plugins_are_ordered_as_listed() {
        let orders: Vec<i32> = BuiltIn::ALL.into_iter().map(BuiltIn::order).collect();
        assert!(orders.is_sorted());
        let [.., before, trim_objects, last] = orders[..] else {
            panic!("five")
        };
        assert!(before < FIRST_OWN_ORDER && FIRST_OWN_ORDER + 999 < last);
        assert_eq!(trim_objects, FIRST_OWN_ORDER);
        for built_in in BuiltIn::ALL {
            assert_eq!(BuiltIn::from_name(built_in.name()), Some(built_in));
        }
    }

    #[test]
    fn each_plugin_checks_its_own_settings() {
        let mistake_of = |built_in: BuiltIn, settings: Value| {
            let mistake = built_in.check(&settings, "demo").unwrap_err();
            (mistake.path, mistake.problem)
        };
        let (path, problem) = mistake_of(
            BuiltIn::FaultInject,
            json!({"httpFault": [{"do": "conflct", "match": {"resources": [{}]}}]}),
        );
        assert!(
            path.starts_with("httpFault[0].do") && problem.contains("conflct"),
            "{path}: {problem}"
        );
        let (path, problem) = mistake_of(BuiltIn::RateLimit, json!({"rateLimitings": [{"name": "a"}]}));
        assert_eq!(path, "rateLimitings[0].bucket", "{problem}");
        let (path, _) = mistake_of(
            BuiltIn::CircuitBreaker,
            json!({"rateLimitings": [{"name": "a", "triggerPolicy": "Normal"}]}),
        );
        assert_eq!(path, "rateLimitings[0].bucket");
        let (path, _) = mistake_of(
            BuiltIn::ShardSelector,
            json!({"limits": [{"selector": {"matchLabels": {"a b": "c"}}}]}),
        );
        assert_eq!(path, "limits[0].selector.matchLabels");
        let (path, _) = mistake_of(
            BuiltIn::TrimObjects,
            json!({"rules": [{"resources": [{}], "fields": ["kind"]}]}),
        );
        assert_eq!(path, "rules[0].fields[0]");
        let (path, problem) = mistake_of(BuiltIn::ShardSelector, json!([]));
        assert_eq!(
            (path.as_str(), problem.starts_with("settings are named fields")),
            ("", true)
        );
    }

    #[test]
    fn fields_are_those_of_plugin_settings() {
        for built_in in BuiltIn::ALL {
            for field in built_in.fields() {
                let settings = json!({ *field: {"no": "such"} });
                let problem = built_in.check(&settings, "demo").map_err(|mistake| mistake.problem);
                assert!(
                    !problem.is_err_and(|problem| problem.contains("unknown field")),
                    "{} {field}",
                    built_in.name()
                );
            }
        }
    }
}
