//! A watch that begins with all pods, as clients ask for it that list by watching (KEP-3157): an event for each pod, and
//! a bookmark behind the last one. Their bytes are rendered once, for all such watches.

use std::sync::LazyLock;

use bytes::Bytes;

use crate::uids::uid_of;

pub(crate) const PODS_WATCH: &str =
    "/api/v1/pods?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

/// Pods with which the watch begins.
pub(crate) const PODS: u32 = 50_000;

/// The annotation of the bookmark behind the last pod.
pub(crate) const END_ANNOTATION: &str = "k8s.io/initial-events-end";

/// Pods with the same controller.
const PODS_OF_OWNER: u32 = 10;

static EVENTS: LazyLock<Bytes> = LazyLock::new(|| render_events(PODS).into());

/// The events of [`PODS`] pods, without a copy.
pub(super) fn shared_events() -> Bytes {
    EVENTS.clone()
}

pub(crate) fn pod_uid(number: u32) -> String {
    uid_of("pod", number)
}

/// The UID of the controller of a pod.
pub(crate) fn owner_uid(number: u32) -> String {
    uid_of("replica set", number / PODS_OF_OWNER)
}

/// The events of as many pods, and the bookmark.
pub(crate) fn render_events(pods: u32) -> String {
    let mut events: String = (0..pods).map(added_event).collect();
    let metadata = format!(r#"{{"resourceVersion":"42","annotations":{{"{END_ANNOTATION}":"true"}}}}"#);
    events.push_str(&event("BOOKMARK", &metadata));
    events
}

fn added_event(number: u32) -> String {
    let (uid, owner) = (pod_uid(number), owner_uid(number));
    let owner =
        format!(r#"{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"{owner}","controller":true}}"#);
    let metadata = format!(
        r#"{{"name":"web-{number:05}","namespace":"default","uid":"{uid}","resourceVersion":"42","ownerReferences":[{owner}]}}"#
    );
    event("ADDED", &metadata)
}

fn event(kind: &str, metadata: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{metadata}}}}}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn each_pod_is_a_line_and_a_bookmark_is_the_last_one() {
        let events = render_events(25);
        let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (bookmark, pods) = events.split_last().unwrap();
        assert_eq!(bookmark["type"], "BOOKMARK");
        assert_eq!(bookmark["object"]["metadata"]["annotations"][END_ANNOTATION], "true");
        assert_eq!(pods.len(), 25);
        assert!(pods.iter().all(|pod| pod["type"] == "ADDED"));
        let count = |pointer: &'static str| {
            let texts = pods.iter().map(|pod| pod.pointer(pointer).unwrap().as_str().unwrap());
            texts.collect::<BTreeSet<&str>>().len()
        };
        assert_eq!(count("/object/metadata/name"), 25);
        assert_eq!(count("/object/metadata/uid"), 25);
        assert_eq!(count("/object/metadata/ownerReferences/0/uid"), 3);
    }

    #[test]
    fn event_of_a_pod_is_small() {
        let bytes = added_event(7).len();
        assert!((280..350).contains(&bytes), "{bytes}");
    }
}
