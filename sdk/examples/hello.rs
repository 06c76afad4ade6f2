//! The smallest plugin that is of use: refuses to delete the namespaces that its settings name, and marks what one user
//! agent sends.
//!
//! ```yaml
//! settings:
//!   protectedNamespaces: [kube-system, payments]
//!   markUserAgent: kubectl*
//! ```

use ctrlmesh_sdk::{
    Host, InstanceInfo, MatchRule, Phases, Plugin, Refusal, Request, RequestEdit, RequestVerdict, Subscription, Verb,
};

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    protected_namespaces: Vec<String>,
    /// Requests of this user agent get the header `x-hello: hello`. A `*` at the end or at the beginning matches any text.
    mark_user_agent: Option<String>,
}

struct Hello {
    protected: Vec<String>,
}

impl Plugin for Hello {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let protected = settings.protected_namespaces;
        let mut rules = Vec::new();
        if !protected.is_empty() {
            let deletes = MatchRule::api()
                .verbs([Verb::Delete])
                .groups([""])
                .resources(["namespaces"]);
            rules.push(deletes.names(protected.clone()));
        }
        rules.extend(
            settings
                .mark_user_agent
                .map(|agent| MatchRule::api().user_agents([agent])),
        );
        if rules.is_empty() {
            return Err("set protectedNamespaces or markUserAgent; without both there is nothing to do".to_owned());
        }
        Ok((Hello { protected }, Subscription::new(Phases::ON_REQUEST, rules)))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let deletes_namespace = req.verb() == Verb::Delete && req.group().is_empty() && req.resource() == "namespaces";
        if deletes_namespace && self.protected.iter().any(|name| name == req.name()) {
            host.count("refused", req.name(), 1);
            let message = format!("namespace {} is protected by the plugin hello", req.name());
            return RequestVerdict::refuse(Refusal::new(403, message));
        }
        // One of the two rules brought the request here; if it was not the first, it was the user agent's.
        RequestVerdict::edit([RequestEdit::set_header("x-hello", "hello")])
    }
}

ctrlmesh_sdk::export_plugin!(Hello);

#[cfg(test)]
mod tests {
    use ctrlmesh_sdk::testing::{Bench, TestRequest};

    use super::*;

    const SETTINGS: &str = r#"{"protectedNamespaces": ["payments"], "markUserAgent": "kubectl*"}"#;

    fn delete(name: &str) -> TestRequest {
        TestRequest::api(Verb::Delete, "", "namespaces")
            .name(name)
            .namespace(name)
    }

    #[test]
    fn protected_namespace_stays() {
        let mut bench = Bench::<Hello>::new(SETTINGS).unwrap();
        assert!(bench.wakes(&delete("payments")));
        let expected = Refusal::new(403, "namespace payments is protected by the plugin hello");
        assert_eq!(bench.on_request(&delete("payments")), RequestVerdict::refuse(expected));
        assert_eq!(bench.host.counter("refused", "payments"), 1);
    }

    #[test]
    fn other_requests_do_not_even_wake_the_plugin() {
        let bench = Bench::<Hello>::new(SETTINGS).unwrap();
        assert!(!bench.wakes(&delete("scratch")));
        assert!(!bench.wakes(&TestRequest::list("", "namespaces")));
    }

    #[test]
    fn marked_user_agent_gets_a_header() {
        let mut bench = Bench::<Hello>::new(SETTINGS).unwrap();
        let request = delete("scratch").agent("kubectl/v1.36");
        assert!(bench.wakes(&request));
        let marked = RequestVerdict::edit([RequestEdit::set_header("x-hello", "hello")]);
        assert_eq!(bench.on_request(&request), marked);
    }

    #[test]
    fn settings_without_effect_are_refused() {
        let error = Bench::<Hello>::new("{}").err().unwrap();
        assert!(error.contains("protectedNamespaces"), "{error}");
    }
}
