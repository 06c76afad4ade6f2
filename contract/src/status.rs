//! The JSON of a sidecar's `/status`: the sidecar writes it, the manager and the command line read it.
//!
//! Unlike the chain document it may grow: readers ignore fields that they don't know, since a manager meets sidecars that
//! are newer than itself. Leaves filling it to the sidecar.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::support::Support;

/// The state of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The pod of the sidecar.
    pub pod: Pod,
    /// Version of the sidecar.
    pub version: String,
    /// The capabilities of the sidecar. `None`: the sidecar is older than this field ([`Support::baseline`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supports: Option<Support>,
    /// Names of the conditions that are not met yet, as in `/readyz`. Empty if the sidecar is ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<String>,
    /// Plugins of a new chain that are being compiled, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiling: Option<Compiling>,
    /// The chain in force, which is the one that the sidecar has acknowledged.
    pub chain: ChainStatus,
    /// The last document that was refused, until a later one is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// Event counts since the start of the sidecar.
    pub counts: Counts,
    /// Requests of the controller for the API server. `None`: an older sidecar, which does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_traffic: Option<ApiTraffic>,
    /// Leader elections of the controller, as observed in its traffic: of locks that a plugin renames.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leader_elections: Vec<LeaderElection>,
    /// The last requests that plugins changed, the latest first, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<Touched>,
}

/// A change of a request by a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Touched {
    /// The entry of the chain.
    pub entry: String,
    /// The entry's rule; empty if the plugin names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The action: `edited`, `delayed`, `refused`, `faulted`, `lost`, `expired` or `failed`.
    pub did: String,
    /// The request without its query: `update deployments.apps/status shop/web`. For an external one, its method and host.
    pub request: String,
    /// The HTTP status that the client got; 0 for none.
    pub status: u16,
    /// How often this happened while the row was among the last. Edits by an entry are counted together, for all requests;
    /// `request` and `status` are then those of one in the second before `last`.
    pub count: u64,
    /// Time of the last one, RFC 3339.
    pub last: String,
}

/// A new chain whose plugins are being compiled. [`fmt::Display`] gives the text for people: `compiling 2 plugins (3 s)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compiling {
    /// Plugins that are not compiled yet.
    pub plugins: usize,
    /// Seconds since the first compilation began.
    pub seconds: u64,
}

impl fmt::Display for Compiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugins, seconds } = self;
        let noun = if *plugins == 1 { "plugin" } else { "plugins" };
        write!(f, "compiling {plugins} {noun} ({seconds} s)")
    }
}

/// The pod that the sidecar runs in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
}

/// The chain in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChainStatus {
    /// Generation of the chain; 0 if there is none yet.
    pub generation: u64,
    /// Digest of the document's bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Time at which the chain came into force, RFC 3339; empty if there is none yet.
    pub since: String,
    /// The sidecar has no `--chain-dir`: it never has a chain, and requests pass unchanged.
    #[serde(skip_serializing_if = "is_false")]
    pub disabled: bool,
    /// The entries that select this pod, in the order in which they are called.
    pub entries: Vec<EntryStatus>,
    /// The number of entries that select other pods only.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_entries: u64,
    /// The sidecar knows no labels of the pod, because it has no `--labels-file`.
    #[serde(skip_serializing_if = "is_false")]
    pub without_labels: bool,
    /// Requests in flight under an earlier chain.
    #[serde(skip_serializing_if = "InFlight::is_none")]
    pub earlier: InFlight,
    /// Clients whose caches show an earlier view, at most five: those that have gone longest without a new watch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stale_caches: Vec<StaleCache>,
}

/// A client that was told to list again and has not started a watch since.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StaleCache {
    /// User agent of the client.
    pub client: String,
    /// The resource that it caches: `configmaps`, `deployments.apps`.
    pub resource: String,
    /// Namespace of the cache; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// When its view changed, RFC 3339.
    pub since: String,
    /// Watches refused since then, because the client resumed from its old version.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_watches: u64,
    /// `earlier.caches` no longer counts it although it comes back, so that a hand-over continues without it.
    #[serde(skip_serializing_if = "is_false")]
    pub given_up: bool,
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Requests in flight that began under an earlier chain, or under another view of this one (the pod's labels changed).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InFlight {
    /// Requests that may change objects. A hand-over waits for them.
    pub writes: u64,
    /// Lists with the earlier view whose responses are not sent completely.
    pub lists: u64,
    /// Watches with the earlier view that have not ended.
    pub watches: u64,
    /// Clients that were told to list again, for another view, and have not begun a watch since: what they have cached is the
    /// earlier one, and they may write by it. Those that never come back count for two minutes, those that repeat an expired
    /// watch instead of listing for five.
    pub caches: u64,
}

impl InFlight {
    /// Whether all counts are zero.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.writes == 0 && self.lists == 0 && self.watches == 0 && self.caches == 0
    }
}

/// The state of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryStatus {
    /// Name of the entry.
    pub name: String,
    /// Digest of the running plugin.
    pub plugin: Digest,
    /// Hash of the current settings.
    pub settings_hash: String,
    /// Whether the entry works.
    pub state: EntryState,
    /// Faults since the entry came into force.
    #[serde(default)]
    pub faults: u64,
    /// Message of the last fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// End of the quarantine, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The plugin's own reports by key: the state of a breaker, how often a rule fired.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reports: BTreeMap<String, serde_json::Value>,
    /// Verdicts that were repeated without a call; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<ReuseStatus>,
}

/// Repeated verdicts of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReuseStatus {
    /// Number of verdicts that were repeated without a call.
    pub reused: u64,
    /// Number of calls that checked a verdict which could have been repeated.
    pub audited: u64,
    /// How the plugin contradicted one of its verdicts. They are not repeated any more then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impure: Option<String>,
}

/// Whether an entry works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryState {
    /// The entry works.
    Active,
    /// The last calls of the plugin failed; each request follows the failure policy of the entry.
    Failed,
    /// The plugin failed so often that it is not called for a while; all requests follow the failure policy of the entry.
    Quarantined,
}

/// A document that was refused. The previous chain stays in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Generation of the document, if it was readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Reason code from a closed set, for machines.
    pub reason: String,
    /// The mistakes and how to correct them, for people.
    pub message: String,
    /// Time of the refusal, RFC 3339.
    pub when: String,
}

/// Numbers of events since the start of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Chains that came into force.
    pub applied: u64,
    /// Documents that were refused.
    pub refused: u64,
    /// Faults of plugins, in all entries.
    pub faults: u64,
    /// Times that an entry went into quarantine.
    pub quarantines: u64,
}

/// Whether the pod's containers send requests to the API server through their sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiTraffic {
    /// Time of this status, RFC 3339, by the node's clock, which is that of the pod's containers.
    pub now: String,
    /// Since when the sidecar accepts requests, RFC 3339. Absent: it does not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When the last request started or ended, RFC 3339. Absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Requests in flight, including open watches. Absent: an older sidecar, which does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
}

/// A leader election of the controller, as observed in its traffic.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    /// Resource of the lock: `leases.coordination.k8s.io`, `configmaps` or `endpoints`.
    pub resource: String,
    /// Namespace of the lock.
    pub namespace: String,
    /// Name of the lock as the controller knows it.
    pub name: String,
    /// Name at the API server: the lock of the pod's shard.
    pub lock: String,
    /// Identity of the last known holder; empty if there is none.
    pub holder: String,
    /// Whether this pod's controller holds the lock: it has written so, and the record has not expired.
    pub leads: bool,
    /// Time since which the pod's controller holds the lock, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_a_newer_status_are_ignored() {
        let json = r#"{"version":"9.0.0","news":{"x":1},"chain":{"generation":3,"entries":[{"name":"a","plugin":
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","settingsHash":"00",
            "state":"Quarantined","until":"2026-01-01T00:00:00Z","more":true}]}}"#;
        let status: Status = serde_json::from_str(json).unwrap();
        assert_eq!(status.chain.generation, 3);
        assert_eq!(status.chain.entries[0].state, EntryState::Quarantined);
        assert!(status.leader_elections.is_empty());
        let again: Status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(again, status);
    }

    #[test]
    fn in_flight_is_not_none_with_any_count() {
        assert!(InFlight::default().is_none());
        for going_on in ["writes", "lists", "watches", "caches"] {
            let in_flight: InFlight = serde_json::from_value(serde_json::json!({ going_on: 1 })).unwrap();
            assert!(!in_flight.is_none(), "{going_on}");
        }
    }

    #[test]
    fn compiling_text_counts_plugins() {
        let text = |plugins, seconds| Compiling { plugins, seconds }.to_string();
        assert_eq!(text(1, 0), "compiling 1 plugin (0 s)");
        assert_eq!(text(2, 3), "compiling 2 plugins (3 s)");
    }

    #[test]
    fn field_names_are_camel_case() {
        let refused = Refused {
            generation: Some(2),
            reason: "Signature".into(),
            message: "m".into(),
            when: "w".into(),
        };
        let status = Status {
            refused: Some(refused),
            leader_elections: vec![LeaderElection::default()],
            ..Status::default()
        };
        let json = serde_json::to_string(&status).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"pod":{"namespace":"","name":""},"version":"","chain":{"generation":0,"since":"","entries":[]},"#,
                r#""refused":{"generation":2,"reason":"Signature","message":"m","when":"w"},"#,
                r#""counts":{"applied":0,"refused":0,"faults":0,"quarantines":0},"#,
                r#""leaderElections":[{"resource":"","namespace":"","name":"","lock":"","holder":"","leads":false}]}"#
            )
        );
    }
}
