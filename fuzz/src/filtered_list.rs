//! Filtered lists: the input is read by `filter_input`.

use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::objects::{
    CborListFilter, DecideObjects, FilterError, JsonListFilter, ObjectMetadata, ProtobufListFilter,
};
use serde_json::Value;

use crate::filter_input::{FilterInput, remove_dropped_fields};

/// Fields of a list's metadata that are wrong once objects are left out.
const REMOVED_FIELDS: [&str; 2] = ["remainingItemCount", "shardInfo"];

/// Decides by the text of an object's metadata.
type IsKept<'d> = dyn Fn(&str) -> bool + 'd;

#[derive(PartialEq)]
struct FilteredList {
    body: Vec<u8>,
    /// The metadata of the objects that were kept.
    kept: Vec<String>,
}

/// No panic; chunk boundaries do not matter; a list that is kept has all that it had, but for counts and dropped
/// fields; a filtered list has the kept objects and no others, and is the same when it is filtered again.
pub fn filtered_list(data: &[u8]) {
    let Some(input) = FilterInput::read(data) else {
        return;
    };
    let Some(whole) = filter_in_any_chunks(&input, &keep_all) else {
        return;
    };
    check_again(&input, &whole);
    if input.encoding == WatchEncoding::Json {
        check_kept_json(input.body, &whole.body);
    }
    let keep_none = |_: &str| false;
    let keep_some = |object: &str| input.draw(object) % 2 == 0;
    let others: [&IsKept<'_>; 2] = [&keep_none, &keep_some];
    for is_kept in others {
        let filtered = filter_in_any_chunks(&input, is_kept).expect("a list is read whatever is kept");
        check_again(&input, &filtered);
    }
    check_dropped_fields(&input.dropping_fields(true), &whole, &keep_some);
}

fn check_dropped_fields(input: &FilterInput<'_>, whole: &FilteredList, keep_some: &IsKept<'_>) {
    let Some(dropped) = filter_in_any_chunks(input, &keep_all) else {
        return input.check_dropping_failed();
    };
    assert_eq!(dropped.kept.len(), whole.kept.len());
    check_again(input, &dropped);
    check_again(&input.dropping_fields(false), &read_whole(input, &dropped));
    if input.encoding == WatchEncoding::Json
        && let Ok(mut expected) = serde_json::from_slice::<Value>(&whole.body)
    {
        for_each_object(&mut expected, remove_dropped_fields);
        let value: Value = serde_json::from_slice(&dropped.body).expect("a list without fields is JSON");
        assert_eq!(value, expected);
    }
    let some = filter_in_any_chunks(input, keep_some).expect("a list is read whatever is kept");
    check_again(input, &some);
}

/// Reads a list without its fields with a filter that keeps all objects, and asserts that it passes byte for byte.
fn read_whole(input: &FilterInput<'_>, list: &FilteredList) -> FilteredList {
    let input = input.dropping_fields(false).with_body(&list.body);
    let read = filter_list(&input, &[input.body], &keep_all).expect("a list without fields is read");
    assert!(read.body == list.body, "a list without fields passes byte for byte");
    read
}

/// Visits the objects of a list, and of the rows of a table.
fn for_each_object(list: &mut Value, visit: impl Fn(&mut Value)) {
    if let Some(Value::Array(items)) = list.get_mut("items") {
        items.iter_mut().for_each(&visit);
    }
    if let Some(Value::Array(rows)) = list.get_mut("rows") {
        rows.iter_mut().filter_map(|row| row.get_mut("object")).for_each(&visit);
    }
}

fn keep_all(_: &str) -> bool {
    true
}

/// `None` if the body can't be filtered.
fn filter_in_any_chunks(input: &FilterInput<'_>, is_kept: &IsKept<'_>) -> Option<FilteredList> {
    let whole = filter_list(input, &[input.body], is_kept).ok();
    for chunks in input.chunkings() {
        let cut = filter_list(input, &chunks, is_kept).ok();
        assert!(cut == whole, "{} chunks: another result", chunks.len());
    }
    whole
}

fn check_again(input: &FilterInput<'_>, filtered: &FilteredList) {
    let again = input.with_body(&filtered.body);
    let again = filter_list(&again, &[again.body], &keep_all).expect("a filtered list is read");
    assert_eq!(again.kept, filtered.kept);
    assert!(again.body == filtered.body, "a second time changes something");
    if input.encoding == WatchEncoding::Protobuf {
        assert_eq!(filtered.body.len(), input.body.len());
    }
}

fn check_kept_json(body: &[u8], filtered: &[u8]) {
    let may_have_counts = REMOVED_FIELDS.iter().any(|name| crate::contains_text(body, name));
    if !may_have_counts && !body.contains(&b'\\') {
        assert!(filtered == body, "a list that is kept passes byte for byte");
    }
    // Filters do not check numbers, and read more levels.
    let Ok(mut expected) = serde_json::from_slice::<Value>(body) else {
        return;
    };
    if let Some(Value::Object(metadata)) = expected.get_mut("metadata") {
        metadata.retain(|name, _| !REMOVED_FIELDS.contains(&name.as_str()));
    }
    let value: Value = serde_json::from_slice(filtered).expect("a filtered list is JSON");
    assert_eq!(value, expected);
}

fn filter_list(input: &FilterInput<'_>, chunks: &[&[u8]], is_kept: &IsKept<'_>) -> Result<FilteredList, FilterError> {
    let mut kept = Vec::new();
    let mut decide = |objects: &[ObjectMetadata<'_>], flags: &mut [bool]| {
        assert_eq!(objects.len(), flags.len());
        for (object, flag) in objects.iter().zip(flags) {
            assert!(*flag, "an object is kept unless it is decided otherwise");
            let object = input.object_text(object);
            *flag = is_kept(&object);
            if *flag {
                kept.push(object);
            }
        }
    };
    let body = push_list(input, chunks, &mut decide)?;
    Ok(FilteredList { body, kept })
}

fn push_list(
    input: &FilterInput<'_>,
    chunks: &[&[u8]],
    decide: &mut DecideObjects<'_>,
) -> Result<Vec<u8>, FilterError> {
    let mut out = Vec::new();
    match input.encoding {
        WatchEncoding::Json => {
            let mut filter = JsonListFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.finish()?;
        }
        WatchEncoding::Protobuf => {
            let mut filter = ProtobufListFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.finish()?;
        }
        WatchEncoding::Cbor => {
            let mut filter = CborListFilter::new(input.fields()).with_dropped_fields(input.dropped_fields());
            for chunk in chunks {
                filter.push(chunk, &mut out, decide)?;
            }
            filter.finish()?;
        }
    }
    Ok(out)
}
