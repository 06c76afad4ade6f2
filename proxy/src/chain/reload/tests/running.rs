//! Runs the whole loop on a directory that changes as kubelet changes it.

use tokio::task::JoinHandle;

use super::*;

struct Running {
    mount: Mount,
    handle: Arc<ChainHandle>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(mount: Mount, change: impl FnOnce(&mut ChainLocation)) -> Self {
        let mut location = valid_location(mount.path());
        change(&mut location);
        let (handle, cancel) = (test_handle(Metrics::default()), CancellationToken::new());
        let task = tokio::spawn(run(
            test_source(location),
            Arc::clone(&handle),
            prepare_nothing(),
            NO_POLL,
            cancel.clone(),
        ));
        Self {
            mount,
            handle,
            cancel,
            task,
        }
    }

    /// Waits until the chain in force is as expected.
    async fn wait_until(&self, what: &str, expected: impl Fn(&Snapshot) -> bool) {
        let mut changes = self.handle.subscribe();
        let wait = async {
            while !expected(&self.handle.current()) {
                changes.changed().await.unwrap();
            }
        };
        timeout(TEST_TIMEOUT, wait)
            .await
            .unwrap_or_else(|_| panic!("{what}: {:?}", self.handle.status()));
    }

    async fn stop(self) {
        self.cancel.cancel();
        timeout(TEST_TIMEOUT, self.task)
            .await
            .expect("the loop did not end")
            .unwrap();
    }
}

#[tokio::test]
async fn chain_watch_follows_swaps_of_mounted_volume() {
    let mut running = Running::start(Mount::new(), |_| {});
    let files = |generation| {
        files_of(
            document(generation, &[entry_value("a", scripted_guest())]),
            &[scripted_guest()],
        )
    };
    for generation in 1..=3 {
        running.mount.publish(files(generation));
        running
            .wait_until("a swap", |snapshot| snapshot.generation == generation)
            .await;
    }
    timeout(TEST_TIMEOUT, running.handle.wait_until_ready()).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn chain_watch_reaches_last_of_many_swaps_and_never_goes_back() {
    let mut running = Running::start(Mount::new(), |_| {});
    let handle = Arc::clone(&running.handle);
    let mut changes = handle.subscribe();
    let watcher = tokio::spawn(async move {
        let mut seen = vec![0];
        while seen.last() != Some(&100) {
            changes.changed().await.unwrap();
            seen.push(handle.current().generation);
        }
        seen
    });
    for generation in 1..=100 {
        running.mount.publish(files_of(document(generation, &[]), &[]));
        tokio::task::yield_now().await;
    }
    let seen = timeout(TEST_TIMEOUT, watcher)
        .await
        .expect("the last swap was missed")
        .unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
    running.stop().await;
}

#[tokio::test]
async fn chain_watch_follows_labels_of_pod() {
    let mut labels = Mount::new();
    labels.publish([(files::LABELS, b"shard=\"0\"\n".to_vec())]);
    let path = labels.path().join(files::LABELS);
    let mut mount = Mount::new();
    let selector = json!({"matchLabels": {"shard": "1"}});
    let entries = [with_field(
        entry_value("shard-1", scripted_guest()),
        "podSelector",
        selector,
    )];
    mount.publish(files_of(document(1, &entries), &[scripted_guest()]));
    let running = Running::start(mount, |location| {
        *location = location_with_labels(&location.directory, path)
    });
    running
        .wait_until("the first chain", |snapshot| {
            snapshot.generation == 1 && snapshot.entries().is_empty()
        })
        .await;
    labels.publish([(files::LABELS, b"shard=\"1\"\n".to_vec())]);
    running
        .wait_until("the new label", |snapshot| snapshot.entry("shard-1").is_some())
        .await;
    running.stop().await;
}
