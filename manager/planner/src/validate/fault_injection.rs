//! Rules of a FaultInjection.

use ctrlmesh_manager_api::FaultInjection;
use serde_json::{Value, json};

use super::rule_check::RuleCheck;
use super::{Findings, resource_names};
use crate::built_in::BuiltIn;
use crate::settings;

pub(crate) fn check_fault_injection(faults: &FaultInjection) -> Findings {
    let mut findings = Findings::default();
    let namespace = faults.metadata.namespace.as_deref().unwrap_or_default();
    match &faults.spec.selector {
        Some(selector) => selector.validate("spec.selector", &mut findings.mistakes),
        None => findings.refuse(
            "spec.selector",
            "is missing, so no pod is meant; say which ({} is all of the namespace)",
        ),
    }
    let Some(Value::Object(settings)) = settings::fault_inject(faults) else {
        findings
            .warnings
            .add("spec.httpFault", "has no rule and no effect; write one");
        return findings;
    };
    for (index, fault) in faults.spec.http_fault.iter().enumerate() {
        let mut alone = settings.clone();
        alone.insert("httpFault".to_owned(), json!([settings::json_of(fault)]));
        let check = RuleCheck {
            plugin: BuiltIn::FaultInject,
            namespace,
            settings: Value::Object(alone),
            rules: "httpFault",
            lists: &["match.resources", "match.nonResources", "match.httpMatch"],
        };
        check.add_mistakes(index, &mut findings);
    }
    resource_names::warn_of_names_in_faults(faults, &mut findings);
    if findings.is_accepted() {
        findings.ask_whole(BuiltIn::FaultInject, &Value::Object(settings), namespace, &|path| {
            // The plugin has two lists of rules and names the first.
            format!("spec.{}", if path == "faults" { "httpFault" } else { path })
        });
    }
    findings
}
