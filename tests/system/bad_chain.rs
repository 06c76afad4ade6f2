//! A chain that is wrong in any way is refused with a reason; the last good one goes on.

use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_tests::{EntrySpec, Stand, guest, shard};
use serde_json::json;

/// The last good chain still rules, and status, metric and log say what is wrong.
async fn is_refused(stand: &Stand, what: &str, says: &str, before: u64) -> anyhow::Result<()> {
    let status = stand
        .sidecar
        .wait_status(what, |status| status.counts.refused > before)
        .await?;
    let refused = status.refused.unwrap();
    assert!(refused.message.contains(says), "{what}: {}", refused.message);
    assert_eq!(status.chain.generation, 1, "{what}");
    assert_eq!(
        stand.client().get("/api/v1/configmaps").await?.names(),
        ["a0"],
        "{what}"
    );
    let series = format!(r#"ctrlmesh_chain_refused_total{{reason="{}"}}"#, refused.reason);
    assert!(stand.sidecar.metric(&series).await? >= 1.0, "{what}: {series}");
    assert!(stand.sidecar.log().contains("WARN"), "{what}");
    Ok(())
}

async fn stand() -> anyhow::Result<Stand> {
    let stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    Ok(stand)
}

/// What is wrong with an entry, the entry, and words of the refusal.
fn bad_entries() -> Vec<(&'static str, EntrySpec, &'static str)> {
    let core_module = b"\0asm\x01\0\0\0";
    let whole = ctrlmesh_plugins_builtin::SHARD_SELECTOR;
    let entry = |bytes: &[u8]| EntrySpec::new("x/test", bytes);
    let big = vec![0; 50 << 20];
    vec![
        (
            "unknown field",
            shard("a").set("unknownField", 1.into()),
            "unknownField",
        ),
        (
            "unknown plugin",
            guest("trap", json!({ "in": "on-request", "how": "panic" })).without_bytes(),
            "sha256:",
        ),
        (
            "settings refused",
            shard("a").settings(json!({ "limits": 7 })),
            "limits",
        ),
        (
            "settings refused by the guest",
            guest("refuse_settings", json!({ "because": "not today" })),
            "not today",
        ),
        ("another world", guest("wrong_world", json!({})), "ctrlmesh"),
        ("a newer world", guest("newer_world", json!({})), "0."),
        ("files", guest("file_reader", json!({})), "wasi:filesystem"),
        ("sockets", guest("dialer", json!({})), "wasi:sockets"),
        ("a core module", entry(core_module), "component"),
        ("empty", entry(b""), "empty"),
        ("truncated", entry(&whole[..whole.len() / 2]), ""),
        ("50 MiB", entry(&big), "larger than"),
    ]
}

#[tokio::test]
async fn a_bad_entry_or_plugin_is_refused() -> anyhow::Result<()> {
    let mut stand = stand().await?;
    for (what, entry, says) in bad_entries() {
        let before = stand.sidecar.status().await?.counts.refused;
        stand.chain.set_generation(1);
        stand.chain.publish(vec![entry])?;
        is_refused(&stand, what, says, before).await?;
    }
    stand.chain.set_generation(1);
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(
        stand.client().get("/api/v1/configmaps").await?.names(),
        ["b0"],
        "a good one is taken"
    );
    assert!(
        stand.sidecar.status().await?.refused.is_none(),
        "and nothing is refused any more"
    );
    Ok(())
}

#[tokio::test]
async fn a_bad_document_is_refused() -> anyhow::Result<()> {
    let mut stand = stand().await?;
    let good = stand.chain.document(5, &[]);
    let mut unknown = good.clone();
    unknown["surprise"] = true.into();
    let mut elsewhere = good.clone();
    elsewhere["namespace"] = "elsewhere".into();
    let older = stand.chain.document(0, &[]);
    let other_bytes = stand.chain.document(1, &[]);
    for (what, document, says) in [
        ("unknown field", unknown.to_string(), "surprise"),
        ("another namespace", elsewhere.to_string(), "elsewhere"),
        ("an older generation", older.to_string(), "generation"),
        (
            "the same generation with other content",
            other_bytes.to_string(),
            "generation",
        ),
        ("no YAML", "{[".to_owned(), ""),
        ("empty", String::new(), ""),
    ] {
        let before = stand.sidecar.status().await?.counts.refused;
        stand.chain.publish_bytes(document.as_bytes(), vec![])?;
        is_refused(&stand, what, says, before).await?;
    }
    let before = stand.sidecar.status().await?.counts.refused;
    stand.chain.publish_files(&[("other.txt".to_owned(), b"x".to_vec())])?;
    is_refused(&stand, "no document at all", "", before).await
}

#[tokio::test]
async fn with_a_key_set_only_its_signature_counts() -> anyhow::Result<()> {
    let key = SigningKey::generate()?;
    let public = key.public_key().to_string();
    let stand = Stand::start(vec![]).await?;
    let mut chain = ctrlmesh_tests::ChainDir::create(stand.chain.path().with_file_name("signed"))?;
    chain.publish(vec![shard("a")])?;
    let path = |name: &str| stand.chain.path().with_file_name(name).display().to_string();
    let flags = [
        "--kubeconfig",
        &path("kubeconfig"),
        "--chain-dir",
        &path("signed"),
        "--public-key",
        &public,
    ];
    let sidecar = ctrlmesh_tests::Sidecar::start(&flags.map(ToOwned::to_owned)).await?;
    sidecar
        .wait_status("unsigned", |status| status.counts.refused == 1)
        .await?;
    assert_eq!(sidecar.admin().get("/readyz").await?.status, 503, "no chain, not ready");
    chain.sign_with(SigningKey::generate()?);
    chain.publish(vec![shard("a")])?;
    sidecar
        .wait_status("signed by a stranger", |status| status.counts.refused == 2)
        .await?;
    chain.sign_with(key);
    chain.publish(vec![shard("a")])?;
    sidecar.wait_ready().await?;
    Ok(())
}
