use ctrlmesh_wire::objects::Predicate;
use http::HeaderValue;
use http::header::ACCEPT;

use super::*;
use crate::chain::EntryId;
use crate::controller_state::list_views::ListViews;
use crate::controller_state::list_views::tests::READER;
use crate::plugin::dropped_fields::PluginDroppedFields;
use crate::plugin::object_metadata::ObjectQuestion;

const TARGET: &str = "/api/v1/configmaps?limit=500";
const USER_AGENT: &str = "manager/v1";

/// A list as a test sends it.
struct Sent {
    method: &'static str,
    uri: Uri,
    headers: HeaderMap,
    user_agent: &'static str,
    edits: Vec<Attributed>,
}

impl Sent {
    fn new(target: &str, edits: Vec<RequestEdit>) -> Self {
        Self {
            method: "GET",
            uri: target.parse().unwrap(),
            headers: HeaderMap::new(),
            user_agent: USER_AGENT,
            edits: edits.into_iter().map(|edit| (EntryId::next_id(), edit)).collect(),
        }
    }

    fn request(&self) -> Option<ListRequest<'_>> {
        let info = RequestInfo::parse(self.method, self.uri.path(), self.uri.query()).unwrap();
        ListRequest::new(&info, &self.uri, &self.headers, self.user_agent, &self.edits)
    }

    fn is_found_in(&self, lists: &NarrowedLists) -> bool {
        lists.find(&self.request().unwrap()).is_some()
    }

    fn remember_in(&self, lists: &mut NarrowedLists) -> NarrowedList {
        let narrowed = narrowed(&format!("{TARGET}&labelSelector=narrowed"));
        lists.remember(&self.request().unwrap(), narrowed.clone());
        narrowed
    }
}

fn and_labels(selector: &str) -> RequestEdit {
    RequestEdit::AndLabelSelector(selector.into())
}

fn set_header() -> RequestEdit {
    RequestEdit::SetHeader(ACCEPT, HeaderValue::from_static("text/plain"))
}

fn narrowed(target: &str) -> NarrowedList {
    let edit = and_labels("shard=a");
    NarrowedList {
        uri: target.parse().unwrap(),
        noted: ListViews::default().list(&READER, [&edit].into_iter(), true).unwrap(),
    }
}

#[test]
fn same_list_is_found() {
    let mut lists = NarrowedLists::default();
    let sent = Sent::new(TARGET, vec![and_labels("shard=a"), and_labels("x=1")]);
    assert!(!sent.is_found_in(&lists));
    let narrowed = sent.remember_in(&mut lists);
    assert_eq!(lists.find(&sent.request().unwrap()), Some(narrowed));

    let by_copies = Sent {
        edits: sent.edits.clone(),
        ..Sent::new(TARGET, vec![])
    };
    assert!(by_copies.is_found_in(&lists));
    let by_equal_texts = Sent::new(TARGET, vec![and_labels("shard=a"), and_labels("x=1")]);
    assert!(by_equal_texts.is_found_in(&lists));
    // Header fields are edited each time.
    let with_header = Sent::new(TARGET, vec![set_header(), and_labels("shard=a"), and_labels("x=1")]);
    assert!(with_header.is_found_in(&lists));
}

#[test]
fn list_with_other_edits_is_not_found() {
    let mut lists = NarrowedLists::default();
    Sent::new(TARGET, vec![and_labels("shard=a"), and_labels("x=1")]).remember_in(&mut lists);
    for edits in [
        vec![and_labels("shard=b"), and_labels("x=1")],
        vec![and_labels("x=1"), and_labels("shard=a")],
        vec![and_labels("shard=a")],
        vec![and_labels("shard=a"), and_labels("x=1"), and_labels("y=1")],
        vec![
            and_labels("shard=a"),
            and_labels("x=1"),
            RequestEdit::SetQuery("limit".into(), "1".into()),
        ],
        vec![and_labels("shard=a"), RequestEdit::AndFieldSelector("x=1".into())],
    ] {
        assert!(!Sent::new(TARGET, edits.clone()).is_found_in(&lists), "{edits:?}");
    }
}

#[test]
fn list_sent_otherwise_is_not_found() {
    let mut lists = NarrowedLists::default();
    let sent = |target: &str| Sent::new(target, vec![and_labels("shard=a")]);
    sent(TARGET).remember_in(&mut lists);
    for target in [
        "/api/v1/configmaps",
        "/api/v1/configmaps?limit=501",
        "/api/v1/configmaps?limit=500&",
        "/api/v1/configmaps?limit=%3500",
        "/api/v1/configmapz?limit=500",
        "/api/v1/namespaces/n/configmaps?limit=500",
    ] {
        assert!(!sent(target).is_found_in(&lists), "{target}");
    }
    let mut other_client = sent(TARGET);
    other_client.user_agent = "manager/v2";
    assert!(!other_client.is_found_in(&lists));
    let mut metadata = sent(TARGET);
    let accept = HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    metadata.headers.insert(ACCEPT, accept);
    assert!(!metadata.is_found_in(&lists));
    assert!(sent(TARGET).is_found_in(&lists));
}

#[test]
fn only_narrowed_lists_are_looked_up() {
    let narrowed = || vec![and_labels("shard=a")];
    assert!(Sent::new(TARGET, narrowed()).request().is_some());
    for (target, edits) in [
        (TARGET, vec![]),
        (TARGET, vec![set_header()]),
        ("/api/v1/configmaps?watch=1", narrowed()),
        ("/api/v1/namespaces/n/configmaps/a", narrowed()),
    ] {
        assert!(Sent::new(target, edits).request().is_none(), "{target}");
    }
    let delete = Sent {
        method: "DELETE",
        ..Sent::new(TARGET, narrowed())
    };
    assert!(delete.request().is_none());
}

#[test]
fn list_with_edits_besides_label_selectors_is_not_remembered() {
    let mut lists = NarrowedLists::default();
    for edit in [
        RequestEdit::AndFieldSelector("x=1".into()),
        RequestEdit::SetQuery("limit".into(), "1".into()),
        RequestEdit::RemoveQuery("limit".into()),
    ] {
        Sent::new(TARGET, vec![and_labels("shard=a"), edit]).remember_in(&mut lists);
    }
    assert!(lists.0.is_empty());
}

#[test]
fn list_of_new_chain_replaces_that_of_earlier_chain() {
    let mut lists = NarrowedLists::default();
    let [earlier, new] = ["shard=a", "shard=b"].map(|selector| Sent::new(TARGET, vec![and_labels(selector)]));
    earlier.remember_in(&mut lists);
    new.remember_in(&mut lists);
    assert!(new.is_found_in(&lists));
    assert!(!earlier.is_found_in(&lists));
    assert_eq!(lists.0.len(), 1);
}

#[test]
fn oldest_list_is_dropped_first() {
    let mut lists = NarrowedLists::default();
    let list = |number: usize| {
        let target = format!("/api/v1/namespaces/n{number}/configmaps");
        Sent::new(&target, vec![and_labels("shard=a")])
    };
    for number in 0..=MAX_LISTS {
        list(number).remember_in(&mut lists);
    }
    assert_eq!(lists.0.len(), MAX_LISTS);
    assert!(!list(0).is_found_in(&lists));
    assert!(list(1).is_found_in(&lists));
    assert!(list(MAX_LISTS).is_found_in(&lists));
}

#[test]
fn replaced_list_is_the_newest() {
    let mut lists = NarrowedLists::default();
    let list = |number: usize, selector: &str| {
        let target = format!("/api/v1/namespaces/n{number}/configmaps");
        Sent::new(&target, vec![and_labels(selector)])
    };
    for number in 0..MAX_LISTS {
        list(number, "shard=a").remember_in(&mut lists);
    }
    list(0, "shard=b").remember_in(&mut lists);
    list(MAX_LISTS, "shard=b").remember_in(&mut lists);
    assert_eq!(lists.0.len(), MAX_LISTS);
    assert!(list(0, "shard=b").is_found_in(&lists));
    assert!(!list(1, "shard=a").is_found_in(&lists));
}

#[test]
fn long_list_is_not_remembered() {
    let mut lists = NarrowedLists::default();
    let long = "a".repeat(MAX_LIST_BYTES);
    let by_client = Sent::new(&format!("/api/v1/configmaps?x={long}"), vec![and_labels("shard=a")]);
    by_client.remember_in(&mut lists);
    let values: Vec<String> = (0..MAX_LIST_BYTES / 8).map(|value| format!("v{value}")).collect();
    let by_plugin = Sent::new(TARGET, vec![and_labels(&format!("shard in ({})", values.join(",")))]);
    by_plugin.remember_in(&mut lists);
    let edited = Sent::new(TARGET, vec![and_labels("shard=a")]);
    let target = format!("/api/v1/configmaps?x={long}");
    lists.remember(&edited.request().unwrap(), narrowed(&target));
    assert!(lists.0.is_empty());
}

#[test]
fn list_that_is_filtered_by_objects_is_neither_remembered_nor_found() {
    let keep_objects = || RequestEdit::KeepObjects(Predicate::All(Box::default()).into());
    let dropped = PluginDroppedFields::parse(vec!["metadata.managedFields".to_owned()]).unwrap();
    let mut lists = NarrowedLists::default();
    let plain = Sent::new(TARGET, vec![and_labels("shard=a")]);
    plain.remember_in(&mut lists);
    for edits in [
        vec![and_labels("shard=a"), keep_objects()],
        vec![keep_objects(), and_labels("shard=a")],
        vec![keep_objects()],
        vec![and_labels("shard=a"), RequestEdit::DropFields(dropped)],
        vec![
            and_labels("shard=a"),
            RequestEdit::AskAboutObjects(ObjectQuestion::new(Vec::new())),
        ],
    ] {
        let filtered = Sent::new(TARGET, edits);
        assert!(!filtered.is_found_in(&lists));
        filtered.remember_in(&mut lists);
        assert!(!filtered.is_found_in(&lists));
    }
    assert!(plain.is_found_in(&lists));
}
