//! Compares filtered lists and watches with `tests/golden/filtered_lists.jsonl`: in it, upstream's own code has removed
//! the same objects. `tests/golden/README.md` describes how the file is made.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken golden file fails the test")]

mod filtered_lists {
    pub(crate) mod cbor;
}

use std::path::Path;

use ctrlmesh_wire::objects::{
    CborListFilter, CborWatchFilter, DroppedFields, EventDecision, EventType, FilterError, JsonListFilter,
    JsonWatchFilter, MetadataFields, ObjectMetadata, ProtobufListFilter, ProtobufWatchFilter,
};
use ctrlmesh_wire::protobuf::{Field, MAGIC, fields};
use filtered_lists::cbor::cbor_values;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

const CHUNK_SIZES: [usize; 3] = [1, 7, 4096];

/// The name decides here, so each reader finds the name, whether it stops there or goes on.
const FIELDS: [MetadataFields; 2] = [
    MetadataFields {
        namespace: false,
        name: true,
        uid: false,
        resource_version: false,
        labels: false,
        annotations: false,
        controller: false,
    },
    MetadataFields::ALL,
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilteredBody {
    name: String,
    encoding: String,
    kind: String,
    #[serde(deserialize_with = "decode_base64")]
    body: Vec<u8>,
    keep: Vec<String>,
    #[serde(default)]
    drop: Vec<String>,
    #[serde(default, deserialize_with = "decode_base64")]
    filtered: Vec<u8>,
    #[serde(default)]
    items: Vec<FilteredItem>,
    #[serde(default)]
    dropped_uids: Vec<String>,
}

impl FilteredBody {
    fn dropped_fields(&self) -> DroppedFields {
        DroppedFields::parse(self.drop.iter().map(String::as_str)).unwrap()
    }
}

#[derive(Deserialize)]
struct FilteredItem {
    name: String,
    #[serde(deserialize_with = "decode_base64")]
    bytes: Vec<u8>,
}

fn decode_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut bit_count) = (0_u32, 0_u32);
    for digit in text.trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(D::Error::custom("a digit that is not base64")),
        };
        bits = (bits << 6) | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.extend((bits >> bit_count).to_be_bytes().last());
        }
    }
    Ok(bytes)
}

#[test]
fn filtered_json_agrees_with_upstream() {
    check_bodies("json", 60);
}

#[test]
fn filtered_protobuf_agrees_with_upstream() {
    check_bodies("protobuf", 30);
}

#[test]
fn filtered_cbor_agrees_with_upstream() {
    check_bodies("cbor", 40);
}

/// Filters each body of an encoding in chunks of each size. Fails with all differences at once.
fn check_bodies(encoding: &str, at_least: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/filtered_lists.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let bodies: Vec<FilteredBody> = text
        .lines()
        .map(|line| serde_json::from_str::<FilteredBody>(line).unwrap_or_else(|error| panic!("{error}: {line:.600}")))
        .filter(|body| body.encoding == encoding)
        .collect();
    assert!(bodies.len() >= at_least, "only {} bodies in {encoding}", bodies.len());
    assert!(
        bodies.iter().any(|body| !body.drop.is_empty()),
        "no body in {encoding} has fields that are dropped"
    );
    let mut differences = Vec::new();
    for body in &bodies {
        for chunk_size in CHUNK_SIZES {
            for fields in FIELDS {
                if let Err(difference) = check_body(body, fields, chunk_size) {
                    differences.push(format!("{}, chunks of {chunk_size}: {difference:.1500}", body.name));
                }
            }
        }
    }
    let shown = differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{encoding}: {} differences:\n{shown}",
        differences.len()
    );
}

fn check_body(body: &FilteredBody, fields: MetadataFields, chunk_size: usize) -> Result<(), String> {
    let ours = match body.kind.as_str() {
        "list" => filter_list(body, fields, chunk_size),
        "watch" => filter_watch(body, fields, chunk_size),
        kind => panic!("a body of kind {kind}"),
    };
    let (ours, theirs) = (ours.map_err(|error| error.to_string())?, &body.filtered);
    match (body.encoding.as_str(), body.kind.as_str()) {
        ("json", _) => expect_equal("JSON", &json_values(&ours), &json_values(theirs))?,
        ("protobuf", "list") => expect_equal("protobuf", &read_protobuf_list(&ours), &read_protobuf_list(theirs))?,
        // Events that are kept are the same bytes but for dropped fields, and upstream encodes them so again.
        ("protobuf", _) => expect_equal(
            "events",
            &ours.escape_ascii().to_string(),
            &theirs.escape_ascii().to_string(),
        )?,
        _ => {
            expect_equal("CBOR", &cbor_values(&ours), &cbor_values(theirs))?;
            // Decoders recognize CBOR by the first tag.
            expect_equal("first tag", &ours.first_chunk::<3>(), &theirs.first_chunk::<3>())?;
        }
    }
    for item in &body.items {
        if !contains(&ours, &item.bytes) {
            return Err(format!("{:?} is not the same bytes", item.name));
        }
    }
    match body.dropped_uids.iter().find(|uid| contains(&ours, uid.as_bytes())) {
        Some(uid) => Err(format!("{uid} has passed")),
        None => Ok(()),
    }
}

fn filter_list(body: &FilteredBody, fields: MetadataFields, chunk_size: usize) -> Result<Vec<u8>, FilterError> {
    let mut decide = |objects: &[ObjectMetadata<'_>], flags: &mut [bool]| {
        assert_eq!(objects.len(), flags.len(), "each object has a flag");
        for (object, is_kept) in objects.iter().zip(flags) {
            *is_kept = body.keep.iter().any(|name| *name == object.name);
        }
    };
    let mut out = Vec::new();
    match body.encoding.as_str() {
        "json" => {
            let mut filter = JsonListFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.finish()?;
        }
        "protobuf" => {
            let mut filter = ProtobufListFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.finish()?;
        }
        "cbor" => {
            let mut filter = CborListFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.finish()?;
        }
        encoding => panic!("a list in {encoding}"),
    }
    Ok(out)
}

fn filter_watch(body: &FilteredBody, fields: MetadataFields, chunk_size: usize) -> Result<Vec<u8>, FilterError> {
    let mut decide = |_: EventType, object: &ObjectMetadata<'_>| {
        if body.keep.iter().any(|name| *name == object.name) {
            EventDecision::Keep
        } else {
            EventDecision::Drop
        }
    };
    let mut out = Vec::new();
    let is_mid_event = match body.encoding.as_str() {
        "json" => {
            let mut filter = JsonWatchFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.is_mid_event()
        }
        "protobuf" => {
            let mut filter = ProtobufWatchFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.is_mid_event()
        }
        "cbor" => {
            let mut filter = CborWatchFilter::new(fields).with_dropped_fields(body.dropped_fields());
            for chunk in body.body.chunks(chunk_size) {
                filter.push(chunk, &mut out, &mut decide)?;
            }
            filter.is_mid_event()
        }
        encoding => panic!("a watch in {encoding}"),
    };
    if is_mid_event {
        return Err(FilterError::Unfinished);
    }
    Ok(out)
}

fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        Err(format!(
            "{what} differs\n    ours:   {ours:.600}\n    theirs: {theirs:.600}"
        ))
    }
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

/// The values of a body: one in a list, and one for each event in a watch.
fn json_values(body: &[u8]) -> Vec<Value> {
    serde_json::Deserializer::from_slice(body)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{error}: {}", body.escape_ascii()))
}

/// The number of the field that a filter may fill a protobuf body with; clients skip it, because no type has it.
const FILLER_FIELD: u32 = 15;

/// `ListMeta.shardInfo`, which is not true of a filtered list.
const SHARD_INFO_FIELD: u32 = 5;

/// A list as its decoder sees it. Another kind of object has all its fields in `other_fields`.
#[derive(PartialEq)]
struct ProtobufList<'a> {
    envelope: Vec<&'a [u8]>,
    list_meta: Vec<&'a [u8]>,
    items: Vec<&'a [u8]>,
    other_fields: Vec<&'a [u8]>,
}

impl std::fmt::Debug for ProtobufList<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |fields: &[&[u8]]| fields.concat().escape_ascii().to_string();
        formatter
            .debug_struct("ProtobufList")
            .field("envelope", &shown(&self.envelope))
            .field("list_meta", &shown(&self.list_meta))
            .field("item_count", &self.items.len())
            .field("items", &shown(&self.items))
            .field("other_fields", &shown(&self.other_fields))
            .finish()
    }
}

/// Reads `runtime.Unknown` with a list in its field 2. The list has `ListMeta` in field 1, which decoders merge if it
/// occurs twice, and items in field 2.
fn read_protobuf_list(body: &[u8]) -> ProtobufList<'_> {
    let (raw, envelope): (Vec<_>, Vec<_>) = read_fields(body.strip_prefix(MAGIC).unwrap())
        .into_iter()
        .partition(|field| field.number == 2);
    let [raw] = &*raw else {
        panic!("{} objects in one body", raw.len());
    };
    let mut list = ProtobufList {
        envelope: envelope.iter().map(|field| field.whole).collect(),
        list_meta: Vec::new(),
        items: Vec::new(),
        other_fields: Vec::new(),
    };
    let is_list = envelope
        .iter()
        .filter(|field| field.number == 1)
        .flat_map(|type_meta| read_fields(type_meta.payload.unwrap()))
        .any(|field| field.number == 2 && field.payload.unwrap().ends_with(b"List"));
    for field in read_fields(raw.payload.unwrap()) {
        match field.number {
            1 if is_list => list.list_meta.extend(
                read_fields(field.payload.unwrap())
                    .iter()
                    .filter(|field| ![SHARD_INFO_FIELD, FILLER_FIELD].contains(&field.number))
                    .map(|field| field.whole),
            ),
            2 if is_list => list.items.push(field.payload.unwrap()),
            FILLER_FIELD if is_list => {}
            _ => list.other_fields.push(field.whole),
        }
    }
    list
}

fn read_fields(message: &[u8]) -> Vec<Field<'_>> {
    fields(message).collect::<Result<_, _>>().unwrap()
}
