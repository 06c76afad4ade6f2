//! Query edits: a first line with the key, a second one with the value, then the query.

use ctrlmesh_wire::{Query, QueryEditor};

/// No panic; an edited query has the new value and no other value of the key, for strict and for lenient readers; every other pair is
/// unchanged in order and spelling.
pub fn query_rewrite(data: &[u8]) {
    let (key, rest) = crate::split_line(data);
    let (value, raw) = crate::split_line(rest);
    let (Ok(key), Ok(value), Ok(raw)) = (
        std::str::from_utf8(key),
        std::str::from_utf8(value),
        std::str::from_utf8(raw),
    ) else {
        return;
    };
    let mut editor = QueryEditor::new(raw);
    editor.set(key, value);
    assert_eq!(editor.get(key).as_deref(), Some(value));
    assert_eq!(editor.is_changed(), editor.clone().finish() != raw);
    let set = editor.clone().finish();
    let values: Vec<String> = Query::new(&set)
        .pairs()
        .filter(|(name, _)| name == key)
        .map(|(_, v)| v.into_owned())
        .collect();
    assert_eq!(values, [value]);
    assert_eq!(other_pairs(&set, key), other_pairs(raw, key));
    editor.set(key, value);
    assert_eq!(editor.clone().finish(), set, "a second time changes nothing");
    editor.remove(key);
    let removed = editor.finish();
    assert_eq!(Query::new(&removed).get(key), None);
    assert_eq!(other_pairs(&removed, key), other_pairs(raw, key));
    assert_eq!(lenient_count(&removed, key), 0, "{removed:?} still names {key:?}");
}

/// The pairs of other keys, as written.
fn other_pairs<'a>(raw: &'a str, key: &str) -> Vec<&'a str> {
    let is_other =
        |piece: &&str| !piece.is_empty() && Query::new(piece).get(key).is_none() && lenient_count(piece, key) == 0;
    raw.split('&').filter(is_other).collect()
}

/// How often a reader finds the key that splits at `;` too and takes a bad escape as it stands.
fn lenient_count(raw: &str, key: &str) -> usize {
    let names = raw
        .split(['&', ';'])
        .filter(|piece| !piece.is_empty())
        .map(|piece| piece.split('=').next().unwrap_or(""));
    // A name with good escapes can be read in one way only. The `=` makes a pair of an empty name too.
    let is_key = |name: &&str| match Query::new(&format!("{name}=")) {
        query if query.malformed_pair().is_some() => *name == key,
        query => query.get(key).is_some(),
    };
    names.filter(is_key).count()
}
