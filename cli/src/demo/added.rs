//! What the later acts apply for both sidecars, and delete again: documents on file.

use serde_json::Value;

use super::kubectl::Name;
use crate::error::Error;

/// The names of the entries that the manager makes of them.
pub(crate) const RATE_LIMIT_ENTRY: &str = "rate-limit/widgets";
pub(crate) const CIRCUIT_BREAKER_ENTRY: &str = "circuit-breaker/widgets";
pub(crate) const FAULT_INJECT_ENTRY: &str = "fault-inject/widgets";

/// A CircuitBreaker that is a limit.
pub(crate) fn rate_limit() -> Result<Value, Error> {
    read("rate-limit.yaml", include_str!("acts/rate-limit.yaml"))
}

/// The same object as a breaker.
pub(crate) fn circuit_breaker() -> Result<Value, Error> {
    read("circuit-breaker.yaml", include_str!("acts/circuit-breaker.yaml"))
}

/// A FaultInjection, switched on or off.
pub(crate) fn fault_injection(is_on: bool) -> Result<Value, Error> {
    let mut document: Value = read("fault-inject.yaml", include_str!("acts/fault-inject.yaml"))?;
    if let Some(disabled) = document.pointer_mut("/spec/disabled") {
        *disabled = (!is_on).into();
    }
    Ok(document)
}

/// The name of the CircuitBreaker.
pub(crate) fn breaker() -> Name {
    Name {
        kind: "CircuitBreaker".to_owned(),
        name: "widgets".to_owned(),
    }
}

fn read(file: &'static str, yaml: &str) -> Result<Value, Error> {
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
    fn the_manager_has_nothing_against_the_documents() {
        let documents = [
            rate_limit(),
            circuit_breaker(),
            fault_injection(true),
            fault_injection(false),
        ];
        for document in documents {
            let document = document.unwrap();
            let findings = validate(&document);
            assert!(findings.mistakes.list().is_empty(), "{document}: {}", findings.mistakes);
        }
    }

    #[test]
    fn faults_are_switched_on_and_off() {
        assert_eq!(fault_injection(true).unwrap()["spec"]["disabled"], false);
        assert_eq!(fault_injection(false).unwrap()["spec"]["disabled"], true);
    }

    #[test]
    fn limit_and_breaker_are_one_object() {
        for document in [rate_limit(), circuit_breaker()] {
            assert_eq!(Name::of(&document.unwrap()), breaker());
        }
    }
}
