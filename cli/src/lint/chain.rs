//! Chain documents, as a sidecar reads them: the document itself, and the settings of plugins that ctrlmesh ships.

use ctrlmesh_contract::names::CHAIN_API_VERSION;
use ctrlmesh_contract::{Chain, Digest, Error, Mistake, Mistakes};
use ctrlmesh_manager::{BuiltIn, Findings};
use serde_json::Value;

use super::object::text;

/// Whether a document is a chain.
pub(super) fn is_chain(document: &Value) -> bool {
    text(document, "apiVersion") == CHAIN_API_VERSION
}

/// What a sidecar would refuse in the text of a chain. `is_alone`: nothing else is in its file.
pub(super) fn judge(written: &str, is_alone: bool) -> Findings {
    let mut findings = Findings::default();
    if !is_alone {
        let problem = "is one of several documents; a sidecar reads a chain from a file that has nothing else";
        findings.mistakes.add("", problem);
    }
    match Chain::parse(written.as_bytes()) {
        Ok(chain) => settings(&chain, &mut findings),
        Err(Error::Mistakes { mistakes }) => {
            for Mistake { path, problem } in mistakes.list() {
                findings.mistakes.add(path.clone(), problem.clone());
            }
        }
        Err(error) => findings.mistakes.add("", error.to_string()),
    }
    findings
}

/// Asks the plugins that are known by their digests. What another one thinks of its settings, `ctrlmesh plugin test` tells.
fn settings(chain: &Chain, findings: &mut Findings) {
    let shipped = ctrlmesh_plugins_builtin::builtin().iter();
    let shipped: Vec<(BuiltIn, Digest)> = shipped
        .filter_map(|plugin| Some((BuiltIn::of(plugin.name)?, Digest::of(plugin.bytes))))
        .collect();
    for (index, entry) in chain.entries.iter().enumerate() {
        let Some((built_in, _)) = shipped.iter().find(|(_, digest)| *digest == entry.plugin) else {
            continue;
        };
        let path = format!("entries[{index}].settings");
        match built_in.check(entry.settings.value(), &chain.namespace) {
            Ok(warnings) => warnings
                .into_iter()
                .for_each(|warning| findings.warnings.add(path.clone(), warning)),
            Err(mistake) => wrong(&mistake, &path, &mut findings.mistakes),
        }
    }
}

fn wrong(Mistake { path, problem }: &Mistake, settings: &str, mistakes: &mut Mistakes) {
    let path = match path.as_str() {
        "" => settings.to_owned(),
        path => format!("{settings}.{path}"),
    };
    mistakes.add(path, problem.clone());
}
