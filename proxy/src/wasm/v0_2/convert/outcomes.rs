//! Converts rules that count outcomes, and the crossings that follow.

use crate::plugin::tally::{ConnectionFailures, CountingRule, Crossed, WindowRule};
use crate::plugin::verdict::{CellWrite, Crossing, OutcomeRule};
use crate::wasm::bindings::v0_2::ctrlmesh::plugin::types;
use crate::wasm::validate::{self, TextLimit};

/// A rule, validated. `cells`: what the call has read, the last read of a cell last.
pub(super) fn outcome_rule(
    rule: types::OutcomeRule,
    cells: &[CellWrite],
    text: &mut TextLimit,
) -> Result<OutcomeRule, String> {
    validate::tally_key(&rule.tally)?;
    validate::cell_count(rule.cells.len())?;
    text.count(rule.failing_statuses.len())?;
    let cells = rule.cells.into_iter().map(|key| {
        let read = cells.iter().rfind(|cell| cell.key == key);
        let write = read
            .ok_or("an outcome rule names a cell that the call has not read")?
            .write;
        Ok(CellWrite {
            key: text.take(key)?,
            write,
        })
    });
    let cells = cells.collect::<Result<_, String>>()?;
    let counting = CountingRule {
        at_head: rule.at_head,
        failing_statuses: (rule.failing_statuses.iter())
            .map(|range| (range.first, range.last))
            .collect(),
        failing_connections: ConnectionFailures {
            unreachable: rule
                .failing_connections
                .contains(types::ConnectionFailures::UNREACHABLE),
            upstream_reset: rule
                .failing_connections
                .contains(types::ConnectionFailures::UPSTREAM_RESET),
            timeout: rule.failing_connections.contains(types::ConnectionFailures::TIMEOUT),
        },
        slower_than_us: rule.slower_than_us,
        window: rule.window.map(window_rule),
        consecutive_failures: rule.consecutive_failures,
    };
    counting.check().map_err(|what| format!("outcome rule: {what}"))?;
    Ok(OutcomeRule {
        tally: text.take(rule.tally)?,
        cells,
        counting,
    })
}

fn window_rule(window: types::OutcomeWindow) -> WindowRule {
    WindowRule {
        length_ms: window.length_ms,
        slots: window.slots,
        minimum_requests: window.minimum_requests,
        failure_percent: window.failure_percent,
        slow_percent: window.slow_percent,
    }
}

/// A tally that has reached a threshold.
pub(crate) fn crossing_to_wit(crossing: &Crossing) -> types::Crossing {
    let counts = crossing.counts;
    types::Crossing {
        tally: crossing.tally.clone(),
        versions: crossing.versions.clone(),
        threshold: match crossing.crossed {
            Crossed::ConsecutiveFailures => types::Threshold::ConsecutiveFailures,
            Crossed::FailurePercent => types::Threshold::FailurePercent,
            Crossed::SlowPercent => types::Threshold::SlowPercent,
        },
        counts: types::TallyCounts {
            requests: counts.requests,
            failures: counts.failures,
            slow: counts.slow,
            consecutive_failures: counts.consecutive_failures,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(cells: &[&str]) -> types::OutcomeRule {
        types::OutcomeRule {
            tally: "t".into(),
            cells: cells.iter().map(|key| (*key).to_owned()).collect(),
            at_head: false,
            failing_statuses: vec![types::StatusRange { first: 500, last: 599 }],
            failing_connections: types::ConnectionFailures::TIMEOUT,
            slower_than_us: Some(7),
            window: Some(types::OutcomeWindow {
                length_ms: 1000,
                slots: 10,
                minimum_requests: 3,
                failure_percent: Some(50),
                slow_percent: None,
            }),
            consecutive_failures: Some(2),
        }
    }

    fn read_cells(cells: &[(&str, u64)]) -> Vec<CellWrite> {
        let read = |(key, write): &(&str, u64)| CellWrite {
            key: (*key).to_owned(),
            write: *write,
        };
        cells.iter().map(read).collect()
    }

    fn convert(counting: types::OutcomeRule, cells: &[(&str, u64)]) -> Result<OutcomeRule, String> {
        outcome_rule(counting, &read_cells(cells), &mut TextLimit::default())
    }

    #[test]
    fn rule_belongs_to_cells_as_they_were_read_last() {
        let rule = convert(counting(&["a", "b"]), &[("a", 1), ("b", 2), ("a", 3)]).unwrap();
        assert_eq!(rule.cells, read_cells(&[("a", 3), ("b", 2)]));
        let window = rule.counting.window.unwrap();
        assert_eq!((window.length_ms, window.slots, window.minimum_requests), (1000, 10, 3));
        assert_eq!((window.failure_percent, window.slow_percent), (Some(50), None));
        assert_eq!(rule.counting.failing_statuses, [(500, 599)]);
        assert_eq!(
            rule.counting.failing_connections,
            ConnectionFailures {
                timeout: true,
                ..ConnectionFailures::default()
            }
        );
        assert_eq!(
            (rule.counting.slower_than_us, rule.counting.consecutive_failures),
            (Some(7), Some(2))
        );
    }

    #[test]
    fn rule_is_invalid_without_its_cells_or_with_bad_numbers() {
        assert!(convert(counting(&["a"]), &[("b", 1)]).unwrap_err().contains("not read"));
        assert!(convert(counting(&["a"; 5]), &[("a", 1)]).is_err());
        let bad = types::OutcomeRule {
            consecutive_failures: Some(0),
            ..counting(&[])
        };
        assert!(convert(bad, &[]).unwrap_err().contains("consecutive-failures"));
        let long = types::OutcomeRule {
            tally: "x".repeat(641),
            ..counting(&[])
        };
        assert!(convert(long, &[]).is_err());
    }
}
