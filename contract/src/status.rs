//! What `/status` of a sidecar answers, as JSON: the sidecar writes it, the manager and the command line read it.
//!
//! Unlike the chain document it may grow: readers ignore fields that they don't know, since a manager meets sidecars that
//! are newer than itself. Leaves filling it to the sidecar.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::support::Support;

/// A sidecar's state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Whose sidecar.
    pub pod: Pod,
    /// Version of the sidecar.
    pub version: String,
    /// What it can run. `None`: it is older than this field ([`Support::baseline`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supports: Option<Support>,
    /// What is missing until it is ready, as `/readyz` says. Empty: it is ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready: Vec<String>,
    /// Plugins of a new chain that are being compiled. `None`: no plugin is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiling: Option<Compiling>,
    /// The chain in force: what it has acknowledged.
    pub chain: ChainStatus,
    /// The last document that was refused, as long as no later one was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
    /// How often what happened, since the start.
    pub counts: Counts,
    /// What came from the controller for the API server. `None`: an earlier sidecar, which does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_traffic: Option<ApiTraffic>,
    /// Leader elections of the controller, as far as the sidecar has overheard them: of locks that a plugin renames.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leader_elections: Vec<LeaderElection>,
    /// The last requests that plugins did something to, the latest first, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<Touched>,
}

/// What a plugin did to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Touched {
    /// The entry of the chain.
    pub entry: String,
    /// The entry's rule; empty: the plugin names none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// What was done: `edited`, `delayed`, `refused`, `faulted`, `lost`, `expired` or `failed`.
    pub did: String,
    /// The request, without its query: `update deployments.apps/status shop/web`. Of an external one, its method and host.
    pub request: String,
    /// The HTTP status that the client got; 0: none.
    pub status: u16,
    /// How often, while this row was among the last. Edits of an entry count together, whatever they are of.
    pub count: u64,
    /// When last, RFC 3339.
    pub last: String,
}

/// A new chain whose plugins are being compiled. [`fmt::Display`] gives the text for people: `compiling 2 plugins (3 s)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compiling {
    /// Plugins that are not compiled yet.
    pub plugins: usize,
    /// Seconds since the first of them was begun.
    pub seconds: u64,
}

impl fmt::Display for Compiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugins, seconds } = self;
        let noun = if *plugins == 1 { "plugin" } else { "plugins" };
        write!(f, "compiling {plugins} {noun} ({seconds} s)")
    }
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The chain in force.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChainStatus {
    /// Its generation; 0: no chain yet.
    pub generation: u64,
    /// Digest of the document's bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Since when, RFC 3339; empty: no chain yet.
    pub since: String,
    /// The entries that select this pod, in the order in which they are called.
    pub entries: Vec<EntryStatus>,
    /// What is still going on under an earlier chain.
    #[serde(skip_serializing_if = "InFlight::is_none")]
    pub earlier: InFlight,
    /// Clients whose caches show an earlier view, at most five: those that have not listed for longest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stale_caches: Vec<StaleCache>,
}

/// A client that was told to list again, and has not begun a watch since.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StaleCache {
    /// Its user agent.
    pub client: String,
    /// What it caches: `configmaps`, `deployments.apps`.
    pub resource: String,
    /// In which namespace; empty: in all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// When what it sees has changed, RFC 3339.
    pub since: String,
    /// Watches that were refused since: it comes back with what it had.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_watches: u64,
    /// `earlier.caches` counts it no longer, although it comes back: a hand-over goes on without it.
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
    /// Those that may change objects: whoever waits for a shard to be given up waits for them.
    pub writes: u64,
    /// Lists whose answers show what the earlier chain let them see, and have not been passed on to their end yet.
    pub lists: u64,
    /// Watches that show what the earlier chain let them see, and have not been ended yet.
    pub watches: u64,
    /// Clients that were told to list again, for another view, and have not begun a watch since: what they have cached is the
    /// earlier one, and they may write by it. Those that never come back count for two minutes, those that repeat an expired
    /// watch instead of listing for five.
    pub caches: u64,
}

impl InFlight {
    /// Nothing is.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.writes == 0 && self.lists == 0 && self.watches == 0 && self.caches == 0
    }
}

/// One entry at work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryStatus {
    /// Its name.
    pub name: String,
    /// The plugin that runs.
    pub plugin: Digest,
    /// Hash of the settings that it runs with.
    pub settings_hash: String,
    /// How it is.
    pub state: EntryState,
    /// Faults since the entry came into force.
    #[serde(default)]
    pub faults: u64,
    /// The last fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Quarantined until then, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// What the plugin shows of itself, by key: the state of a breaker, how often a rule fired.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reports: BTreeMap<String, serde_json::Value>,
}

/// How an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryState {
    /// It works.
    Active,
    /// Its last calls failed; requests follow its failure policy one by one.
    Failed,
    /// It failed so often that it is left alone for a while; all requests follow its failure policy.
    Quarantined,
}

/// A document that was refused. The chain in force went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Its generation, if it could be read that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Why, from a closed set: for machines.
    pub reason: String,
    /// Why, and what to do: for people.
    pub message: String,
    /// When, RFC 3339.
    pub when: String,
}

/// How often what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Chains that came into force.
    pub applied: u64,
    /// Documents that were refused.
    pub refused: u64,
    /// Plugin faults.
    pub faults: u64,
    /// Times that an entry went into quarantine.
    pub quarantines: u64,
}

/// Whether the pod's containers send anything to the API server through their sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiTraffic {
    /// When the sidecar said so, RFC 3339, by its node's clock, which is that of the pod's containers.
    pub now: String,
    /// Since when it takes requests, RFC 3339. Absent: it does not yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When the last request came or ended, RFC 3339. Absent: none ever came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Requests that have not ended, open watches among them. Absent: an earlier sidecar, which does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
}

/// One lock, as heard in the traffic of the controller.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    /// What it is: `leases.coordination.k8s.io`, `configmaps` or `endpoints`.
    pub resource: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name, as the controller knows it.
    pub name: String,
    /// Its name at the API server: the lock of the pod's shard.
    pub lock: String,
    /// Who holds it, as it calls itself, by what was heard last; empty: nobody.
    pub holder: String,
    /// Whether this pod's controller holds it: it has written so, and what it has written has not run out.
    pub leads: bool,
    /// Since when it does, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_takes_what_it_knows_of_a_newer_status() {
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
    fn whatever_goes_on_is_something() {
        assert!(InFlight::default().is_none());
        for going_on in ["writes", "lists", "watches", "caches"] {
            let told: InFlight = serde_json::from_value(serde_json::json!({ going_on: 1 })).unwrap();
            assert!(!told.is_none(), "{going_on}");
        }
    }

    #[test]
    fn compiling_plugins_are_counted_in_words() {
        let text = |plugins, seconds| Compiling { plugins, seconds }.to_string();
        assert_eq!(text(1, 0), "compiling 1 plugin (0 s)");
        assert_eq!(text(2, 3), "compiling 2 plugins (3 s)");
    }

    #[test]
    fn fields_have_the_names_of_kubernetes_style() {
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
