//! Criteria by which a response shows that the server is healthy: for the host, which counts while a breaker is closed,
//! and for the ends of probes.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{ConnectionFailures, Failure, Outcome};

use crate::settings::{Connection, Failures};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Success,
    Failure,
    /// The client went away before the response: only the time that it waited counts.
    GivenUp,
    /// No judgement: the client went away, or a plugin answered.
    Silent,
}

/// Validated `failures`: the criteria for responses that count as failures.
#[derive(Clone, Debug)]
pub(crate) struct FailureCriteria {
    /// First and last status of each range.
    codes: Vec<(u16, u16)>,
    connection: Vec<Connection>,
}

impl FailureCriteria {
    pub(crate) fn new(written: Option<&Failures>) -> Result<Self, Invalid> {
        let codes = written.and_then(|failures| failures.status_codes.as_deref());
        let connection = written.and_then(|failures| failures.connection.clone());
        Ok(Self {
            codes: match codes {
                None => vec![(429, 429), (500, 599)],
                Some(codes) => {
                    let ranges = parse_status_ranges(codes).map_err(|error| error.field("statusCodes"))?;
                    merge_ranges(ranges)
                }
            },
            connection: connection
                .unwrap_or_else(|| vec![Connection::Unreachable, Connection::Reset, Connection::Timeout]),
        })
    }

    /// First and last status of each range of failing statuses.
    pub(crate) fn status_ranges(&self) -> &[(u16, u16)] {
        &self.codes
    }

    /// The failures of the connection that count as failures.
    pub(crate) fn connection_failures(&self) -> ConnectionFailures {
        let failures = self.connection.iter().map(|failure| match failure {
            Connection::Unreachable => ConnectionFailures::UNREACHABLE,
            Connection::Reset => ConnectionFailures::UPSTREAM_RESET,
            Connection::Timeout => ConnectionFailures::TIMEOUT,
        });
        failures.collect()
    }

    /// Judges by the upstream's status.
    pub(crate) fn of_status(&self, status: u16) -> Judgement {
        if self
            .codes
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&status))
        {
            Judgement::Failure
        } else {
            Judgement::Success
        }
    }

    /// Judges by how a request ended. An answered watch is judged by its status only, because every watch ends sooner or later.
    pub(crate) fn of_outcome(&self, outcome: &Outcome) -> Judgement {
        let kind = match outcome.failure {
            Some(Failure::ClientGone) if outcome.upstream_status == 0 => return Judgement::GivenUp,
            Some(Failure::ClientGone) => return Judgement::Silent,
            Some(Failure::Unreachable) => Connection::Unreachable,
            Some(Failure::UpstreamReset) => Connection::Reset,
            Some(Failure::Timeout) => Connection::Timeout,
            // The upstream's status counts even if another plugin changed the response.
            Some(Failure::Refused | Failure::PluginReset | Failure::PluginFailed) | None => {
                return match outcome.upstream_status {
                    0 => Judgement::Silent,
                    status => self.of_status(status),
                };
            }
        };
        if self.connection.contains(&kind) {
            Judgement::Failure
        } else {
            Judgement::Silent
        }
    }
}

/// Joins ranges that overlap or touch: the host takes fewer ranges than there are statuses.
fn merge_ranges(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn parse_status_ranges(codes: &[String]) -> Result<Vec<(u16, u16)>, Invalid> {
    let range = |(index, text): (usize, &String)| {
        let digits = text.strip_suffix("xx");
        let range = match digits.unwrap_or(text).parse::<u16>() {
            Ok(hundred @ 1..=5) if digits.is_some() => (hundred * 100, hundred * 100 + 99),
            Ok(code @ 100..=599) if digits.is_none() => (code, code),
            _ => {
                let message =
                    format!("{text:?} is no status code; write one such as \"503\", or \"5xx\" for all of 500 to 599");
                return Err(Invalid::new(message).index(index));
            }
        };
        Ok(range)
    };
    codes.iter().enumerate().map(range).collect()
}
