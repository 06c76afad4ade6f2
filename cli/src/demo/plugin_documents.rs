//! The objects that steps 7 to 9 apply for both sidecars and delete again, read from files.

use serde_json::Value;

use super::applied_objects::ObjectName;
use crate::error::Error;

/// Names of the entries that the manager makes of them.
pub(crate) const RATE_LIMIT_ENTRY: &str = "rate-limit/widgets";
pub(crate) const CIRCUIT_BREAKER_ENTRY: &str = "circuit-breaker/widgets";
pub(crate) const FAULT_INJECT_ENTRY: &str = "fault-inject/widgets";

/// A CircuitBreaker with a limit only.
pub(crate) fn rate_limit_document() -> Result<Value, Error> {
    parse_document("rate-limit.yaml", include_str!("plugin_steps/rate-limit.yaml"))
}

/// The CircuitBreaker with a breaker in addition.
pub(crate) fn circuit_breaker_document() -> Result<Value, Error> {
    parse_document(
        "circuit-breaker.yaml",
        include_str!("plugin_steps/circuit-breaker.yaml"),
    )
}

pub(crate) fn fault_injection_document(is_on: bool) -> Result<Value, Error> {
    let mut document: Value = parse_document("fault-inject.yaml", include_str!("plugin_steps/fault-inject.yaml"))?;
    if let Some(disabled) = document.pointer_mut("/spec/disabled") {
        *disabled = (!is_on).into();
    }
    Ok(document)
}

pub(crate) fn breaker_name() -> ObjectName {
    ObjectName {
        kind: "CircuitBreaker".to_owned(),
        name: "widgets".to_owned(),
    }
}

fn parse_document(file: &'static str, yaml: &str) -> Result<Value, Error> {
    serde_saphyr::from_str(yaml).map_err(|source| Error::Manifest {
        file,
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::validate;

    use super::*;

    #[test]
    fn documents_are_valid_for_manager() {
        let documents = [
            rate_limit_document(),
            circuit_breaker_document(),
            fault_injection_document(true),
            fault_injection_document(false),
        ];
        for document in documents {
            let document = document.unwrap();
            let findings = validate(&document);
            assert!(findings.mistakes.list().is_empty(), "{document}: {}", findings.mistakes);
        }
    }

    #[test]
    fn fault_injection_is_switched_on_and_off() {
        assert_eq!(fault_injection_document(true).unwrap()["spec"]["disabled"], false);
        assert_eq!(fault_injection_document(false).unwrap()["spec"]["disabled"], true);
    }

    #[test]
    fn limit_and_breaker_are_one_object() {
        for document in [rate_limit_document(), circuit_breaker_document()] {
            assert_eq!(ObjectName::of_document(&document.unwrap()), breaker_name());
        }
    }
}
