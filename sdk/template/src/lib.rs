//! A plugin for ctrlmesh: makes namespaces read-only for a controller.

use ctrlmesh_sdk::{
    Host, InstanceInfo, MatchRule, Phases, Plugin, Refusal, Request, RequestVerdict, Subscription, Verb,
};

/// The `settings` of the chain entry.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    /// Namespaces in which nothing may be written. A `*` at the end or at the beginning matches any text.
    read_only_namespaces: Vec<String>,
}

/// Refuses writes.
struct ReadOnly;

impl Plugin for ReadOnly {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        if settings.read_only_namespaces.is_empty() {
            return Err("readOnlyNamespaces: name at least one namespace".to_owned());
        }
        // Other requests cost nothing: the host does not call the plugin for them.
        let writes = MatchRule::api()
            .verbs([
                Verb::Create,
                Verb::Update,
                Verb::Patch,
                Verb::Delete,
                Verb::Deletecollection,
            ])
            .namespaces(settings.read_only_namespaces);
        Ok((ReadOnly, Subscription::new(Phases::ON_REQUEST, [writes])))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let namespace = req.namespace();
        host.count("refused", namespace, 1);
        RequestVerdict::refuse(Refusal::new(403, format!("namespace {namespace} is read-only")))
    }
}

ctrlmesh_sdk::export_plugin!(ReadOnly);

#[cfg(test)]
mod tests {
    use ctrlmesh_sdk::RequestAction;
    use ctrlmesh_sdk::testing::{Bench, TestRequest};

    use super::*;

    const SETTINGS: &str = r#"{"readOnlyNamespaces": ["prod-*"]}"#;

    #[test]
    fn write_is_refused_and_counted() {
        let mut bench = Bench::<ReadOnly>::new(SETTINGS).unwrap();
        let write = TestRequest::api(Verb::Patch, "apps", "deployments")
            .namespace("prod-eu")
            .name("web");
        assert!(bench.wakes(&write));
        assert!(matches!(bench.on_request(&write).action, RequestAction::Refuse(refusal) if refusal.code == 403));
        assert_eq!(bench.host.counter("refused", "prod-eu"), 1);
    }

    #[test]
    fn reads_and_other_namespaces_do_not_wake_the_plugin() {
        let bench = Bench::<ReadOnly>::new(SETTINGS).unwrap();
        assert!(!bench.wakes(&TestRequest::list("apps", "deployments").namespace("prod-eu")));
        assert!(!bench.wakes(&TestRequest::api(Verb::Create, "", "pods").namespace("dev")));
    }

    #[test]
    fn misspelt_setting_is_named() {
        let error = Bench::<ReadOnly>::new(r#"{"readOnlyNamespace": []}"#).err().unwrap();
        assert!(error.starts_with("readOnlyNamespace: unknown field"), "{error}");
    }
}
