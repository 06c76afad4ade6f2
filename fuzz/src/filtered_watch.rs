//! Filtered watches: the input is read by `filter_input`.

use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::objects::{
    CborWatchFilter, DecideEvent, EventDecision, EventType, FilterError, JsonWatchFilter, ObjectMetadata,
    ProtobufWatchFilter,
};

use serde_json::Value;

use crate::filter_input::{FilterInput, remove_dropped_fields};

/// Decides by the text of an object's metadata.
type Decision<'d> = dyn Fn(&str) -> EventDecision + 'd;

#[derive(PartialEq)]
struct FilteredWatch {
    body: Vec<u8>,
    is_mid_event: bool,
    kept: Vec<KeptEvent>,
}

#[derive(PartialEq)]
struct KeptEvent {
    /// The type that the client gets, and the metadata of the object.
    text: String,
    /// Whether the event may be left out: tables have no tombstones.
    is_optional: bool,
}

impl KeptEvent {
    fn new(event_type: EventType, object: &str) -> Self {
        Self {
            text: format!("{event_type:?} {object}"),
            is_optional: false,
        }
    }

    /// The tombstone of an object; none without a name.
    fn tombstone(input: &FilterInput<'_>, object: &ObjectMetadata<'_>) -> Option<Self> {
        let known = ObjectMetadata {
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            resource_version: object.resource_version.clone(),
            ..ObjectMetadata::default()
        };
        let event = Self {
            is_optional: input.encoding != WatchEncoding::Protobuf,
            ..Self::new(EventType::Deleted, &format!("{known:?}"))
        };
        (!known.name.is_empty()).then_some(event)
    }
}

/// No panic; chunk boundaries do not matter; a watch whose events are kept passes byte for byte, but for dropped
/// fields; a filtered watch has the kept events with their new types, tombstones, bookmarks and errors, and is the same
/// when it is filtered again.
pub fn filtered_watch(data: &[u8]) {
    let Some(input) = FilterInput::read(data) else {
        return;
    };
    if let Some(whole) = filter_in_any_chunks(&input, &keep_all) {
        assert!(input.body.starts_with(&whole.body), "a kept event has changed");
        assert!(
            whole.is_mid_event || whole.body == input.body,
            "a kept event is missing"
        );
        check_again(&input, &whole);
        check_dropped_fields(&input.dropping_fields(true), &whole);
    }
    let drop_all = |_: &str| EventDecision::Drop;
    let decide_by_chance = |object: &str| match input.draw(object) % 7 {
        0 => EventDecision::Keep,
        1 => EventDecision::KeepAs(EventType::Added),
        2 => EventDecision::KeepAs(EventType::Modified),
        3 => EventDecision::KeepAs(EventType::Deleted),
        4 => EventDecision::Drop,
        5 => EventDecision::Tombstone,
        _ => EventDecision::Bookmark,
    };
    let others: [&Decision<'_>; 2] = [&drop_all, &decide_by_chance];
    for input in [input, input.dropping_fields(true)] {
        for decision in others {
            if let Some(filtered) = filter_in_any_chunks(&input, decision) {
                check_again(&input, &filtered);
            }
        }
    }
}

fn check_dropped_fields(input: &FilterInput<'_>, whole: &FilteredWatch) {
    let Some(dropped) = filter_in_any_chunks(input, &keep_all) else {
        return input.check_dropping_failed();
    };
    assert_eq!(dropped.kept.len(), whole.kept.len());
    assert_eq!(dropped.is_mid_event, whole.is_mid_event);
    check_again(input, &dropped);
    let again = input.dropping_fields(false).with_body(&dropped.body);
    let again = filter_watch(&again, &[again.body], &keep_all).expect("a watch without fields is read");
    assert!(
        again.body == dropped.body,
        "a watch without fields passes byte for byte"
    );
    if input.encoding == WatchEncoding::Json
        && let Some(mut expected) = json_events(&whole.body)
    {
        expected.iter_mut().for_each(remove_fields_of_event);
        let events = json_events(&dropped.body).expect("a watch without fields is JSON");
        assert_eq!(events, expected);
    }
}

/// The events of a watch; `None` if one is none for this decoder, which checks more and reads fewer levels.
fn json_events(body: &[u8]) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_slice(body)
        .into_iter()
        .collect::<Result<_, _>>()
        .ok()
}

fn remove_fields_of_event(event: &mut Value) {
    let is_decided = event["type"]
        .as_str()
        .is_some_and(|text| EventType::parse(text).is_some());
    let object = &mut event["object"];
    let is_table = object["kind"] == "Table"
        && object["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with("meta.k8s.io/"));
    if is_decided && !is_table {
        remove_dropped_fields(object);
    } else if is_decided && let Some(Value::Array(rows)) = object.get_mut("rows") {
        let objects = rows.iter_mut().filter_map(|row| row.get_mut("object"));
        objects.for_each(remove_dropped_fields);
    }
}

fn keep_all(_: &str) -> EventDecision {
    EventDecision::Keep
}

/// `None` if the body can't be filtered.
fn filter_in_any_chunks(input: &FilterInput<'_>, decision: &Decision<'_>) -> Option<FilteredWatch> {
    let whole = filter_watch(input, &[input.body], decision).ok();
    for chunks in input.chunkings() {
        let cut = filter_watch(input, &chunks, decision).ok();
        assert!(cut == whole, "{} chunks: another result", chunks.len());
    }
    whole
}

fn check_again(input: &FilterInput<'_>, filtered: &FilteredWatch) {
    let again = input.with_body(&filtered.body);
    let again = filter_watch(&again, &[again.body], &keep_all).expect("a filtered watch is read");
    assert!(
        are_kept_events(&again.kept, &filtered.kept),
        "other events pass than those that were kept"
    );
    assert!(again.body == filtered.body, "a second time changes something");
    assert!(!again.is_mid_event, "only whole events pass");
}

/// Whether these are the kept events, with or without those that may be left out.
fn are_kept_events(events: &[KeptEvent], kept: &[KeptEvent]) -> bool {
    // Whether a number of the events can be the kept events so far.
    let mut is_reached = vec![false; events.len() + 1];
    is_reached[0] = true;
    for expected in kept {
        for count in (0..=events.len()).rev() {
            let is_matched = count > 0 && is_reached[count - 1] && events[count - 1].text == expected.text;
            is_reached[count] = is_matched || is_reached[count] && expected.is_optional;
        }
    }
    is_reached[events.len()]
}

fn filter_watch(
    input: &FilterInput<'_>,
    chunks: &[&[u8]],
    decision: &Decision<'_>,
) -> Result<FilteredWatch, FilterError> {
    let mut kept = Vec::new();
    let mut decide = |event_type: EventType, object: &ObjectMetadata<'_>| {
        let text = input.object_text(object);
        let decision = decision(&text);
        match decision {
            EventDecision::Keep => kept.push(KeptEvent::new(event_type, &text)),
            EventDecision::KeepAs(new_type) => kept.push(KeptEvent::new(new_type, &text)),
            EventDecision::Tombstone => kept.extend(KeptEvent::tombstone(input, object)),
            EventDecision::Drop | EventDecision::Bookmark => {}
        }
        decision
    };
    let (body, is_mid_event) = push_watch(input, chunks, &mut decide)?;
    Ok(FilteredWatch {
        body,
        is_mid_event,
        kept,
    })
}

/// Returns the events that pass, and whether the watch ends within an event.
fn push_watch(
    input: &FilterInput<'_>,
    chunks: &[&[u8]],
    decide: &mut DecideEvent<'_>,
) -> Result<(Vec<u8>, bool), FilterError> {
    let mut out = Vec::new();
    let is_mid_event = match input.encoding {
        WatchEncoding::Json => {
            let mut filter = JsonWatchFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.is_mid_event()
        }
        WatchEncoding::Protobuf => {
            let mut filter = ProtobufWatchFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.is_mid_event()
        }
        WatchEncoding::Cbor => {
            let mut filter = CborWatchFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.is_mid_event()
        }
    };
    Ok((out, is_mid_event))
}
