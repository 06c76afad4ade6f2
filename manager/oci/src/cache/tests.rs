use bytes::Bytes;
use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_manager_api::plugin::PluginStatus;

use super::*;
use crate::Times;

const RANDOM: u16 = u16::MAX;

fn request_for(image: &str) -> ResolveRequest {
    ResolveRequest {
        namespace: "demo".to_owned(),
        image: image.to_owned(),
        pull_policy: PullPolicy::IfNotPresent,
        pull_secret: None,
        verification_key: None,
        pinned: None,
    }
}

fn key(image: &str) -> Key {
    Key::new(&request_for(image)).unwrap()
}

fn watched_key(image: &str) -> Key {
    let request = ResolveRequest {
        pull_policy: PullPolicy::Always,
        ..request_for(image)
    };
    Key::new(&request).unwrap()
}

fn artifact(content: &[u8]) -> Arc<Artifact> {
    Arc::new(Artifact {
        reference: String::new(),
        manifest: Digest::of(content).to_string(),
        digest: Digest::of(content),
        packed: Bytes::copy_from_slice(content),
        size: content.len(),
        interface: Interface(0, 1, 0),
    })
}

fn cache() -> Cache {
    Cache::new(Settings {
        cache_bytes: 100,
        ..Settings::default()
    })
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn pull_failure() -> Result<Arc<Artifact>, Failure> {
    Err(Failure::temporary(FailureReason::RegistryUnavailable, "down"))
}

const ONE: &str = "oci://a.dev/b:1";

#[test]
fn pin_is_used_only_for_its_image_and_policy() {
    let manifest = Digest::of(b"m").to_string();
    let status = |image: &str, manifest: &str| {
        Some(PluginStatus {
            image: image.to_owned(),
            manifest: manifest.to_owned(),
            ..PluginStatus::default()
        })
    };
    let target = |pinned, pull_policy| {
        let request = ResolveRequest {
            pinned,
            pull_policy,
            ..request_for(ONE)
        };
        Key::new(&request).unwrap().image.target
    };
    assert_eq!(target(status(ONE, &manifest), PullPolicy::IfNotPresent), manifest);
    assert_eq!(target(status(ONE, &manifest), PullPolicy::Always), "1");
    assert_eq!(
        target(status("oci://a.dev/b:2", &manifest), PullPolicy::IfNotPresent),
        "1"
    );
    assert_eq!(target(status(ONE, ""), PullPolicy::IfNotPresent), "1");
    assert_eq!(target(status(ONE, "../../other"), PullPolicy::IfNotPresent), "1");
    let digest = format!("oci://a.dev/b@{manifest}");
    assert!(!watched_key(&digest).is_watched, "a digest is never looked up again");
}

#[test]
fn reference_is_pulled_once_at_a_time() {
    let (mut cache, now) = (cache(), Instant::now());
    assert_eq!(cache.look_up(key(ONE), "a", now), (Resolution::Pending, true));
    assert_eq!(cache.look_up(key(ONE), "b", now), (Resolution::Pending, false));
    assert_eq!(cache.take(now, 4).len(), 1);
    assert!(cache.take(now, 4).is_empty());
    assert_eq!(
        cache.finish_job(&key(ONE), Ok(artifact(b"x")), now, RANDOM),
        names(&["a", "b"])
    );
    // A reference that is not watched is never due again.
    assert!(cache.take(now + Duration::from_secs(86_400), 4).is_empty());
}

#[test]
fn pulls_are_limited_to_free_permits() {
    let (mut cache, now) = (cache(), Instant::now());
    for index in 0..5 {
        cache.look_up(key(&format!("oci://a.dev/b:{index}")), "a", now);
    }
    assert_eq!(cache.take(now, 3).len(), 3);
    assert_eq!(cache.take(now, 0).len(), 0);
    assert_eq!(cache.take(now, 3).len(), 2);
}

#[test]
fn failed_pull_is_retried_with_growing_pauses() {
    let (mut cache, mut now) = (cache(), Instant::now());
    cache.look_up(key(ONE), "a", now);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert_eq!(cache.take(now, 1).len(), 1);
        cache.finish_job(&key(ONE), pull_failure(), now, RANDOM);
        let due = cache.entries[&key(ONE)].due.unwrap();
        pauses.push((due - now).as_secs());
        assert!(cache.take(due - Duration::from_millis(1), 1).is_empty());
        now = due;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    cache.finish_job(&key(ONE), Ok(artifact(b"x")), now, RANDOM);
    assert_eq!(cache.entries[&key(ONE)].failures, 0);
}

#[test]
fn retry_after_of_registry_lengthens_pause_up_to_limit() {
    for (asked, expected) in [(1, 5), (600, 600), (1_000_000, 3600)] {
        let (mut cache, now) = (cache(), Instant::now());
        cache.look_up(key(ONE), "a", now);
        let failure = Failure {
            again: Retry::After(Duration::from_secs(asked)),
            ..pull_failure().unwrap_err()
        };
        cache.finish_job(&key(ONE), Err(failure), now, RANDOM);
        assert_eq!(
            cache.next().unwrap() - now,
            Duration::from_secs(expected).min(Duration::from_secs(900))
        );
        assert_eq!(
            cache.entries[&key(ONE)].due.unwrap() - now,
            Duration::from_secs(expected)
        );
    }
}

#[test]
fn namespaces_are_reported_only_when_resolution_changes() {
    let (mut cache, now) = (cache(), Instant::now());
    let key = watched_key(ONE);
    cache.look_up(key.clone(), "a", now);
    assert_eq!(cache.finish_job(&key, pull_failure(), now, RANDOM), names(&["a"]));
    assert_eq!(cache.finish_job(&key, pull_failure(), now, RANDOM), names(&[]));
    let first = artifact(b"x");
    assert_eq!(cache.finish_job(&key, Ok(first.clone()), now, RANDOM), names(&["a"]));
    assert_eq!(cache.finish_job(&key, Ok(first.clone()), now, RANDOM), names(&[]));
    assert_eq!(cache.finish_job(&key, pull_failure(), now, RANDOM), names(&["a"]));
    let (resolution, _) = cache.look_up(key.clone(), "a", now);
    assert!(matches!(resolution, Resolution::Failed { last: Some(last), .. } if last == first));
    assert_eq!(cache.finish_job(&key, Ok(artifact(b"y")), now, RANDOM), names(&["a"]));
}

#[test]
fn watched_tag_is_refreshed() {
    let (mut cache, now) = (cache(), Instant::now());
    let key = watched_key(ONE);
    cache.look_up(key.clone(), "a", now);
    cache.take(now, 1);
    cache.finish_job(&key, Ok(artifact(b"x")), now, RANDOM);
    assert_eq!(cache.next(), Some(now + Times::default().tag_refresh));
    let job = cache.take(now + Times::default().tag_refresh, 1).remove(0);
    assert_eq!(job.known.len(), 1);
}

#[test]
fn fetched_plugin_is_shared_between_equal_credentials() {
    let (mut cache, now) = (cache(), Instant::now());
    let manifest = artifact(b"x").manifest.clone();
    cache.look_up(key(ONE), "a", now);
    cache.finish_job(&key(ONE), Ok(artifact(b"x")), now, RANDOM);
    let digest = format!("oci://a.dev/b@{manifest}");
    assert!(matches!(
        cache.look_up(key(&digest), "a", now),
        (Resolution::Ready(_), false)
    ));
    let with = |secret: Option<&str>, verification_key: Option<&str>| {
        let request = ResolveRequest {
            pull_secret: secret.map(str::to_owned),
            verification_key: verification_key.map(str::to_owned),
            ..request_for(&digest)
        };
        Key::new(&request).unwrap()
    };
    for key in [
        with(Some("s"), None),
        with(None, Some("k")),
        key(&digest.replace("a.dev", "b.dev")),
    ] {
        assert_eq!(cache.look_up(key, "a", now), (Resolution::Pending, true));
    }
}

#[test]
fn unused_references_are_forgotten_and_due_ones_are_taken_first() {
    let (mut cache, now) = (cache(), Instant::now());
    let idle = Times::default().idle;
    cache.look_up(key(ONE), "a", now);
    cache.finish_job(&key(ONE), Ok(artifact(b"x")), now, RANDOM);
    cache.look_up(watched_key(ONE), "b", now);
    cache.finish_job(&watched_key(ONE), Ok(artifact(b"x")), now, RANDOM);
    let broken = key("oci://a.dev/b:2");
    cache.look_up(broken.clone(), "c", now);
    cache.finish_job(&broken, pull_failure(), now, RANDOM);
    assert_eq!(cache.sweep(now + idle - Duration::from_secs(1)), names(&[]));
    assert_eq!(cache.size().1, 3);
    assert_eq!(cache.sweep(now + idle), names(&["b", "c"]));
    assert_eq!(cache.size().1, 2);
    assert_eq!(cache.sweep(now + idle), names(&[]), "nobody is asked twice");
    cache.look_up(broken.clone(), "c", now + idle);
    assert_eq!(cache.sweep(now + idle + idle / 2), names(&[]));
    assert_eq!(cache.size().1, 1);
    assert!(cache.entries.contains_key(&broken));
}

#[test]
fn next_wakeup_is_earliest_due_or_expiring_reference() {
    let (mut cache, now) = (cache(), Instant::now());
    assert_eq!(cache.next(), None);
    cache.look_up(key(ONE), "a", now);
    assert_eq!(cache.next(), Some(now));
    cache.take(now, 1);
    assert_eq!(cache.next(), None, "what runs reports by itself");
    cache.finish_job(&key(ONE), Ok(artifact(b"x")), now, RANDOM);
    assert_eq!(cache.next(), Some(now + Times::default().idle));
}

#[test]
fn cache_limits_bytes_and_references() {
    let (mut cache, now) = (cache(), Instant::now());
    cache.look_up(key(ONE), "a", now);
    cache.finish_job(&key(ONE), Ok(artifact(&[1; 60])), now, RANDOM);
    let two = watched_key("oci://a.dev/b:2");
    cache.look_up(two.clone(), "a", now);
    cache.finish_job(&two, Ok(artifact(&[2; 40])), now, RANDOM);
    assert_eq!(cache.size(), (100, 2));
    // It would fit in place of its own predecessor, but not beside the other reference.
    cache.finish_job(&two, Ok(artifact(&[3; 41])), now, RANDOM);
    assert!(matches!(
        cache.look_up(two, "a", now).0,
        Resolution::Failed {
            reason: FailureReason::TooLarge,
            last: Some(_),
            ..
        }
    ));
    for index in 0..MAX_REFERENCES {
        cache.look_up(key(&format!("oci://a.dev/c:{index}")), "a", now);
    }
    assert_eq!(cache.size().1, MAX_REFERENCES);
    let (resolution, is_new) = cache.look_up(key("oci://a.dev/d:1"), "a", now);
    assert!(
        matches!(
            resolution,
            Resolution::Failed {
                reason: FailureReason::TooLarge,
                ..
            }
        ) && !is_new
    );
}
