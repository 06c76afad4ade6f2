//! Ranges of a hash: from settings to a predicate on objects. `view` decides which requests get it.
//!
//! The hashes, 2^64, are divided into 1,024 ranges of equal size. Settings have their numbers, as the manager divides them among shards.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{HashKey, HashRange, ObjectPredicate};
use ctrlmesh_wire::is_label_key;

use crate::settings::HashRanges;

/// The number of the last range.
const LAST_RANGE: u64 = 1023;
/// Bits of a hash that do not tell its range.
const RANGE_BITS: u32 = 54;

/// Objects with a hash in one of the ranges; without ranges, none. If the ranges have all hashes, there is a predicate nevertheless: the
/// host must see that the shard limits the resource, to show nothing to a leader that comes from another shard.
pub(crate) fn predicate_of(hash: &HashRanges) -> Result<ObjectPredicate, Invalid> {
    let key = parse_key(&hash.key).map_err(|error| error.field("key"))?;
    let mut ranges = Vec::new();
    for (index, text) in hash.ranges.iter().enumerate() {
        let range = parse_range(text).ok_or_else(|| {
            let message = format!("{text:?} is no range: write numbers from 0 to {LAST_RANGE}, such as 7, or 0-340");
            Invalid::new(message).index(index).field("ranges")
        })?;
        ranges.push(range);
    }
    Ok(ObjectPredicate::hash_ranges(key, ranges))
}

/// Whether the ranges have all hashes. Ranges that cannot be read do not count.
pub(crate) fn are_complete(hash: &HashRanges) -> bool {
    let mut ranges: Vec<HashRange> = hash.ranges.iter().filter_map(|text| parse_range(text)).collect();
    ranges.sort_by_key(|range| range.start);
    let mut next = 0;
    for range in ranges {
        if range.start > next {
            return false;
        }
        let Some(end) = range.end else { return true };
        next = next.max(end);
    }
    false
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

/// Parses one number, or the first and the last one. `None`: it has another form.
fn parse_range(text: &str) -> Option<HashRange> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_number(first)?, parse_number(last)?);
    if last < first {
        return None;
    }
    let start = first << RANGE_BITS;
    let end = (last < LAST_RANGE).then(|| (last + 1) << RANGE_BITS);
    Some(HashRange { start, end })
}

/// The number of a range, in digits alone.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|_| is_number);
    number.filter(|number| *number <= LAST_RANGE)
}
