//! Replaces a built-in plugin by a user's plugin, for the pods of one shard. Rate limits, breakers and faults come from other
//! objects with pod selectors of their own: their entries are split into the pods whose shard replaces the plugin, and the rest.

use ctrlmesh_contract::{LabelSelector, Mistakes};
use ctrlmesh_manager_api::{PluginRef, ShardingConfig};

use crate::label_set::LabelSet;

/// Maximum entries that one object may be split into.
const MAX_PIECES: usize = 256;

/// A group of an object's pods, and the plugin that they run instead of the built-in one.
pub(super) struct PodGroup<'a> {
    /// Suffix of the entry's name. It is empty for the first entry with the built-in plugin, so that its name does not change when
    /// the plugin is replaced for other pods.
    pub(super) suffix: String,
    pub(super) pods: LabelSelector,
    pub(super) instead: Option<(&'a ShardingConfig, &'a PluginRef)>,
}

/// Splits the pods of an object by the plugin that they run.
pub(super) fn divide_pods<'a>(
    pods: &LabelSelector,
    instead: impl Iterator<Item = (&'a ShardingConfig, &'a PluginRef)>,
) -> Result<Vec<PodGroup<'a>>, Mistakes> {
    let instead: Vec<_> = instead.collect();
    if instead.is_empty() {
        let (suffix, pods) = (String::new(), pods.clone());
        return Ok(vec![PodGroup {
            suffix,
            pods,
            instead: None,
        }]);
    }
    let mut pieces = Vec::new();
    let mut rest: Vec<LabelSet> = LabelSet::from_selector(pods).into_iter().collect();
    for (config, plugin) in instead {
        let selector = config.spec.selector.clone().unwrap_or_default();
        let Some(shard) = LabelSet::from_selector(&selector) else {
            continue;
        };
        pieces.extend(of_shard(&rest, &shard, config, plugin));
        rest = rest.iter().flat_map(|part| part.difference(&shard)).collect();
        if pieces.len() + rest.len() > MAX_PIECES {
            return Err(too_many());
        }
    }
    for (number, pods) in rest.iter().flat_map(LabelSet::selectors).enumerate() {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("/rest/{number}")
        };
        pieces.push(PodGroup {
            suffix,
            pods,
            instead: None,
        });
    }
    if pieces.len() > MAX_PIECES {
        Err(too_many())
    } else {
        Ok(pieces)
    }
}

fn of_shard<'a>(
    pods: &[LabelSet],
    shard: &LabelSet,
    config: &'a ShardingConfig,
    plugin: &'a PluginRef,
) -> Vec<PodGroup<'a>> {
    let shared = pods
        .iter()
        .filter_map(|part| part.intersection(shard))
        .flat_map(|part| part.selectors());
    let piece = |(number, pods)| PodGroup {
        suffix: numbered_name(&entry_suffix(config), number),
        pods,
        instead: Some((config, plugin)),
    };
    shared.enumerate().map(piece).collect()
}

/// Suffix of the first entry for a shard's pods.
pub(super) fn entry_suffix(config: &ShardingConfig) -> String {
    format!("/{}", config.metadata.name.as_deref().unwrap_or_default())
}

fn numbered_name(name: &str, number: usize) -> String {
    if number == 0 {
        name.to_owned()
    } else {
        format!("{name}/part/{number}")
    }
}

fn too_many() -> Mistakes {
    let mut mistakes = Mistakes::default();
    let problem = format!(
        "falls into more than {MAX_PIECES} parts, as shards with plugins in place of built-in ones select its pods by many labels; \
         let those shards select pods by one label"
    );
    mistakes.add("spec.selector", problem);
    mistakes
}
