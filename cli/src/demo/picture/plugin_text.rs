//! Text of a sidecar's report about the plugin that the current step has added.

use serde_json::Value;

use crate::demo::observations::SidecarObservations;
use crate::demo::plugin_documents::{CIRCUIT_BREAKER_ENTRY, FAULT_INJECT_ENTRY, RATE_LIMIT_ENTRY};
use crate::paint::{Colour, Paint};

/// At most 32 characters.
pub(super) fn plugin_text(sidecar: &SidecarObservations, entry: &str, paint: Paint) -> String {
    let count = |name: &str| sidecar.own.count_of(entry, name);
    match entry {
        RATE_LIMIT_ENTRY => format!("{} granted, {} waited", count("granted"), count("queued")),
        CIRCUIT_BREAKER_ENTRY => {
            let state = breaker_state(sidecar);
            let colour = if state == "Closed" { Colour::Green } else { Colour::Red };
            let (refused, probed) = (count("refused"), count("probed"));
            format!("{}, {refused} refused, {probed} probes", paint.colour(colour, state))
        }
        FAULT_INJECT_ENTRY => format!("{} faults in {} requests", count("fault_fired"), count("fault_matched")),
        _ => "–".to_owned(),
    }
}

fn breaker_state(sidecar: &SidecarObservations) -> &str {
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
    fn plugin_text_fits_replica_column() {
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
                let sidecar = SidecarObservations {
                    own: OwnCounts::read(&names.map(|name| line(entry, name)).concat()),
                    ..SidecarObservations::default()
                };
                plugin_text(&sidecar, entry, paint)
            };
            assert_eq!(text_of(Paint::Plain), expected);
            assert!(expected.chars().count() + "HalfOpen".len() <= 34, "{expected}");
        }
    }
}
