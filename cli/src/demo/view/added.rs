//! What a sidecar says of the plugin that an act has added.

use serde_json::Value;

use crate::demo::added::{CIRCUIT_BREAKER_ENTRY, FAULT_INJECT_ENTRY, RATE_LIMIT_ENTRY};
use crate::demo::facts::SidecarFacts;
use crate::paint::{Colour, Paint};

/// In at most 32 characters.
pub(super) fn text(sidecar: &SidecarFacts, entry: &str, paint: Paint) -> String {
    let count = |name: &str| sidecar.own.of(entry, name);
    match entry {
        RATE_LIMIT_ENTRY => format!("{} granted, {} waited", count("granted"), count("queued")),
        CIRCUIT_BREAKER_ENTRY => {
            let state = state(sidecar);
            let colour = if state == "Closed" { Colour::Green } else { Colour::Red };
            let (refused, probed) = (count("refused"), count("probed"));
            format!("{}, {refused} refused, {probed} probes", paint.colour(colour, state))
        }
        FAULT_INJECT_ENTRY => format!("{} faults in {} requests", count("fault_fired"), count("fault_matched")),
        _ => "–".to_owned(),
    }
}

/// Of its only breaker.
fn state(sidecar: &SidecarFacts) -> &str {
    let entries = &sidecar.status.chain.entries;
    let entry = entries.iter().find(|status| status.name == CIRCUIT_BREAKER_ENTRY);
    let report = entry.and_then(|entry| entry.reports.values().next());
    let state = report.and_then(|report| report.get("state")).and_then(Value::as_str);
    state.unwrap_or("–")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::metrics::OwnCounts;

    #[test]
    fn each_plugin_is_told_in_what_fits_beside_the_other_replica() {
        let line =
            |entry: &str, name: &str| format!("ctrlmesh_plugin_{name}_total{{entry=\"{entry}\",label=\"a\"}} 123\n");
        for (entry, names, expected) in [
            (RATE_LIMIT_ENTRY, ["granted", "queued"], "123 granted, 123 waited"),
            (
                CIRCUIT_BREAKER_ENTRY,
                ["refused", "probed"],
                "–, 123 refused, 123 probes",
            ),
            (
                FAULT_INJECT_ENTRY,
                ["fault_fired", "fault_matched"],
                "123 faults in 123 requests",
            ),
        ] {
            let text_of = |paint| {
                let sidecar = SidecarFacts {
                    own: OwnCounts::read(&names.map(|name| line(entry, name)).concat()),
                    ..SidecarFacts::default()
                };
                text(&sidecar, entry, paint)
            };
            assert_eq!(text_of(Paint::Plain), expected);
            assert!(expected.chars().count() + "HalfOpen".len() <= 34, "{expected}");
        }
    }
}
