//! Ranges of a hash: from settings to a predicate on objects. `view` decides which requests get it.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{HashKey, HashRange, ObjectPredicate};
use ctrlmesh_wire::is_label_key;
use ctrlmesh_wire::objects::{self, VirtualRanges};

use crate::settings::HashRanges;

/// The objects with a hash in one of the ranges of a limit.
#[derive(Debug)]
pub(crate) struct KeptObjects {
    /// Keeps no object if there are no ranges. If the ranges have all hashes, there is a predicate nevertheless: the host must see that
    /// the shard limits the resource, to show nothing to a leader that comes from another shard.
    pub(crate) predicate: ObjectPredicate,
    /// Whether a hash is in none of the ranges.
    pub(crate) is_divided: bool,
}

impl KeptObjects {
    pub(crate) fn new(hash: &HashRanges) -> Result<Self, Invalid> {
        let key = parse_key(&hash.key).map_err(|error| error.field("key"))?;
        let mut ranges = Vec::new();
        for (index, text) in hash.ranges.iter().enumerate() {
            let range = VirtualRanges::parse(text)
                .map_err(|error| Invalid::new(error.to_string()).index(index).field("ranges"))?;
            ranges.push(range.hashes());
        }
        let kept = ranges.iter().map(|range| HashRange {
            start: range.start(),
            end: range.end(),
        });
        Ok(Self {
            predicate: ObjectPredicate::hash_ranges(key, kept),
            is_divided: objects::HashRange::merge(ranges) != [objects::HashRange::ALL],
        })
    }
}

fn parse_key(text: &str) -> Result<HashKey, Invalid> {
    match text {
        "uid" => Ok(HashKey::Uid),
        "namespace" => Ok(HashKey::Namespace),
        "owner" => Ok(HashKey::ControllerUid),
        _ => {
            let label = text.strip_prefix("label(").and_then(|rest| rest.strip_suffix(')'));
            match label {
                Some(label) if is_label_key(label) => Ok(HashKey::Label(label.to_owned())),
                Some(label) => Err(Invalid::new(format!(
                    "{label:?} is no label key; write it as name or example.com/name"
                ))),
                None => Err(Invalid::new(format!(
                    "unknown key {text:?}, use uid, namespace, owner or label(<key of a label>)"
                ))),
            }
        }
    }
}
