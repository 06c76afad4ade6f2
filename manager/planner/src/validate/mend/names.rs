//! Corrects names of resources that no API server has, such as singular ones.

use serde_json::Value;

use super::{Change, Mend, Path, elements, limits};
use crate::validate::resource_names::plural;

pub(super) fn mend(document: &Value, kind: &str) -> Option<Mend> {
    groups(document, kind).into_iter().find_map(|(path, group)| {
        let list = |field: &str| -> Vec<String> {
            let list = group.get(field).and_then(Value::as_array).into_iter().flatten();
            list.map(|item| item.as_str().unwrap_or_default().to_owned()).collect()
        };
        let (groups, names) = (list("apiGroups"), list("resources"));
        names.iter().enumerate().find_map(|(index, name)| {
            let plural = plural(name, &groups)?;
            let change = if names.contains(&plural) {
                Change::Remove
            } else {
                Change::Text(plural)
            };
            Some(Mend::new(path.key("resources").index(index), change))
        })
    })
}

/// Every mapping with groups and resources.
fn groups<'v>(document: &'v Value, kind: &str) -> Vec<(Path, &'v Value)> {
    let of_each = |path: &str, field: &str| {
        let all = elements(document, &Path::of(path)).into_iter();
        all.flat_map(|(path, _)| elements(document, &Path([path.0, Path::of(field).0].concat())))
            .collect()
    };
    match kind {
        "ShardingConfig" => {
            let all = limits(document).into_iter();
            all.flat_map(|(path, _)| elements(document, &path.key("relateResources")))
                .collect()
        }
        "CircuitBreaker" => of_each("spec.rateLimitings", "resourceRules"),
        "FaultInjection" => of_each("spec.httpFault", "match.resources"),
        _ => Vec::new(),
    }
}
