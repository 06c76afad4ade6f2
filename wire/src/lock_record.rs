//! The record of a leader-election lock: its holder, its duration and its last renewal. Locks of client-go
//! (`tools/leaderelection/resourcelock`) have it in the `spec` of a Lease, or in an annotation of ConfigMaps and
//! Endpoints.
//!
//! The proxy decides who leads according to the record.

use std::time::Duration;

use serde::Deserialize;

use crate::WatchEncoding;
use crate::protobuf::{MAGIC, field, field_payload, fields, text};
use crate::watch_event::media_type;

/// Annotation of ConfigMaps and Endpoints that has the record (client-go `LeaderElectionRecordAnnotationKey`).
pub const LOCK_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// The record of a leader-election lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LockRecord {
    /// Name of the Lease, ConfigMap or Endpoints.
    pub name: String,
    /// Identity of the holder; empty if there is none.
    pub holder: String,
    /// The holder has the lock for this time after each renewal; zero if the record has no duration.
    pub lease_duration: Duration,
    /// Time of the last renewal as the record has it: RFC 3339 in JSON, seconds and nanoseconds in protobuf. Only for
    /// telling two renewals apart.
    pub renew_time: String,
    /// Number of changes of the holder. Of two records of one object the one with the higher number is the later one.
    pub transitions: Option<i64>,
}

/// The record of the object in a body, if it is a lock: a Lease, or a ConfigMap or Endpoints with a record in its annotation.
/// `None` for everything else, lists and Tables too, and for what can't be read.
///
/// Reads JSON and protobuf, as API servers answer.
#[must_use]
pub fn lock_record(content_type: &str, body: &[u8]) -> Option<LockRecord> {
    match media_type(content_type).as_str() {
        "application/json" => serde_json::from_slice::<Object>(body).ok()?.into_record(),
        "application/vnd.kubernetes.protobuf" => of_protobuf(body),
        _ => None,
    }
}

/// The record of the object of one watch event, if it was added or modified. `event` has no length prefix.
#[must_use]
pub fn watched_lock_record(encoding: WatchEncoding, event: &[u8]) -> Option<LockRecord> {
    let is_there = |kind: &[u8]| matches!(kind, b"ADDED" | b"MODIFIED");
    match encoding {
        WatchEncoding::Json => {
            let Event { kind, object } = serde_json::from_slice(event).ok()?;
            is_there(kind.as_bytes()).then(|| object.into_record())?
        }
        // `metav1.WatchEvent`: the object is in a `RawExtension`.
        WatchEncoding::Protobuf => {
            is_there(field_payload(event, 1)?).then(|| of_protobuf(field_payload(field_payload(event, 2)?, 1)?))?
        }
        WatchEncoding::Cbor => None,
    }
}

/// Whether a patch mentions the holder of a lock or its renewal. A patch of labels does not.
#[must_use]
pub fn names_holder(patch: &[u8]) -> bool {
    // A JSON patch writes the annotation's `/` as `~1`.
    let domain = LOCK_ANNOTATION.split('/').next().unwrap_or(LOCK_ANNOTATION);
    let words = ["holderIdentity", "renewTime", domain].map(str::as_bytes);
    words
        .iter()
        .any(|word| patch.windows(word.len()).any(|window| window == *word))
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Terms>,
}

#[derive(Deserialize, Default)]
struct Metadata {
    name: Option<String>,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "control-plane.alpha.kubernetes.io/leader")]
    record: Option<String>,
}

/// `LeaseSpec`, and the `LeaderElectionRecord` of the annotation.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Terms {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    renew_time: Option<String>,
    #[serde(alias = "leaderTransitions")]
    lease_transitions: Option<i64>,
}

impl Object {
    fn into_record(self) -> Option<LockRecord> {
        let terms = match self.kind.as_str() {
            "Lease" => self.spec.unwrap_or_default(),
            "ConfigMap" | "Endpoints" => Terms::of_annotation(self.metadata.annotations?.record?.as_bytes())?,
            _ => return None,
        };
        Some(terms.into_record(self.metadata.name?))
    }
}

impl Terms {
    fn of_annotation(record: &[u8]) -> Option<Self> {
        serde_json::from_slice(record).ok()
    }

    /// `coordination.v1.LeaseSpec`: holderIdentity, leaseDurationSeconds, acquireTime, renewTime, leaseTransitions.
    fn of_protobuf(spec: &[u8]) -> Self {
        let number = |message, at| i64::try_from(field(message, at)?.varint()?).ok();
        let time = field_payload(spec, 4).map(|time| {
            let [seconds, nanos] = [1, 2].map(|at| number(time, at).unwrap_or_default());
            format!("{seconds}.{nanos:09}")
        });
        Self {
            holder_identity: text(spec, 1),
            lease_duration_seconds: number(spec, 2),
            renew_time: time,
            lease_transitions: number(spec, 5),
        }
    }

    fn into_record(self, name: String) -> LockRecord {
        let seconds = self
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        LockRecord {
            name,
            holder: self.holder_identity.unwrap_or_default(),
            lease_duration: Duration::from_secs(seconds.unwrap_or_default()),
            renew_time: self.renew_time.unwrap_or_default(),
            transitions: self.lease_transitions,
        }
    }
}

/// `runtime.Unknown` has the kind in field 1.2 and the object in field 2. Every object has its metadata in field 1, a Lease its spec
/// in field 2.
fn of_protobuf(body: &[u8]) -> Option<LockRecord> {
    let unknown = body.strip_prefix(MAGIC)?;
    let object = field_payload(unknown, 2)?;
    let metadata = field_payload(object, 1)?;
    let terms = match field_payload(field_payload(unknown, 1)?, 2)? {
        b"Lease" => field_payload(object, 2).map(Terms::of_protobuf).unwrap_or_default(),
        b"ConfigMap" | b"Endpoints" => Terms::of_annotation(leader_annotation(metadata)?)?,
        _ => return None,
    };
    Some(terms.into_record(text(metadata, 1)?))
}

/// `ObjectMeta` has its annotations in field 12, each a message of key and value.
fn leader_annotation(metadata: &[u8]) -> Option<&[u8]> {
    let all = fields(metadata)
        .filter_map(Result::ok)
        .filter(|field| field.number == 12);
    let mut all = all.filter_map(|field| field.payload);
    field_payload(
        all.find(|entry| field_payload(entry, 1) == Some(LOCK_ANNOTATION.as_bytes()))?,
        2,
    )
}

#[cfg(test)]
mod tests;
