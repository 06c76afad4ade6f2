//! Two managers at once, each of which takes itself for the leader: one that was paused or cut off does, for a while.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Entry;
use ctrlmesh_manager_api::sharding_config::Limit;
use ctrlmesh_manager_planner::view;
use ctrlmesh_testkit::Store;

use super::lost_pods::pod_of;
use super::*;

const BUCKETS: u64 = 4;

/// The buckets that each pod shows, and those that two pods showed at once.
#[derive(Default)]
struct Shown {
    by_pod: BTreeMap<String, BTreeSet<u64>>,
    twice: Vec<String>,
}

impl Shown {
    fn show(&mut self, pod: &str, buckets: BTreeSet<u64>, generation: u64) {
        for (other, shown) in self.by_pod.iter().filter(|(other, _)| *other != pod) {
            let both = shown.intersection(&buckets);
            self.twice
                .extend(both.map(|bucket| format!("{bucket} by {other} and {pod} (generation {generation})")));
        }
        self.by_pod.insert(pod.to_owned(), buckets);
    }
}

/// A sidecar that loads the chain that lies there when it is asked the second time.
#[derive(Clone)]
struct Following {
    shard: &'static str,
    store: Store,
    shown: Arc<Mutex<Shown>>,
    asked: Arc<AtomicU64>,
    says: Arc<Mutex<Status>>,
}

impl Following {
    async fn start(shard: &'static str, last: u8, port: u16, server: &ApiServer, shown: &Arc<Mutex<Shown>>) -> u16 {
        let ip = format!("127.0.0.{last}");
        let listener = TcpListener::bind((ip.as_str(), port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let following = Self {
            shard,
            store: server.store().clone(),
            shown: Arc::clone(shown),
            asked: Arc::default(),
            says: Arc::new(Mutex::new(status_running(&format!("{shard}-0"), 0, None))),
        };
        put(server, pod_of(shard, &ip));
        let router = Router::new()
            .route("/status", get(serve_status_and_load))
            .with_state(following);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        port
    }

    fn load_chain(&self) {
        // Nobody else loads meanwhile.
        let mut shown = self.shown.lock().unwrap();
        let Some(mut chain) = self.store.read(chain) else {
            return;
        };
        let labels = BTreeMap::from([("shard".to_owned(), self.shard.to_owned())]);
        chain.entries.retain(|entry| entry.pod_selector.matches(&labels));
        let pod = format!("{}-0", self.shard);
        shown.show(&pod, visible_buckets(&chain.entries), chain.generation);
        *self.says.lock().unwrap() = status_running(&pod, chain.generation, Some(&chain));
    }
}

async fn serve_status_and_load(State(following): State<Following>) -> String {
    if following.asked.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
        following.load_chain();
    }
    let says = following.says.lock().unwrap();
    serde_json::to_string(&*says).unwrap()
}

/// The buckets whose objects these entries show.
fn visible_buckets(entries: &[Entry]) -> BTreeSet<u64> {
    let limits: Vec<Limit> = entries
        .iter()
        .flat_map(|entry| serde_json::from_value::<Vec<Limit>>(entry.settings.value()["limits"].clone()).unwrap())
        .collect();
    let classes = view::resource_classes(limits.iter());
    let all = 0..BUCKETS;
    let Some(class) = classes.iter().next_back() else {
        return all.collect();
    };
    let set = view::visible_objects(limits.iter(), class);
    all.filter(|bucket| {
        set.as_ref()
            .is_some_and(|set| set.allows_value("bucket", &bucket.to_string()))
    })
    .collect()
}

fn shard(name: &str, buckets: &BTreeSet<u64>) -> Value {
    let mut shard = samples::shard(name, &[]);
    let values: Vec<String> = buckets.iter().map(ToString::to_string).collect();
    shard["spec"]["limits"][0]["selector"] =
        json!({ "matchExpressions": [{ "key": "bucket", "operator": "In", "values": values }] });
    shard
}

#[tokio::test]
async fn two_leading_managers_never_give_objects_to_two_shards() {
    let (server, shown) = (server().await, Arc::<Mutex<Shown>>::default());
    let port = Following::start("left", 51, 0, &server, &shown).await;
    Following::start("right", 52, port, &server, &shown).await;
    let flags = ["--settle-ms=0"];
    let (first, one) = start(&server, port, &flags).await;
    let (second, other) = start(&server, port, &flags).await;
    let written = |context: &Context| context.metrics.distribution.chains_written.get();
    // No two objects have a bucket at the same time: the shard that loses it is edited first.
    let mut before: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut edit = 0;
    while edit < 8 || written(&first).min(written(&second)) < 3 {
        let (left, right) = (0..BUCKETS).partition(|bucket| (bucket + edit) % BUCKETS < 2);
        let expected = BTreeMap::from([("left-0".to_owned(), left), ("right-0".to_owned(), right)]);
        for (name, pod) in [("left", "left-0"), ("right", "right-0")] {
            let old = before.get(pod).cloned().unwrap_or_default();
            put(&server, shard(name, &(&old & &expected[pod])));
        }
        put(&server, shard("left", &expected["left-0"]));
        put(&server, shard("right", &expected["right-0"]));
        before.clone_from(&expected);
        until_counted(|| shown.lock().unwrap().by_pod == expected).await;
        edit += 1;
        assert!(edit < 200, "only one of them writes");
    }
    assert_eq!(shown.lock().unwrap().twice, Vec::<String>::new());
    one.stop().await;
    other.stop().await;
}
