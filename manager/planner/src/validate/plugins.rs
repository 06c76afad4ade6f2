//! Validates `spec.plugins[]` of a ShardingConfig.

use ctrlmesh_contract::chain::MAX_SETTINGS_BYTES;
use ctrlmesh_contract::error::quote;
use ctrlmesh_manager_api::plugin::PullPolicy;
use ctrlmesh_manager_api::{PluginRef, VerificationKey};
use serde_json::Value;

use super::{Findings, image};
use crate::built_in::BuiltIn;

pub(super) fn check_plugins(plugins: &[PluginRef], findings: &mut Findings) {
    for (index, plugin) in plugins.iter().enumerate() {
        let path = format!("spec.plugins[{index}]");
        if let Some(built_in) = BuiltIn::named_by(plugin) {
            check_named(built_in, plugin, &path, findings);
        } else if let Some(problem) = image::image_problem(&plugin.image) {
            findings.refuse(format!("{path}.image"), problem);
        }
        if let Some(key) = &plugin.verification_key
            && let Err(problem) = VerificationKey::parse(key)
        {
            findings.refuse(format!("{path}.verificationKey"), format!("{} {problem}", quote(key)));
        }
        let size = Value::Object(plugin.settings.clone()).to_string().len();
        if size > MAX_SETTINGS_BYTES {
            let problem = format!("has {size} bytes as JSON, at most {MAX_SETTINGS_BYTES} are allowed; shorten it");
            findings.refuse(format!("{path}.settings"), problem);
        }
        if let Some(built_in) = BuiltIn::replaced_by(&plugin.name) {
            check_replacement(built_in, plugin, &path, findings);
        }
    }
}

/// Lets a built-in plugin check the settings that the object has for it.
fn check_named(built_in: BuiltIn, plugin: &PluginRef, path: &str, findings: &mut Findings) {
    // IfNotPresent is the default, which API servers write into every object.
    let is_always = plugin.pull_policy == PullPolicy::Always;
    if is_always || plugin.pull_secret.is_some() || plugin.verification_key.is_some() {
        let problem = format!(
            "{} without an image is the manager's own and is not pulled",
            built_in.name()
        );
        findings.refuse(
            path,
            format!("{problem}; remove pullPolicy, pullSecret and verificationKey"),
        );
    }
    let settings = Value::Object(plugin.settings.clone());
    findings.ask_whole(built_in, &settings, "", &|inner| match inner {
        "" => format!("{path}.settings"),
        inner => format!("{path}.settings.{inner}"),
    });
}

/// The settings of a built-in plugin are made from custom resources. A plugin that replaces it may have more settings, but not the
/// same.
fn check_replacement(built_in: BuiltIn, plugin: &PluginRef, path: &str, findings: &mut Findings) {
    for field in built_in.fields() {
        if plugin.settings.contains_key(*field) {
            let source = match built_in {
                BuiltIn::ShardSelector => "limits and controller of this object",
                BuiltIn::RateLimit | BuiltIn::CircuitBreaker => "the CircuitBreakers of these pods",
                BuiltIn::FaultInject => "the FaultInjections of these pods",
                // It has no such fields.
                BuiltIn::TrimObjects => continue,
            };
            let problem = format!(
                "is made from {source} for the plugin in place of {}; remove it",
                built_in.name()
            );
            findings.refuse(format!("{path}.settings.{field}"), problem);
        }
    }
    if plugin.order != 0 {
        let problem = format!(
            "has no effect, as this plugin takes the place of {} in the chain; remove it",
            built_in.name()
        );
        findings.refuse(format!("{path}.order"), problem);
    }
}
