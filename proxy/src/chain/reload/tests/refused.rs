//! Invalid input of every kind is refused with a message that says what to do, while the last good chain stays in force.

use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Digest, plugin_file};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;

use super::super::super::tests::{guest_bytes, plugin_file_of};
use super::*;

/// Files that are published over a good chain of generation 5, and the expected refusal.
struct Case {
    name: &'static str,
    files: Vec<(String, Vec<u8>)>,
    reason: &'static str,
    message: &'static str,
}

fn case(name: &'static str, files: Vec<(String, Vec<u8>)>, reason: &'static str, message: &'static str) -> Case {
    Case {
        name,
        files,
        reason,
        message,
    }
}

fn valid_files() -> Vec<(String, Vec<u8>)> {
    files_of(
        document(5, &[entry_value("good", scripted_guest())]),
        &[scripted_guest()],
    )
}

/// Files of a higher generation with one more entry, which runs this plugin out of this file.
fn files_with_plugin(named: &[u8], file: (String, Vec<u8>)) -> Vec<(String, Vec<u8>)> {
    let entries = [entry_value("good", scripted_guest()), entry_value("bad", named)];
    let mut files = files_of(document(6, &entries), &[scripted_guest()]);
    files.push(file);
    files
}

fn raw_document(document: impl Into<Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    files_of(document.into(), &[scripted_guest()])
}

/// A zstd file with the name for `named` and this content.
fn packed_file(named: &[u8], content: Vec<u8>) -> (String, Vec<u8>) {
    (
        plugin_file::file_name(&Digest::of(named), plugin_file::Encoding::Zstd),
        content,
    )
}

/// Checks that each case leaves the chain of generation 5 in force.
async fn check(cases: Vec<Case>) {
    let mut fixture = Fixture::new();
    fixture.publish(valid_files()).await;
    let in_force = fixture.current();
    for Case {
        name,
        files,
        reason,
        message,
    } in cases
    {
        let counter = format!("chain_refused_total{{reason=\"{reason}\"}} ");
        let count = |metrics: &str| -> u64 {
            metrics
                .lines()
                .find_map(|line| line.strip_prefix(&counter))
                .map_or(0, |number| number.parse().unwrap())
        };
        let before = count(&fixture.metrics());
        fixture.publish(files).await;
        assert!(
            Arc::ptr_eq(&in_force, &fixture.current()),
            "{name}: the last good chain is gone"
        );
        let refused = fixture
            .updater
            .handle
            .status()
            .refused
            .unwrap_or_else(|| panic!("{name}: was not refused"));
        assert_eq!(refused.reason, reason, "{name}: {}", refused.message);
        assert!(refused.message.contains(message), "{name}: {}", refused.message);
        assert_eq!(count(&fixture.metrics()), before + 1, "{name}: is not counted");

        fixture.publish(valid_files()).await;
        assert_eq!(
            fixture.updater.handle.status().refused,
            None,
            "{name}: is still reported after it was corrected"
        );
    }
}

#[tokio::test]
async fn invalid_documents_are_refused() {
    let generation = |n| {
        document(
            n,
            &[
                entry_value("good", scripted_guest()),
                entry_value("other", scripted_guest()),
            ],
        )
    };
    let unknown_field = document(
        6,
        &[with_field(entry_value("a", scripted_guest()), "timeout", json!(10))],
    );
    let other = String::from_utf8(generation(6)).unwrap();
    let other = other.replace("\"demo\"", "\"elsewhere\"");
    let crowd: Vec<Value> = (0..65)
        .map(|n| entry_value(&format!("e{n}"), scripted_guest()))
        .collect();
    check(vec![
        case("missing", vec![], "missing", "there is no chain.yaml in"),
        case("empty", raw_document(""), "document", "is empty; write apiVersion"),
        case(
            "cut off",
            raw_document(&generation(6)[..50]),
            "document",
            "not valid JSON",
        ),
        case("binary", raw_document(scripted_guest()), "document", "not UTF-8"),
        case(
            "unknown field",
            raw_document(unknown_field),
            "document",
            "entries[0].\"timeout\": is not a field here; known are name,",
        ),
        case(
            "50 MiB",
            raw_document(vec![b' '; 50 << 20]),
            "too_large",
            "chain.yaml is larger than the 1048576 bytes",
        ),
        case(
            "older",
            raw_document(generation(4)),
            "generation",
            "generation 4 is older than generation 5",
        ),
        case(
            "same generation",
            raw_document(generation(5)),
            "generation",
            "each change needs a higher generation",
        ),
        case(
            "other namespace",
            raw_document(other),
            "namespace",
            "the chain is for namespace elsewhere, but this pod runs in demo",
        ),
        case(
            "crowd",
            raw_document(document(6, &crowd)),
            "too_many_entries",
            "65 entries select this pod, at most 64 may",
        ),
    ])
    .await;
}

#[tokio::test]
async fn invalid_plugin_files_are_refused() {
    let (good, other) = (guest_bytes("recorder"), guest_bytes("slow"));
    check(vec![
        case(
            "unknown plugin",
            files_with_plugin(good, plugin_file_of(other, other)),
            "plugin_missing",
            "add the file, or check that all of",
        ),
        case(
            "wrong digest",
            files_with_plugin(good, plugin_file_of(good, other)),
            "digest",
            "the file is damaged, cut off or misnamed",
        ),
        case(
            "cut off",
            files_with_plugin(good, plugin_file_of(good, &good[..1000])),
            "digest",
            "as entry bad asks",
        ),
        case(
            "empty",
            files_with_plugin(good, plugin_file_of(good, b"")),
            "digest",
            "write it again",
        ),
        case(
            "50 MiB",
            files_with_plugin(good, plugin_file_of(good, &vec![0; 50 << 20])),
            "too_large",
            "than the 16777216 bytes",
        ),
    ])
    .await;
}

#[tokio::test]
async fn invalid_packed_plugin_files_are_refused() {
    let (good, other) = (guest_bytes("recorder"), guest_bytes("slow"));
    let zst = compress_to_vec(good, CompressionLevel::Fastest);
    let bomb = compress_to_vec(&*vec![0; 50 << 20], CompressionLevel::Fastest);
    check(vec![
        case(
            "packed: cut off",
            files_with_plugin(good, packed_file(good, zst[..zst.len() / 2].into())),
            "packed",
            "not a whole zstd stream",
        ),
        case(
            "packed: empty",
            files_with_plugin(good, packed_file(good, vec![])),
            "packed",
            "pack it again with zstd",
        ),
        case(
            "packed: other content",
            files_with_plugin(other, packed_file(other, zst)),
            "digest",
            "(unpacked)",
        ),
        case(
            "packed: bomb",
            files_with_plugin(good, packed_file(good, bomb)),
            "too_large",
            "than the 16777216 bytes",
        ),
    ])
    .await;
}

#[tokio::test]
async fn invalid_plugins_are_refused() {
    let module: &[u8] = b"\0asm\x01\0\0\0";
    let more = |bytes: &[u8]| files_with_plugin(bytes, plugin_file_of(bytes, bytes));
    let because = json!({"because": "limits must not be empty; write at least one"});
    let refusing = with_field(entry_value("bad", guest_bytes("refuse_settings")), "settings", because);
    check(vec![
        case("no bytes", more(b""), "size", "the plugin is empty"),
        case("no wasm", more(b"#!/bin/sh"), "format", "is not WebAssembly"),
        case("core module", more(module), "format", "wasm32-wasip2"),
        case(
            "other world",
            more(guest_bytes("wrong_world")),
            "world",
            "is not a ctrlmesh plugin",
        ),
        case(
            "newer world",
            more(guest_bytes("newer_world")),
            "version",
            "update the sidecar",
        ),
        case(
            "refused settings",
            files_of(document(6, &[refusing]), &[guest_bytes("refuse_settings")]),
            "settings",
            "limits must not be empty; write at least one",
        ),
    ])
    .await;
}

#[tokio::test]
async fn packed_plugin_is_accepted() {
    let mut fixture = Fixture::new();
    let file = packed_file(
        scripted_guest(),
        compress_to_vec(scripted_guest(), CompressionLevel::Fastest),
    );
    let chain = (
        files::CHAIN.to_owned(),
        document(1, &[entry_value("a", scripted_guest())]),
    );
    fixture.publish(vec![chain, file]).await;
    assert_eq!(fixture.names(), ["a"]);
}

#[tokio::test]
async fn signatures_are_required_once_key_is_set() {
    let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let mut fixture = Fixture::with_location(|location| location.public_keys = Some(key.public_key().into()));
    let signed = |generation, key: &SigningKey| {
        let document = document(generation, &[]);
        let signature = (files::CHAIN_SIGNATURE.to_owned(), key.sign(&document).into_bytes());
        vec![(files::CHAIN.to_owned(), document), signature]
    };
    fixture.publish(signed(1, &key)).await;
    assert_eq!(fixture.current().generation, 1);

    let mut changed = signed(2, &key);
    changed[0].1 = document(3, &[]);
    let mut cut = signed(2, &key);
    cut[1].1.truncate(40);
    for (files, message) in [
        (
            raw_document(document(2, &[])),
            "the chain is not signed; let the manager write it",
        ),
        (signed(2, &other), "signed with another key"),
        (changed, "changed after signing"),
        (cut, "malformed"),
    ] {
        fixture.publish(files).await;
        let refused = fixture.updater.handle.status().refused.unwrap();
        assert_eq!((refused.reason.as_str(), refused.generation), ("signature", None));
        assert!(refused.message.contains(message), "{}", refused.message);
        assert_eq!(fixture.current().generation, 1);
    }
    fixture.publish(signed(2, &key)).await;
    assert_eq!(fixture.current().generation, 2);
}

#[tokio::test]
async fn unsigned_document_is_refused_before_parsing() {
    let key = SigningKey::generate().unwrap();
    let mut fixture = Fixture::with_location(|location| location.public_keys = Some(key.public_key().into()));
    fixture.publish(raw_document("{ nonsense")).await;
    assert_eq!(fixture.updater.handle.status().refused.unwrap().reason, "signature");
}

#[tokio::test]
async fn malformed_and_missing_labels_are_refused() {
    let mut labels = Mount::new();
    let path = labels.path().join(files::LABELS);
    let mut fixture = Fixture::with_location(|location| *location = location_with_labels(&location.directory, path));
    fixture.publish(valid_files()).await;
    let refused = fixture.updater.handle.status().refused.unwrap();
    assert_eq!(refused.reason, "labels");
    assert!(
        refused.message.contains("it is not there; mount metadata.labels"),
        "{}",
        refused.message
    );
    labels.publish([(files::LABELS, b"shard=0\n".to_vec())]);
    fixture.updater.update().await;
    let refused = fixture.updater.handle.status().refused.unwrap();
    assert!(
        refused.message.contains("line 1 is not key=\"value\""),
        "{}",
        refused.message
    );
    assert!(!fixture.updater.handle.is_ready());
}

#[tokio::test]
async fn refused_chain_is_tried_again_only_after_a_change() {
    let mut fixture = Fixture::new();
    let chain = document(1, &[entry_value("a", scripted_guest())]);
    fixture.publish(files_of(chain.clone(), &[])).await;
    assert_eq!(fixture.updater.handle.status().counts.refused, 1);
    assert_eq!(fixture.updater.update().await, Outcome::Settled);
    assert_eq!(fixture.updater.update().await, Outcome::Settled);
    assert_eq!(fixture.updater.handle.status().counts.refused, 1, "it was tried again");
    fixture.publish(files_of(chain, &[scripted_guest()])).await;
    assert_eq!(fixture.current().generation, 1);
    assert_eq!(fixture.updater.handle.status().refused, None);
}

#[tokio::test]
async fn directory_in_place_of_document_is_refused() {
    let mut fixture = Fixture::new();
    std::fs::create_dir(fixture.mount.path().join(files::CHAIN)).unwrap();
    assert_eq!(fixture.updater.update().await, Outcome::Transient);
    let refused = fixture.updater.handle.status().refused.unwrap();
    assert_eq!(refused.reason, "io");
    assert!(
        refused.message.contains("it is not a regular file"),
        "{}",
        refused.message
    );
}
