//! Lints chain documents as a sidecar reads them: the document itself, and the settings of the built-in plugins.

use ctrlmesh_contract::names::CHAIN_API_VERSION;
use ctrlmesh_contract::{Chain, Digest, Error, Mistake, Mistakes};
use ctrlmesh_manager_planner::BuiltIn;
use serde_json::Value;

use super::object::{api_group, text_field};
use super::report::LintFindings;

/// Fields that a chain has, and no object of Kubernetes.
const CHAIN_FIELDS: [&str; 2] = ["entries", "generation"];

/// Whether a document is meant to be a chain: by its API group, or, where `apiVersion` is wrong or missing, by its fields. Every object
/// of Kubernetes has a `kind`.
pub(super) fn is_chain(document: &Value) -> bool {
    let has_field = |field: &str| document.get(field).is_some();
    api_group(text_field(document, "apiVersion")) == api_group(CHAIN_API_VERSION)
        || (document.get("kind").is_none() && CHAIN_FIELDS.into_iter().any(has_field))
}

/// Whether a document in a file of unknown purpose is a chain. One of the fields is not enough, because others have it, too.
pub(super) fn is_certainly_chain(document: &Value) -> bool {
    let has_all = CHAIN_FIELDS.iter().all(|field| document.get(field).is_some());
    is_chain(document) && (has_all || !text_field(document, "apiVersion").is_empty())
}

/// Finds the mistakes for which a sidecar would refuse a chain. `written`: the text of the file if the chain is alone there (`is_alone`), or else that of the
/// document.
pub(super) fn lint_chain(written: &str, document: &Value, is_alone: bool) -> LintFindings {
    let mut findings = LintFindings::default();
    if !is_alone {
        let problem = "is one of several documents; a sidecar reads a chain from a file that has nothing else";
        findings.mistakes.add("", problem);
    }
    match Chain::parse(written.as_bytes()) {
        Ok(chain) => {
            let entries = chain.entries.iter().enumerate();
            let settings = entries.map(|(index, entry)| (index, entry.plugin, entry.settings.value()));
            check_settings(settings, &chain.namespace, &mut findings);
        }
        Err(Error::Mistakes { mistakes }) => {
            for Mistake { path, problem } in mistakes.list() {
                findings.mistakes.add(path, problem);
            }
            check_settings(
                readable_settings(document, &mistakes),
                text_field(document, "namespace"),
                &mut findings,
            );
        }
        Err(error) => findings.mistakes.add("", error.to_string()),
    }
    findings
}

/// Settings of entries in an invalid chain, as far as they are still readable.
fn readable_settings<'d>(document: &'d Value, mistakes: &Mistakes) -> impl Iterator<Item = (usize, Digest, &'d Value)> {
    let entries = document.get("entries").and_then(Value::as_array).into_iter().flatten();
    entries.enumerate().filter_map(|(index, entry)| {
        let plugin = text_field(entry, "plugin").parse().ok()?;
        let settings = entry.get("settings").filter(|settings| settings.is_object())?;
        let path = format!("entries[{index}].settings");
        let is_wrong = mistakes.list().iter().any(|mistake| mistake.path == path);
        (!is_wrong).then_some((index, plugin, settings))
    })
}

/// Checks the settings of built-in plugins, found by digest, and names the others.
fn check_settings<'d>(
    settings: impl Iterator<Item = (usize, Digest, &'d Value)>,
    namespace: &str,
    findings: &mut LintFindings,
) {
    let shipped = ctrlmesh_plugins_builtin::builtin().iter();
    let shipped: Vec<(BuiltIn, Digest)> = shipped
        .filter_map(|plugin| Some((BuiltIn::from_name(plugin.name)?, Digest::of(plugin.bytes))))
        .collect();
    for (index, plugin, settings) in settings {
        let path = format!("entries[{index}].settings");
        let Some((built_in, _)) = shipped.iter().find(|(_, digest)| *digest == plugin) else {
            let problem = format!(
                "plugin {plugin} is not among the built-in plugins of this release, and only the plugin itself can check its settings: \
                 use `ctrlmesh plugin test FILE --cases CASES`"
            );
            findings.not_checked.add(path, problem);
            continue;
        };
        match built_in.check(settings, namespace) {
            Ok(warnings) => warnings
                .into_iter()
                .for_each(|warning| findings.warnings.add(path.clone(), warning)),
            Err(mistake) => add_mistake(&mistake, &path, &mut findings.mistakes),
        }
    }
}

fn add_mistake(Mistake { path, problem }: &Mistake, settings: &str, mistakes: &mut Mistakes) {
    let path = match path.as_str() {
        "" => settings.to_owned(),
        path => format!("{settings}.{path}"),
    };
    mistakes.add(path, problem);
}
