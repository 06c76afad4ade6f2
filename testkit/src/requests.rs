//! What the server was asked: the last requests as they came, and counts of all. For tests to assert on; nothing in the
//! server reads it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, Method, Version, request};
use tokio::sync::watch;

use crate::{Error, WAIT_DEADLINE};

/// Requests kept unless the builder says otherwise; more than any test looks at.
pub(crate) const DEFAULT_REQUEST_LOG: usize = 4_096;

/// One request, as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// HTTP method.
    pub method: Method,
    /// Path and query, undecoded.
    pub target: String,
    /// Header fields.
    pub headers: HeaderMap,
    /// HTTP version of the connection.
    pub version: Version,
    /// The API verb (`list`, `watch`, ..); empty for a request about no resource.
    pub verb: &'static str,
}

/// The request log of a server; clones share it.
#[derive(Debug, Clone)]
pub struct RequestLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    capacity: usize,
    state: Mutex<State>,
    total: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    recent: VecDeque<Seen>,
    /// By verb and plural name.
    counts: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl RequestLog {
    pub(crate) fn new(capacity: usize) -> Self {
        let inner = Inner {
            capacity,
            state: Mutex::default(),
            total: watch::Sender::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn record(&self, parts: &request::Parts, verb: &'static str, resource: &str) {
        self.with(|state| {
            let of_verb = state.counts.entry(verb).or_default();
            match of_verb.get_mut(resource) {
                Some(count) => *count += 1,
                None => drop(of_verb.insert(resource.to_owned(), 1)),
            }
            if self.inner.capacity == 0 {
                return;
            }
            if state.recent.len() >= self.inner.capacity {
                state.recent.pop_front();
            }
            state.recent.push_back(Seen {
                method: parts.method.clone(),
                target: parts
                    .uri
                    .path_and_query()
                    .map_or_else(String::new, |target| target.as_str().to_owned()),
                headers: parts.headers.clone(),
                version: parts.version,
                verb,
            });
        });
        self.inner.total.send_modify(|total| *total += 1);
    }

    /// The last requests, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Seen> {
        self.with(|state| state.recent.iter().cloned().collect())
    }

    /// How many requests of a verb came; `""` counts those about no resource.
    #[must_use]
    pub fn count(&self, verb: &str) -> u64 {
        self.with(|state| state.counts.get(verb).map_or(0, |of_verb| of_verb.values().sum()))
    }

    /// How many of them were about this resource or a subresource of it: its plural name, without the group.
    #[must_use]
    pub fn count_of(&self, verb: &str, plural: &str) -> u64 {
        let of_verb = |state: &mut State| state.counts.get(verb)?.get(plural).copied();
        self.with(of_verb).unwrap_or_default()
    }

    /// How many requests came.
    #[must_use]
    pub fn total(&self) -> u64 {
        *self.inner.total.borrow()
    }

    /// Forgets requests and counts per verb; [`RequestLog::total`] goes on.
    pub fn clear(&self) {
        self.with(|state| *state = State::default());
    }

    /// Waits until `condition` holds for the last requests, looking again at each new one.
    ///
    /// # Errors
    /// [`Error::Deadline`] after [`WAIT_DEADLINE`].
    pub async fn wait_until(&self, mut condition: impl FnMut(&[Seen]) -> bool) -> Result<(), Error> {
        let mut total = self.inner.total.subscribe();
        let met = total.wait_for(|_| self.with(|state| condition(state.recent.make_contiguous())));
        match tokio::time::timeout(WAIT_DEADLINE, met).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Deadline { after: WAIT_DEADLINE }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_by_resource() {
        let log = RequestLog::new(0);
        let (parts, ()) = http::Request::new(()).into_parts();
        for (verb, resource) in [("patch", "pods"), ("patch", "widgets"), ("patch", "pods"), ("", "")] {
            log.record(&parts, verb, resource);
        }
        assert_eq!((log.count("patch"), log.count(""), log.count("list")), (3, 1, 0));
        assert_eq!(
            (log.count_of("patch", "pods"), log.count_of("patch", "widgets")),
            (2, 1)
        );
        assert_eq!((log.count_of("list", "pods"), log.total()), (0, 4));
        log.clear();
        assert_eq!((log.count("patch"), log.count_of("patch", "pods")), (0, 0));
    }
}
