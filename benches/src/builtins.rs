//! The plugins besides shard-selector as entries of a chain, with rules that match the measured requests and let them pass.

use ctrlmesh_contract::Digest;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Builtin {
    name: &'static str,
    order: i32,
    settings: &'static str,
    pub(crate) plugin: &'static [u8],
}

/// Every request for a config map takes a token, of more than there can be requests.
pub(crate) const RATE_LIMIT: Builtin = Builtin {
    name: "rate-limit/a",
    order: 200,
    settings: r#"{"rateLimitings": [{
        "name": "config",
        "resourceRules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": ["*"]}],
        "bucket": {"limit": 1000000, "interval": "1s", "burst": 1000000}
    }]}"#,
    plugin: ctrlmesh_plugins_builtin::RATE_LIMIT,
};

/// A closed breaker for each resource, which sees the end of every request.
pub(crate) const CIRCUIT_BREAKER: Builtin = Builtin {
    name: "circuit-breaker/a",
    order: 300,
    settings: r#"{"rateLimitings": [{
        "name": "api",
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
        "triggerPolicy": "Normal",
        "trip": {"errorPercent": 50, "minimumRequests": 20, "window": "30s"},
        "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "15s"},
        "key": "resource"
    }]}"#,
    plugin: ctrlmesh_plugins_builtin::CIRCUIT_BREAKER,
};

/// A fault of every request for a config map that lets it pass at once: each is counted as matched and as fired, and none is drawn for.
pub(crate) const FAULT_INJECT: Builtin = Builtin {
    name: "fault-inject/a",
    order: 100,
    settings: r#"{"faults": [{
        "name": "late",
        "match": {"resources": [{"apiGroups": [""], "resources": ["configmaps"]}]},
        "do": {"delay": {"for": "0s"}}
    }]}"#,
    plugin: ctrlmesh_plugins_builtin::FAULT_INJECT,
};

/// A fault that every request for a config map may have: each is counted and drawn for, and one of a thousand is delayed by a millisecond.
pub(crate) const FAULT_INJECT_THAT_DRAWS: Builtin = Builtin {
    settings: r#"{"faults": [{
        "name": "late",
        "match": {"resources": [{"apiGroups": [""], "resources": ["configmaps"]}]},
        "do": {"delay": {"for": "1ms"}},
        "percent": 0.1
    }]}"#,
    ..FAULT_INJECT
};

/// A fault of the later pages of lists, with a `match` that has all verbs, and one for an object that no request names. So the first one
/// wakes the plugin, neither is counted or drawn for, and the plugin compares the name in each request: there is a verdict for each name.
pub(crate) const FAULT_INJECT_BY_NAME: Builtin = Builtin {
    settings: r#"{"faults": [{
        "name": "page",
        "match": {"resources": [{"apiGroups": [""], "resources": ["configmaps"]}]},
        "do": "failPage",
        "percent": 0.1
    }, {
        "name": "late",
        "match": {"resources": [{"apiGroups": [""], "resources": ["configmaps"], "names": ["other"]}]},
        "do": {"delay": {"for": "1ms"}},
        "percent": 0.1
    }]}"#,
    ..FAULT_INJECT
};

impl Builtin {
    /// The entry in the chain document.
    pub(crate) fn chain_entry(&self) -> anyhow::Result<serde_json::Value> {
        let settings: serde_json::Value = serde_json::from_str(self.settings)?;
        Ok(serde_json::json!({
            "name": self.name, "plugin": format!("sha256:{}", Digest::of(self.plugin).hex()), "podSelector": {},
            "order": self.order, "onFailure": "Closed", "settings": settings,
        }))
    }
}
