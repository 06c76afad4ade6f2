//! Observes which pod leads, from the controller's own requests about a lock that a plugin renames. `/status` shows it to the manager and
//! to users.
//!
//! Flow: [`Leadership::observe_request`] when such an exchange is sent, [`LockExchange`] until its response arrives. [`election`] derives
//! the leader from the responses.
//!
//! Guarantees: no other exchange is read, and none is changed or refused because of this; unreadable bodies are ignored. A holder
//! that has not renewed in time no longer leads, whatever else was observed. Bounded: [`MAX_ELECTIONS`], [`MAX_HOLDER`], [`MAX_BODY`].
//! Caveat: requests that bypass the sidecar are not observed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;
use ctrlmesh_contract::status::LeaderElection;
use ctrlmesh_wire::rename::Rename;
use ctrlmesh_wire::{
    LockRecord, Query, RequestInfo, Verb, WatchEncoding, lock_record, names_holder, watched_lock_record,
};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use tokio::time::Instant;

use crate::controller_state::leader_locks::MAX_BODY;
use crate::lock::lock_unpoisoned;

mod election;

use election::{Asked, Election, Lock};

/// Maximum number of observed locks. A controller has one, or two while its pod changes shards; the manager reads a status of 256 KiB.
const MAX_ELECTIONS: usize = 16;

/// Maximum length of a holder, in characters. client-go's are a host name and a UUID.
const MAX_HOLDER: usize = 320;

/// Leases, as `/status` names them.
const LEASES: &str = "leases.coordination.k8s.io";

/// The elections that this sidecar has observed. Shared by the worker threads. Exchanges about locks lock it, and once there was one, lists
/// and watches that a plugin narrows.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    elections: Mutex<Vec<Election>>,
    /// Whether there was an election.
    is_used: AtomicBool,
}

/// A lock by which the controller leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldLock {
    lock: Lock,
    /// End of the time during which the controller may believe that it leads.
    pub(crate) until: Instant,
}

impl HeldLock {
    /// Path of the lock at the API server, with the name that the controller uses.
    pub(crate) fn path(&self) -> String {
        let Lock { namespace, name, .. } = &self.lock;
        match self.lock.resource {
            LEASES => format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"),
            core => format!("/api/v1/namespaces/{namespace}/{core}/{name}"),
        }
    }

    /// Name at the API server under which the controller leads.
    pub(crate) fn name_at_api_server(&self) -> &str {
        &self.lock.renamed
    }

    /// Whether the controller knows both locks by the same name.
    pub(crate) fn is_same_for_controller(&self, other: &Self) -> bool {
        let (one, two) = (&self.lock, &other.lock);
        one.resource == two.resource && one.namespace == two.namespace && one.name == two.name
    }
}

/// An exchange about a lock, until its response arrives.
pub(crate) struct LockExchange {
    leadership: Arc<Leadership>,
    lock: Lock,
    asked: Asked,
    what: Information,
}

/// The information that an exchange will give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Information {
    /// The holder from now on.
    Write,
    Delete,
    /// The holder at the time of the response.
    Read,
    /// The holder at some time in the past.
    OldRead,
}

impl Leadership {
    /// Observes an exchange if it is about a renamed lock. `arrived` is the time of the controller's request; `sent` is the request's body,
    /// and whether it has the lock's name.
    pub(crate) fn observe_request(
        self: &Arc<Self>,
        info: &RequestInfo<'_>,
        query: &Query<'_>,
        rename: &Rename,
        (sent, is_named): (&Bytes, bool),
        arrived: Instant,
    ) -> Option<LockExchange> {
        let resource = lock_resource(info)?;
        // A created object has its name in the body.
        let is_about_lock = info.name == rename.from || info.verb == Verb::Create && is_named;
        let what = expected_information(info.verb, query, sent).filter(|_| is_about_lock)?;
        Some(LockExchange {
            leadership: Arc::clone(self),
            lock: Lock {
                resource,
                namespace: info.namespace.to_string(),
                name: rename.from.clone(),
                renamed: rename.to.clone(),
            },
            asked: Asked {
                at: arrived,
                wall: SystemTime::now(),
            },
            what,
        })
    }

    fn lock_elections(&self) -> MutexGuard<'_, Vec<Election>> {
        lock_unpoisoned(&self.elections)
    }

    /// Applies an observation to the election of a lock.
    fn apply_observation(&self, lock: &Lock, change: impl FnOnce(&mut Election)) {
        let mut elections = self.lock_elections();
        if let Some(known) = elections.iter_mut().find(|election| election.lock == *lock) {
            return change(known);
        }
        if elections.len() >= MAX_ELECTIONS {
            let now = Instant::now();
            let all = elections.iter().enumerate();
            if let Some((least, _)) = all.min_by_key(|(_, election)| election.retention_priority(now)) {
                elections.remove(least);
            }
        }
        let mut election = Election::new(lock.clone());
        change(&mut election);
        elections.push(election);
        self.is_used.store(true, Ordering::Release);
    }

    /// The locks by which the controller leads now.
    pub(crate) fn held_locks(&self) -> Vec<HeldLock> {
        if !self.is_used.load(Ordering::Acquire) {
            return Vec::new();
        }
        let now = Instant::now();
        let elections = self.lock_elections();
        let held = elections.iter().filter_map(|election| {
            Some(HeldLock {
                lock: election.lock.clone(),
                until: election.leads_until(now)?,
            })
        });
        held.collect()
    }

    /// The elections for `/status`, in a stable order.
    pub(crate) fn statuses(&self) -> Vec<LeaderElection> {
        let now = Instant::now();
        let mut elections: Vec<LeaderElection> = self
            .lock_elections()
            .iter()
            .map(|election| election.to_status(now))
            .collect();
        elections.sort_by_cached_key(|election| {
            (
                election.namespace.clone(),
                election.lock.clone(),
                election.resource.clone(),
            )
        });
        elections
    }
}

impl LockExchange {
    /// Observes the response with its body.
    pub(crate) fn observe_response(&self, head: &Parts, body: &Bytes) {
        if !head.status.is_success() {
            return;
        }
        let (asked, answered) = (self.asked, Instant::now());
        if self.what == Information::Delete {
            return self
                .leadership
                .apply_observation(&self.lock, |election| election.record_deletion(asked, answered));
        }
        let record = is_short(body).then(|| lock_record(content_type(&head.headers), body));
        let Some(record) = record.flatten().and_then(|record| self.own_record(record)) else {
            return;
        };
        self.leadership
            .apply_observation(&self.lock, |election| match self.what {
                Information::Write | Information::Delete => election.record_write(record, asked, answered),
                Information::Read => election.read(record, asked.at),
                Information::OldRead => election.record_read(record),
            });
    }

    /// Observes an event of a watch.
    pub(crate) fn observe_event(&self, encoding: WatchEncoding, event: &[u8]) {
        let record = is_short(event).then(|| watched_lock_record(encoding, event));
        if let Some(record) = record.flatten().and_then(|record| self.own_record(record)) {
            self.leadership
                .apply_observation(&self.lock, |election| election.record_read(record));
        }
    }

    /// Returns the record if it belongs to this lock, with a holder of limited length.
    fn own_record(&self, mut record: LockRecord) -> Option<LockRecord> {
        let is_own = record.name == self.lock.name || record.name == self.lock.renamed;
        if let Some((end, _)) = record.holder.char_indices().nth(MAX_HOLDER) {
            record.holder.truncate(end);
        }
        is_own.then_some(record)
    }
}

/// The resource, if it is one that locks use (client-go `resourcelock`).
fn lock_resource(info: &RequestInfo<'_>) -> Option<&'static str> {
    match (&*info.group, &*info.resource) {
        _ if !info.subresource.is_empty() => None,
        ("coordination.k8s.io", "leases") => Some(LEASES),
        ("", "configmaps") => Some("configmaps"),
        ("", "endpoints") => Some("endpoints"),
        _ => None,
    }
}

/// The information that the request's response will give; `None` if it does not show who leads.
fn expected_information(verb: Verb, query: &Query<'_>, sent: &[u8]) -> Option<Information> {
    let is_there = |parameter| query.get(parameter).is_some_and(|value| !value.is_empty());
    match verb {
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete if is_there("dryRun") => None,
        Verb::Create | Verb::Update => Some(Information::Write),
        Verb::Patch if is_short(sent) && names_holder(sent) => Some(Information::Write),
        Verb::Patch => Some(Information::Read),
        Verb::Delete => Some(Information::Delete),
        Verb::Watch => Some(Information::OldRead),
        // For a given version, an API server may answer from its cache.
        Verb::Get if is_there("resourceVersion") => Some(Information::OldRead),
        Verb::Get => Some(Information::Read),
        _ => None,
    }
}

fn is_short(body: &[u8]) -> bool {
    body.len() as u64 <= MAX_BODY
}

fn content_type(headers: &HeaderMap) -> &str {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
