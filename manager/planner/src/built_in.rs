//! The built-in plugins: their names, their order in the chain, and their own checks of settings.

use ctrlmesh_contract::{FailurePolicy, Mistake};
use ctrlmesh_sdk::InstanceInfo;
use serde_json::Value;

/// A built-in plugin, in the order in which requests meet them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BuiltIn {
    /// Faults, for the requests that the others let through as for those that they refuse.
    FaultInject,
    RateLimit,
    /// Breakers, and lists of what may be called.
    CircuitBreaker,
    /// A shard's view. Last: nothing that runs before it can widen what it narrows.
    ShardSelector,
}

/// Order of the first of the user's plugins; a thousand are between it and shard-selector.
pub(crate) const FIRST_OWN_ORDER: i32 = 1000;

impl BuiltIn {
    pub const ALL: [Self; 4] = [
        Self::FaultInject,
        Self::RateLimit,
        Self::CircuitBreaker,
        Self::ShardSelector,
    ];

    /// Its name, in entries and in `spec.plugins`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FaultInject => "fault-inject",
            Self::RateLimit => "rate-limit",
            Self::CircuitBreaker => "circuit-breaker",
            Self::ShardSelector => "shard-selector",
        }
    }

    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|built_in| built_in.name() == name)
    }

    /// `order` of its entries.
    pub(crate) const fn order(self) -> i32 {
        match self {
            Self::FaultInject => 100,
            Self::RateLimit => 200,
            Self::CircuitBreaker => 300,
            Self::ShardSelector => 2000,
        }
    }

    /// Without its shard's rule a controller would see the whole cluster; without a limit it works as it did before.
    pub(crate) const fn on_failure(self) -> FailurePolicy {
        match self {
            Self::ShardSelector => FailurePolicy::Closed,
            Self::FaultInject | Self::RateLimit | Self::CircuitBreaker => FailurePolicy::Open,
        }
    }

    /// Fields of its settings that are made from custom resources.
    pub(crate) const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::FaultInject => &["httpFault", "faults", "seed", "class", "disabled"],
            Self::RateLimit => &["rateLimitings", "rules"],
            Self::CircuitBreaker => &["rateLimitings", "rules", "trafficInterceptRules"],
            Self::ShardSelector => &["limits", "leaderElectionName", "shard", "consistentReads"],
        }
    }

    /// Asks the plugin itself. Answers with its warnings.
    ///
    /// # Errors
    /// The field of the settings and what to write instead, as the sidecar would say it when it refuses the chain.
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
            Self::ShardSelector => ctrlmesh_native_shard_selector::check,
        };
        ask(&settings.to_string(), &about).map_err(|text| mistake(&text))
    }
}

/// `limits[2].selector: is wrong`. A message alone has no path before its first colon, but words.
fn mistake(text: &str) -> Mistake {
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
    fn requests_meet_them_in_the_order_of_the_list() {
        let orders: Vec<i32> = BuiltIn::ALL.into_iter().map(BuiltIn::order).collect();
        assert!(orders.is_sorted());
        let [.., before, last] = orders[..] else { panic!("four") };
        assert!(before < FIRST_OWN_ORDER && FIRST_OWN_ORDER + 999 < last);
        for built_in in BuiltIn::ALL {
            assert_eq!(BuiltIn::of(built_in.name()), Some(built_in));
        }
    }

    #[test]
    fn each_plugin_checks_its_own_settings() {
        let told = |built_in: BuiltIn, settings: Value| {
            let mistake = built_in.check(&settings, "demo").unwrap_err();
            (mistake.path, mistake.problem)
        };
        let (path, problem) = told(
            BuiltIn::FaultInject,
            json!({"httpFault": [{"do": "conflct", "match": {"resources": [{}]}}]}),
        );
        assert!(
            path.starts_with("httpFault[0].do") && problem.contains("conflct"),
            "{path}: {problem}"
        );
        let (path, problem) = told(BuiltIn::RateLimit, json!({"rateLimitings": [{"name": "a"}]}));
        assert_eq!(path, "rateLimitings[0].bucket", "{problem}");
        let (path, _) = told(
            BuiltIn::CircuitBreaker,
            json!({"rateLimitings": [{"name": "a", "triggerPolicy": "Normal"}]}),
        );
        assert_eq!(path, "rateLimitings[0].bucket");
        let (path, _) = told(
            BuiltIn::ShardSelector,
            json!({"limits": [{"selector": {"matchLabels": {"a b": "c"}}}]}),
        );
        assert_eq!(path, "limits[0].selector.matchLabels");
        let (path, problem) = told(BuiltIn::ShardSelector, json!([]));
        assert_eq!(
            (path.as_str(), problem.starts_with("settings are named fields")),
            ("", true)
        );
    }

    #[test]
    fn fields_are_those_of_the_plugins_settings() {
        for built_in in BuiltIn::ALL {
            for field in built_in.fields() {
                let settings = json!({ *field: {"no": "such"} });
                let told = built_in.check(&settings, "demo").map_err(|mistake| mistake.problem);
                assert!(
                    !told.is_err_and(|told| told.contains("unknown field")),
                    "{} {field}",
                    built_in.name()
                );
            }
        }
    }
}
