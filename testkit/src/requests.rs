//! The request log: the last requests as received, and counts of all. For assertions in tests; the server does not read it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Method, Version, request};
use tokio::sync::watch;

use crate::lock::lock_unpoisoned;
use crate::{Error, WAIT_DEADLINE};

/// Requests kept by default; more than any test inspects.
pub(crate) const DEFAULT_REQUEST_LOG: usize = 4_096;

#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub method: Method,
    /// Path and query, undecoded.
    pub target: String,
    pub headers: HeaderMap,
    /// HTTP version of the connection.
    pub version: Version,
    /// The API verb (`list`, `watch`, ..); empty for a request that names no resource.
    pub verb: &'static str,
}

/// The request log of a server. Clones share it.
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
    recent: VecDeque<RecordedRequest>,
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

    fn with_state<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut lock_unpoisoned(&self.inner.state))
    }

    pub(crate) fn record_request(&self, parts: &request::Parts, verb: &'static str, resource: &str) {
        self.with_state(|state| {
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
            state.recent.push_back(RecordedRequest {
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
    pub fn recent(&self) -> Vec<RecordedRequest> {
        self.with_state(|state| state.recent.iter().cloned().collect())
    }

    /// Number of requests with this verb; `""` counts those that name no resource.
    #[must_use]
    pub fn count(&self, verb: &str) -> u64 {
        self.with_state(|state| state.counts.get(verb).map_or(0, |of_verb| of_verb.values().sum()))
    }

    /// Number of requests with this verb about this resource (plural name, without the group) or a subresource of it.
    #[must_use]
    pub fn count_of(&self, verb: &str, plural: &str) -> u64 {
        let of_verb = |state: &mut State| state.counts.get(verb)?.get(plural).copied();
        self.with_state(of_verb).unwrap_or_default()
    }

    /// Number of all requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        *self.inner.total.borrow()
    }

    /// Clears requests and counts per verb, but not [`RequestLog::total`].
    pub fn clear(&self) {
        self.with_state(|state| *state = State::default());
    }

    /// Waits until `condition` holds for the last requests, checking after each new one.
    ///
    /// # Errors
    /// [`Error::Deadline`] after [`WAIT_DEADLINE`].
    pub async fn wait_until(&self, mut condition: impl FnMut(&[RecordedRequest]) -> bool) -> Result<(), Error> {
        let mut total = self.inner.total.subscribe();
        let met = total.wait_for(|_| self.with_state(|state| condition(state.recent.make_contiguous())));
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
            log.record_request(&parts, verb, resource);
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
