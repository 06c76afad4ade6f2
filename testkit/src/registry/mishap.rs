//! Faults of the registry, and the requests that they apply to.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// The requests that a mishap applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffectedRequests {
    Any,
    /// Requests for a manifest.
    Manifest,
    /// Requests for a blob.
    Blob,
    /// Requests for a token.
    Token,
}

/// A fault of an answer.
#[derive(Debug, Clone)]
pub enum Mishap {
    Status {
        code: u16,
        retry_after: Option<String>,
    },
    /// There is never an answer.
    Silence,
    /// The head and half of the body are sent, then nothing.
    Stall,
    /// The head and half of the body are sent, then the connection is closed.
    Cut,
    /// The body has other bytes.
    Body(Bytes),
    /// The body is followed by zeros without end.
    Endless,
    /// `Docker-Content-Digest` has this value.
    Digest(String),
    NoDigest,
    /// Redirects (307) to this URL; `{path}` is replaced by the path of the request.
    Redirect(String),
}

/// A planned mishap. Dropping this does not cancel it.
#[derive(Debug)]
pub struct PlannedMishap(Arc<Mutex<Rule>>);

impl PlannedMishap {
    /// Limits the mishap to this number of requests.
    pub fn times(self, times: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left = Some(times);
    }
}

#[derive(Debug)]
struct Rule {
    on: AffectedRequests,
    mishap: Mishap,
    /// `None`: unlimited.
    left: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Plan(Mutex<Vec<Arc<Mutex<Rule>>>>);

impl Plan {
    pub(super) fn add(&self, on: AffectedRequests, mishap: Mishap) -> PlannedMishap {
        let rule = Arc::new(Mutex::new(Rule { on, mishap, left: None }));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&rule));
        PlannedMishap(rule)
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The mishap for the next request of this kind.
    pub(super) fn next(&self, kind: AffectedRequests) -> Option<Mishap> {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter().find_map(|rule| {
            let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
            if rule.left == Some(0) || (rule.on != AffectedRequests::Any && rule.on != kind) {
                return None;
            }
            rule.left = rule.left.map(|left| left - 1);
            Some(rule.mishap.clone())
        })
    }
}
