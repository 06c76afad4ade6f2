//! Objects of a response through real plugins that are asked about them.

use ctrlmesh_wire::objects::Controller;
use serde_json::{Value, json};

use super::*;
use crate::chain::tests::worker::Worker;
use crate::plugin::verdict::RequestEdit;

/// A request to a sidecar with a chain of these plugins, after its request phase.
struct Asked {
    plugins: Plugins,
    edits: Vec<Attributed>,
    worker: Worker,
}

impl Asked {
    async fn new(entries: &[(&str, Value)]) -> Self {
        let worker = Worker::new(entries);
        let (plugins, edits) = worker.admit().await;
        Self { plugins, edits, worker }
    }

    /// Another request to the same sidecar.
    async fn repeat(&mut self) {
        (self.plugins, self.edits) = self.worker.admit().await;
    }

    /// The flags of objects that are all kept at first.
    fn ask(&self, objects: &[ObjectMetadata<'_>]) -> Result<Vec<bool>, Reply> {
        let mut are_kept = vec![true; objects.len()];
        let questions = ObjectQuestions::of_edits(&self.edits);
        self.plugins.ask_about_objects(&questions, objects, &mut are_kept)?;
        Ok(are_kept)
    }
}

/// A script that asks about objects and decides by this text.
fn asking(on_objects: &Value) -> Value {
    let edit = json!({ "askAboutObjects": ["team"] });
    let line = json!({ "reuse": "whileUnchanged", "note": 7, "then": { "proceed": [edit] } });
    json!({ "onRequest": [line], "onObjects": on_objects })
}

fn named(name: &str) -> ObjectMetadata<'_> {
    ObjectMetadata {
        name: name.into(),
        ..ObjectMetadata::default()
    }
}

/// An object that counts as so many bytes because of an annotation, with others that are not asked for.
fn annotated(bytes: usize) -> ObjectMetadata<'static> {
    let value = |length: usize| "v".repeat(length).into();
    let empty = ObjectMetadata {
        annotations: vec![("other".into(), value(3 << 20)), ("team".into(), value(0))],
        ..ObjectMetadata::default()
    };
    let rest = bytes - bytes_of(&empty);
    ObjectMetadata {
        annotations: vec![("other".into(), value(3 << 20)), ("team".into(), value(rest))],
        ..ObjectMetadata::default()
    }
}

/// What an object counts in a call of a plugin that asks for `team`.
fn bytes_of(object: &ObjectMetadata<'_>) -> usize {
    let question = ObjectQuestion::new(vec!["team".to_owned()]);
    question.told_metadata_of(object).bytes()
}

/// An object with so many labels of a few bytes.
fn labelled(count: usize) -> ObjectMetadata<'static> {
    let labels = (0..count).map(|label| (label.to_string().into(), "".into()));
    ObjectMetadata {
        labels: labels.collect(),
        ..ObjectMetadata::default()
    }
}

/// An object with a controller whose name has so many bytes.
fn controlled(bytes: usize) -> ObjectMetadata<'static> {
    ObjectMetadata {
        controller: Some(Controller {
            name: "n".repeat(bytes).into(),
            ..Controller::default()
        }),
        ..ObjectMetadata::default()
    }
}

#[tokio::test]
async fn object_is_kept_if_every_plugin_keeps_it() {
    let entries = [
        ("scripted", asking(&json!({ "names": ["x", "y"] }))),
        ("scripted", json!({})),
        ("scripted", asking(&json!({ "names": ["y", "z"] }))),
    ];
    let asked = Asked::new(&entries).await;
    let flags = asked.ask(&[named("x"), named("y"), named("z")]).unwrap();
    assert_eq!(flags, [false, true, false]);
    let told = [0, 1, 2].map(|place| asked.worker.counter(place, "objects"));
    assert_eq!(told, [3, 0, 2], "about objects that are left out nobody is asked again");
}

#[tokio::test]
async fn objects_without_a_flag_are_not_asked_about() {
    let asked = Asked::new(&[("scripted", asking(&json!({})))]).await;
    let questions = ObjectQuestions::of_edits(&asked.edits);
    let mut are_kept = [false, true, false];
    let objects = [named("x"), named("y"), named("z")];
    asked
        .plugins
        .ask_about_objects(&questions, &objects, &mut are_kept)
        .unwrap();
    assert_eq!(
        (are_kept, asked.worker.counter(0, "objects")),
        ([false, true, false], 1)
    );
    asked
        .plugins
        .ask_about_objects(&questions, &objects, &mut [false; 3])
        .unwrap();
    assert_eq!(asked.worker.counter(0, "object_calls"), 1);
}

#[tokio::test]
async fn calls_have_bounded_numbers_of_objects() {
    let asked = Asked::new(&[("scripted", asking(&json!({ "names": ["last"] })))]).await;
    let mut objects = vec![named("x"); 2 * MAX_BATCH_OBJECTS];
    assert_eq!(asked.ask(&objects).unwrap(), vec![false; objects.len()]);
    assert_eq!(asked.worker.counter(0, "object_calls"), 2);
    objects.push(named("last"));
    assert_eq!(asked.ask(&objects).unwrap().last(), Some(&true));
    assert_eq!(asked.worker.counter(0, "object_calls"), 2 + 3);
}

#[tokio::test]
async fn calls_have_bounded_bytes() {
    let asked = Asked::new(&[("scripted", asking(&json!({})))]).await;
    let third = annotated(MAX_BATCH_BYTES / 3);
    assert_eq!(asked.ask(&vec![third; 7]).unwrap(), [true; 7]);
    assert_eq!(asked.worker.counter(0, "object_calls"), 3, "of 3, 3 and 1 objects");
    let large = annotated(MAX_OBJECT_BYTES);
    assert_eq!(asked.ask(&[named("x"), large, named("y")]).unwrap(), [true; 3]);
    assert_eq!(asked.worker.counter(0, "object_calls"), 3 + 3);
}

#[tokio::test]
async fn calls_have_bounded_numbers_of_labels() {
    let asked = Asked::new(&[("scripted", asking(&json!({})))]).await;
    let objects = vec![labelled(MAX_BATCH_PAIRS / 4); 9];
    assert!(4 * bytes_of(&objects[0]) < MAX_BATCH_BYTES);
    assert_eq!(asked.ask(&objects).unwrap(), [true; 9]);
    assert_eq!(asked.worker.counter(0, "object_calls"), 3, "of 4, 4 and 1 objects");
    assert_eq!(asked.ask(&[labelled(MAX_BATCH_PAIRS + 1)]).unwrap(), [true]);
    assert_eq!(asked.worker.handle.metrics().current_counts().faults, 0);
}

#[tokio::test]
async fn calls_have_bounded_bytes_of_controllers() {
    let asked = Asked::new(&[("scripted", asking(&json!({})))]).await;
    let objects = vec![controlled(MAX_BATCH_BYTES / 2 - 1024); 5];
    assert_eq!(asked.ask(&objects).unwrap(), [true; 5]);
    assert_eq!(asked.worker.counter(0, "object_calls"), 3, "of 2, 2 and 1 objects");
    assert_eq!(asked.worker.handle.metrics().current_counts().faults, 0);
}

#[tokio::test]
async fn object_with_too_much_metadata_ends_the_response_and_is_no_fault() {
    for too_large in [
        annotated(MAX_OBJECT_BYTES + 1),
        labelled(MAX_OBJECT_BYTES / 32),
        controlled(MAX_OBJECT_BYTES),
    ] {
        let asked = Asked::new(&[("scripted", asking(&json!({})))]).await;
        assert_eq!(asked.ask(&[named("x"), too_large]).unwrap_err().code(), 502);
        assert_eq!(asked.worker.counter(0, "objects"), 1);
        assert_eq!(asked.worker.handle.metrics().current_counts().faults, 0);
    }
}

#[test]
fn plugin_with_little_memory_is_told_less() {
    let limits = |memory_bytes: usize| {
        let limits = CallLimits::of_memory(memory_bytes);
        (limits.object_bytes, limits.batch_bytes)
    };
    assert_eq!(limits(64 << 20), (MAX_OBJECT_BYTES, MAX_BATCH_BYTES));
    assert_eq!(limits(1 << 20), (128 << 10, 64 << 10));
    let object = labelled(1024);
    let question = ObjectQuestion::new(Vec::new());
    let mut are_kept = [true; 3];
    let flags = are_kept.iter_mut();
    let asked: Vec<AskedObject<'_>> = flags
        .map(|is_kept| (question.told_metadata_of(&object), is_kept))
        .collect();
    assert_eq!(CallLimits::of_memory(64 << 20).batch_length(&asked), Ok(3));
    assert_eq!(CallLimits::of_memory(1 << 20).batch_length(&asked), Ok(1));
    assert!(CallLimits::of_memory(256 << 10).batch_length(&asked).is_err());
}

#[tokio::test]
async fn failure_ends_the_response_and_counts_as_fault() {
    for on_objects in [
        json!({ "trapAt": "y" }),
        json!({ "moreFlags": 1 }),
        json!({ "leavesLastOut": true }),
    ] {
        let asked = Asked::new(&[("scripted", asking(&on_objects))]).await;
        let reply = asked.ask(&[named("x"), named("y")]).unwrap_err();
        assert_eq!(reply.code(), 502, "{on_objects}");
        assert_eq!(reply.failure, crate::plugin::verdict::Failure::PluginFailed);
        assert_eq!(asked.worker.handle.metrics().current_counts().faults, 1, "{on_objects}");
        assert_eq!(asked.plugins.describe(), "failed by scripted/0", "{on_objects}");
    }
}

#[tokio::test]
async fn quarantined_plugin_is_not_asked_and_ends_the_response() {
    let asked = Asked::new(&[("scripted", asking(&json!({ "trapAt": "bad" })))]).await;
    for _ in 0..5 {
        assert_eq!(asked.ask(&[named("bad")]).unwrap_err().code(), 502);
    }
    let reply = asked.ask(&[named("x")]).unwrap_err();
    assert_eq!(reply.code(), 502);
    assert_eq!(reply.failure, crate::plugin::verdict::Failure::PluginFailed);
    let message = &reply.status().message;
    assert!(message.contains("quarantined"), "{message}");
    assert_eq!(asked.worker.handle.metrics().current_counts().faults, 5);
}

#[tokio::test]
async fn repeated_verdict_asks_again_and_has_its_note() {
    let mut asked = Asked::new(&[("scripted", asking(&json!({ "note": 7 })))]).await;
    for calls in 1..4 {
        assert_eq!(asked.ask(&[named("x")]).unwrap(), [true]);
        assert_eq!(asked.worker.counter(0, "object_calls"), calls);
        asked.repeat().await;
    }
    assert_eq!(asked.worker.instances.repeated_verdicts(), 3);
}

#[test]
fn entry_is_asked_once_with_all_annotations_of_its_edits() {
    let (first, second) = (EntryId::next_id(), EntryId::next_id());
    let question = |entry: EntryId, keys: &[&str]| {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        let question = ObjectQuestion::new(keys).asked_of(entry.number());
        (entry, RequestEdit::AskAboutObjects(question))
    };
    let edits = [
        question(first, &["a"]),
        (first, RequestEdit::AndLabelSelector("a=b".into())),
        question(second, &[]),
        question(first, &["b"]),
    ];
    let questions = ObjectQuestions::of_edits(&edits);
    let entries: Vec<EntryId> = questions.0.iter().map(|(entry, _)| *entry).collect();
    assert_eq!(entries, [first, second]);
    let keys: Vec<&str> = questions.0[0].1.annotations().collect();
    assert_eq!(keys, ["a", "b"]);
    assert!(questions.fields().annotations);
    assert!(!ObjectQuestions::of_edits(&edits[2..3]).fields().annotations);
    assert!(ObjectQuestions::of_edits(&edits[1..2]).is_empty());
}
