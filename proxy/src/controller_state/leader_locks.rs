//! Detects requests about the lock of the controller's own leader election (WIT `request.is-leader-lock`). Plugins that delay, limit or
//! break requests leave these alone, because a controller that loses its lock restarts.
//!
//! A Lease is always such a lock. client-go's older locks are ConfigMaps and Endpoints with an annotation (client-go
//! `tools/leaderelection/resourcelock/interface.go`): they are detected by the user agent that controller-runtime gives to its leader
//! election, and by the annotation in written objects. Once seen, a lock stays known.

use std::sync::Mutex;

use arc_swap::ArcSwap;
use bytes::Bytes;
use ctrlmesh_wire::{LOCK_ANNOTATION, RequestInfo, Verb};
use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::lock::lock_unpoisoned;

/// Suffix that controller-runtime and client-go's examples add to the user agent (`rest.AddUserAgent(config, "leader-election")`).
const USER_AGENT: &str = "leader-election";

/// Maximum size of a body that is inspected, in bytes: a lock has a few hundred.
pub(crate) const MAX_BODY: u64 = 64 << 10;

/// Maximum number of remembered locks. A controller has one; more than this is no normal client.
const MAX_LOCKS: usize = 64;

/// Known locks, shared by all threads. Reading takes no lock, because it happens on the request path.
#[derive(Debug, Default)]
pub(crate) struct LeaderLocks {
    known: ArcSwap<Vec<Lock>>,
    writing: Mutex<()>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lock {
    resource: String,
    namespace: String,
    name: String,
}

impl LeaderLocks {
    /// Whether the request's head shows that it is about a lock.
    pub(crate) fn is_lock(&self, info: &RequestInfo<'_>, user_agent: &str) -> bool {
        if info.group == "coordination.k8s.io" && info.resource == "leases" {
            return true;
        }
        is_candidate(info) && (user_agent.contains(USER_AGENT) || self.knows_lock(info, &info.name))
    }

    fn knows_lock(&self, info: &RequestInfo<'_>, name: &str) -> bool {
        !name.is_empty()
            && self
                .known
                .load()
                .iter()
                .any(|lock| lock.name == name && lock.namespace == info.namespace && lock.resource == info.resource)
    }

    fn remember_lock(&self, info: &RequestInfo<'_>, name: &str) {
        let _writing = lock_unpoisoned(&self.writing);
        let known = self.known.load();
        if name.is_empty() || self.knows_lock(info, name) || known.len() >= MAX_LOCKS {
            return;
        }
        let mut locks = Vec::clone(&known);
        locks.push(Lock {
            resource: info.resource.to_string(),
            namespace: info.namespace.to_string(),
            name: name.to_owned(),
        });
        self.known.store(locks.into());
    }

    /// Whether the body must be read to know if this request is about a lock. `size` is the body's, if it is known.
    pub(crate) fn is_detected_from_body(info: &RequestInfo<'_>, size: Option<u64>) -> bool {
        let is_write = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch);
        let is_small = size.is_some_and(|size| size > 0 && size <= MAX_BODY);
        is_write && is_small && is_candidate(info)
    }

    /// Whether a written object has the annotation of a lock. If so, the lock is remembered.
    pub(crate) fn learn_from_body(&self, info: &RequestInfo<'_>, headers: &HeaderMap, body: &Bytes) -> bool {
        let is_lock = contains_bytes(body, LOCK_ANNOTATION.as_bytes());
        if is_lock {
            self.remember_lock(info, &object_name(info, headers, body));
        }
        is_lock
    }
}

fn is_candidate(info: &RequestInfo<'_>) -> bool {
    info.group.is_empty() && matches!(&*info.resource, "configmaps" | "endpoints") && info.subresource.is_empty()
}

fn object_name(info: &RequestInfo<'_>, headers: &HeaderMap, body: &Bytes) -> String {
    if !info.name.is_empty() {
        return info.name.to_string();
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    ctrlmesh_wire::object_name(content_type.unwrap_or_default(), body).unwrap_or_default()
}

fn contains_bytes(text: &[u8], pattern: &[u8]) -> bool {
    text.windows(pattern.len()).any(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_info(method: &'static str, path: &'static str) -> RequestInfo<'static> {
        RequestInfo::parse(method, path, None).unwrap()
    }

    fn observe_write(locks: &LeaderLocks, method: &'static str, path: &'static str, text: &'static str) -> bool {
        let (info, body) = (request_info(method, path), Bytes::from_static(text.as_bytes()));
        LeaderLocks::is_detected_from_body(&info, Some(body.len() as u64))
            && locks.learn_from_body(&info, &HeaderMap::new(), &body)
    }

    const RECORD: &str =
        r#"{"metadata":{"name":"op","annotations":{"control-plane.alpha.kubernetes.io/leader":"{}"}}}"#;

    #[test]
    fn config_map_with_annotation_is_lock_from_then_on() {
        let locks = LeaderLocks::default();
        let get = request_info("GET", "/api/v1/namespaces/a/configmaps/op");
        assert!(!locks.is_lock(&get, ""));
        assert!(!observe_write(
            &locks,
            "PUT",
            "/api/v1/namespaces/a/configmaps/other",
            "{}"
        ));
        assert!(observe_write(&locks, "POST", "/api/v1/namespaces/a/configmaps", RECORD));
        assert!(locks.is_lock(&get, ""));
        assert!(!locks.is_lock(&request_info("GET", "/api/v1/namespaces/b/configmaps/op"), ""));
        assert!(!locks.is_lock(&request_info("GET", "/api/v1/namespaces/a/endpoints/op"), ""));
        assert!(!locks.is_lock(&request_info("GET", "/api/v1/namespaces/a/configmaps"), ""));
    }

    #[test]
    fn secret_is_never_lock_and_lease_always() {
        let locks = LeaderLocks::default();
        assert!(!observe_write(&locks, "PUT", "/api/v1/namespaces/a/secrets/op", RECORD));
        assert!(locks.is_lock(
            &request_info("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/op"),
            ""
        ));
        assert!(locks.is_lock(
            &request_info("GET", "/api/v1/namespaces/a/endpoints/op"),
            "manager/v0.0.0 (linux/amd64) kubernetes/1234567/leader-election"
        ));
        assert!(!locks.is_lock(&request_info("GET", "/api/v1/namespaces/a/pods/op"), "leader-election"));
    }

    #[test]
    fn remembered_locks_are_bounded() {
        let locks = LeaderLocks::default();
        for _ in 0..2 {
            locks.remember_lock(&request_info("GET", "/api/v1/namespaces/a/configmaps/op"), "op");
        }
        assert_eq!(locks.known.load().len(), 1);
        for number in 0..2 * MAX_LOCKS {
            locks.remember_lock(
                &request_info("GET", "/api/v1/namespaces/a/configmaps/op"),
                &number.to_string(),
            );
        }
        assert_eq!(locks.known.load().len(), MAX_LOCKS);
    }
}
