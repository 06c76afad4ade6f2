//! Messages of the reasons that only a whole decision leads to, held by snapshots.

use ctrlmesh_contract::names::finalizers::{HAND_OVER, PROTECTED};
use serde_json::json;

use super::*;
use crate::conditions::object_status;
use crate::object_summary::summary_of;

/// The conditions of an object that are not healthy, a line each.
fn unhealthy_conditions(document: &Value, observation: &Observation, decision: &Decision) -> String {
    let (origin, summary) = summary_of(document, observation, decision, &Outcome::default());
    let status = object_status(&origin, &summary, &Value::Null, "now");
    let conditions = status["conditions"].as_array().unwrap().iter();
    let lines = conditions
        .filter(|condition| condition["status"] == "False")
        .map(|condition| {
            let field = |name: &str| condition[name].as_str().unwrap();
            format!(
                "  {}={} {}: {}\n",
                field("type"),
                field("status"),
                field("reason"),
                field("message")
            )
        });
    lines.collect()
}

/// The conditions of the first object after a first pass.
fn first_conditions(observation: &Observation) -> String {
    let (decision, _) = decided(observation, PassState::default());
    unhealthy_conditions(&observation.resources.documents[0], observation, &decision)
}

/// The status of a sidecar that runs no chain, with what it supports.
fn report_supporting(change: impl FnOnce(&mut Support)) -> Report {
    let mut status = samples::running(0, []);
    let mut support = Support::current();
    change(&mut support);
    status.supports = Some(support);
    Report::Status(Box::new(status))
}

/// Observations with the built-in plugins, after a change of these.
fn with_plugins(change: impl Fn(&mut PackedPlugin), report: Report) -> Observation {
    let mut builtin = builtin_plugins();
    builtin.values_mut().for_each(change);
    Observation {
        plugins: AvailablePlugins::new(Arc::new(builtin), NamedPlugins::default()),
        ..observation(vec![samples::faults("a")], report)
    }
}

/// Plugins that need a later interface than the sidecar has.
fn with_later_plugins() -> Observation {
    let baseline = report_supporting(|support| support.plugins = vec!["0.1.0".to_owned()]);
    with_plugins(|plugin| plugin.interface = Some(Interface(0, 1, 9)), baseline)
}

fn with_unreadable_document() -> Observation {
    let later = report_supporting(|support| support.documents = vec!["chain.ctrlmesh.kusionstack.io/v9".to_owned()]);
    observation(vec![samples::faults("a")], later)
}

fn with_object_of_kusionstack(mut object: Value) -> Observation {
    object["metadata"]["finalizers"] = json!([PROTECTED]);
    observation(vec![object], without_chain())
}

fn with_incomplete_root() -> Observation {
    let mut observation = observation(vec![samples::shard("a", &[])], without_chain());
    observation.resources.held = ["uid-a".to_owned()].into();
    observation
}

fn with_last_generation() -> Observation {
    let mut observation = observation(vec![samples::faults("a")], without_chain());
    let chain = Chain {
        namespace: "demo".to_owned(),
        generation: u64::MAX,
        entries: Vec::new(),
    };
    observation.config_maps = StoredConfigMaps::written(chain, Claims::default(), []);
    observation
}

/// Lists of hosts that fit into an object each, and not into one chain.
fn with_large_chain() -> Observation {
    let mut hosts = samples::list("hosts", "Blacklist", "example.com");
    let host = |number: usize| format!("{number}.{}.example.com", ["x"; 100].join("."));
    hosts["contents"] = (0..1000).map(host).collect();
    let breaker = |number: usize| samples::breaker(&format!("b{number}"), &json!({}), &[], &[hosts.clone()]);
    observation((0..6).map(breaker).collect(), without_chain())
}

fn with_too_many_entries() -> Observation {
    let faults = |number: usize| samples::faults(&format!("f{number}"));
    observation((0..1100).map(faults).collect(), without_chain())
}

#[test]
fn messages_of_blocked_objects_match_snapshot() {
    let lists = [samples::list("hosts", "Blacklist", "example.com")];
    let breaker = samples::breaker("a", &json!({}), &[], &lists);
    let situations = [
        ("plugin needs a later sidecar", with_later_plugins()),
        ("sidecar can't read the document", with_unreadable_document()),
        (
            "faults of KusionStack",
            with_object_of_kusionstack(samples::faults("a")),
        ),
        ("lists of KusionStack", with_object_of_kusionstack(breaker)),
        ("root has not written all shards", with_incomplete_root()),
        (
            "plugin too large",
            with_plugins(|plugin| plugin.bytes = vec![0; 2 << 20].into(), without_chain()),
        ),
        ("generations used up", with_last_generation()),
        ("chain too large", with_large_chain()),
        ("too many entries", with_too_many_entries()),
    ];
    let text: Vec<String> = situations
        .iter()
        .map(|(situation, observation)| format!("{situation}:\n{}", first_conditions(observation)))
        .collect();
    insta::assert_snapshot!(text.concat());
}

/// Shards `left` and `right` with a pod each. Both were deleted.
fn two_deleted_shards() -> [Value; 2] {
    ["left", "right"].map(|name| {
        let mut shard = samples::shard(name, &[]);
        shard["metadata"]["finalizers"] = json!([HAND_OVER]);
        shard["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        shard
    })
}

fn pod_of_shard(shard: &str) -> Sidecar {
    Sidecar {
        pod: format!("{shard}-0"),
        uid: format!("uid-of-{shard}-0"),
        ip: Some("10.0.0.1".to_owned()),
        labels: [("shard".to_owned(), shard.to_owned())].into(),
        is_scheduled: true,
        ..Sidecar::default()
    }
}

/// Two shards whose sidecars acknowledge every chain as soon as it is written.
struct TwoShards {
    observation: Observation,
    pass_state: PassState,
}

impl TwoShards {
    fn new() -> Self {
        let documents = vec![samples::shard("left", &[]), samples::shard("right", &[])];
        let mut observation = observation(documents, without_chain());
        observation.fleet.sidecars = ["left", "right"].map(pod_of_shard).to_vec();
        let mut two = Self {
            observation,
            pass_state: PassState::default(),
        };
        two.acknowledge(None);
        two.run_pass();
        two
    }

    fn acknowledge(&mut self, chain: Option<&Chain>) {
        let fleet = &mut self.observation.fleet;
        let generation = chain.map_or(0, |chain| chain.generation);
        let report = |sidecar: &Sidecar| {
            let own = sidecar.own_entries(chain.into_iter().flat_map(|chain| &chain.entries));
            let status = samples::running(generation, own);
            (sidecar.pod.clone(), Report::Status(Box::new(status)))
        };
        fleet.reports = fleet.sidecars.iter().map(report).collect();
        fleet.fresh = fleet.reports.keys().cloned().collect();
    }

    /// A pass, and what its sidecars say to it a second later.
    fn run_pass(&mut self) -> Decision {
        let (decision, pass_state) = decided(&self.observation, std::mem::take(&mut self.pass_state));
        self.pass_state = pass_state;
        carry_out(&mut self.observation, &decision, &mut self.pass_state);
        self.acknowledge(Some(&decision.next.chain));
        self.observation.now += Duration::from_secs(1);
        decision
    }

    /// The conditions of both shards after each pass that changed them.
    fn new_messages(&mut self, passes: usize) -> String {
        let mut said = String::new();
        let mut text = String::new();
        for _ in 0..passes {
            let decision = self.run_pass();
            let documents = self.observation.resources.documents.iter();
            let now = documents.map(|document| {
                let conditions = unhealthy_conditions(document, &self.observation, &decision);
                let conditions = conditions.lines().filter(|line| line.starts_with("  Distributed"));
                let name = document["metadata"]["name"].as_str().unwrap();
                conditions
                    .map(|line| format!("  {name}:{}\n", &line[1..]))
                    .collect::<String>()
            });
            let now: String = now.collect();
            if now != said {
                text += &format!("{now}  --\n");
                said = now;
            }
        }
        text
    }
}

#[test]
fn messages_of_deleted_shards_match_snapshot() {
    let mut two = TwoShards::new();
    two.observation.resources = CustomResources::parse(two_deleted_shards().to_vec(), Vec::new());
    let running = two.new_messages(8);
    two.observation.fleet.sidecars.truncate(1);
    let gone = two.new_messages(30);
    insta::assert_snapshot!(format!("all pods run:\n{running}right-0 is gone:\n{gone}"));
}

/// Both shards select other pods now. The pods that get all objects are those that left a shard, so no ShardingConfig is theirs.
#[test]
fn messages_of_deleted_shards_without_pods_match_snapshot() {
    let mut two = TwoShards::new();
    let mut deleted = two_deleted_shards();
    for (shard, pods) in deleted.iter_mut().zip(["new-left", "new-right"]) {
        shard["spec"]["selector"] = json!({ "matchLabels": { "shard": pods } });
    }
    let mut edited = deleted.clone();
    for shard in &mut edited {
        shard["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
    }
    two.observation.resources = CustomResources::parse(edited.to_vec(), Vec::new());
    two.new_messages(8);
    two.observation.resources = CustomResources::parse(deleted.to_vec(), Vec::new());
    let fleet = &mut two.observation.fleet;
    (fleet.reports, fleet.fresh) = Default::default();
    insta::assert_snapshot!(two.new_messages(8));
}
