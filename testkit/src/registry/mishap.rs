//! What can go wrong with an answer, and when it shall.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Which requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// All of them.
    Any,
    /// For a manifest.
    Manifest,
    /// For a blob.
    Blob,
    /// For a token.
    Token,
}

/// What happens instead of, or to, the right answer.
#[derive(Debug, Clone)]
pub enum Mishap {
    /// An error.
    Status {
        /// The code.
        code: u16,
        /// `Retry-After`.
        retry_after: Option<String>,
    },
    /// There is never an answer.
    Silence,
    /// The head and half of the body come, and then nothing.
    Stall,
    /// The head and half of the body come, and then the connection ends.
    Cut,
    /// Other bytes.
    Body(Bytes),
    /// The right bytes, and then zeros without end.
    Endless,
    /// `Docker-Content-Digest` says this.
    Digest(String),
    /// There is no `Docker-Content-Digest`.
    NoDigest,
    /// A redirect (307) to there; `{path}` stands for the path of the request.
    Redirect(String),
}

/// A mishap that is planned; dropping this changes nothing.
#[derive(Debug)]
pub struct Planned(Arc<Mutex<Rule>>);

impl Planned {
    /// It happens this often and no more.
    pub fn times(self, times: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left = Some(times);
    }
}

#[derive(Debug)]
struct Rule {
    on: On,
    mishap: Mishap,
    /// `None`: without end.
    left: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Plan(Mutex<Vec<Arc<Mutex<Rule>>>>);

impl Plan {
    pub(super) fn add(&self, on: On, mishap: Mishap) -> Planned {
        let rule = Arc::new(Mutex::new(Rule { on, mishap, left: None }));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&rule));
        Planned(rule)
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What happens to a request of this kind.
    pub(super) fn next(&self, kind: On) -> Option<Mishap> {
        let rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rules.iter().find_map(|rule| {
            let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
            if rule.left == Some(0) || (rule.on != On::Any && rule.on != kind) {
                return None;
            }
            rule.left = rule.left.map(|left| left - 1);
            Some(rule.mishap.clone())
        })
    }
}
