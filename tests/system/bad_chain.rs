//! An invalid chain is refused with a reason; the last good one stays in force.

use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_tests::sidecar::metric_in;
use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, shard_entry, wait_until};
use serde_json::json;

/// The sidecar's refusal counts before a case.
struct RefusalCounts {
    refused: u64,
    metrics: String,
    log: usize,
}

impl RefusalCounts {
    async fn read_counts(env: &TestEnv) -> anyhow::Result<Self> {
        Ok(Self {
            refused: env.sidecar.status().await?.counts.refused,
            metrics: env.sidecar.metrics().await?,
            log: env.sidecar.log().len(),
        })
    }
}

/// The last good chain is still in force, and status, metric and log report the mistake again.
async fn assert_refused(env: &TestEnv, what: &str, says: &str, before: &RefusalCounts) -> anyhow::Result<()> {
    let status = env
        .sidecar
        .wait_status(what, |status| status.counts.refused > before.refused)
        .await?;
    let refused = status.refused.unwrap();
    assert!(refused.message.contains(says), "{what}: {}", refused.message);
    assert_eq!(status.chain.generation, 1, "{what}");
    assert_eq!(env.client().get("/api/v1/configmaps").await?.names(), ["a0"], "{what}");
    let series = format!(r#"ctrlmesh_chain_refused_total{{reason="{}"}}"#, refused.reason);
    let counted = env.sidecar.metric_value(&series).await?;
    assert!(counted > metric_in(&before.metrics, &series)?, "{what}: {series}");
    wait_until(&format!("a warning about {what}: {}", refused.message), || async {
        let log = env.sidecar.log();
        let fresh = log.get(before.log..).unwrap_or_default();
        Ok(fresh.contains("WARN") && fresh.contains(&refused.message))
    })
    .await
}

async fn start_env() -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    Ok(env)
}

/// The mistake, the entry, and a part of the refusal.
fn bad_entries() -> Vec<(&'static str, EntrySpec, &'static str)> {
    let core_module = b"\0asm\x01\0\0\0";
    let whole = ctrlmesh_plugins_builtin::SHARD_SELECTOR;
    let entry = |bytes: &[u8]| EntrySpec::new("x/test", bytes);
    let big = vec![0; 50 << 20];
    vec![
        (
            "unknown field",
            shard_entry("a").with_field("unknownField", 1.into()),
            "unknownField",
        ),
        (
            "unknown plugin",
            guest_entry("trap", json!({ "in": "on-request", "how": "panic" })).without_bytes(),
            "sha256:",
        ),
        (
            "settings refused",
            shard_entry("a").with_settings(json!({ "limits": 7 })),
            "limits",
        ),
        (
            "settings refused by the guest",
            guest_entry("refuse_settings", json!({ "because": "not today" })),
            "not today",
        ),
        ("another world", guest_entry("wrong_world", json!({})), "ctrlmesh"),
        ("a newer world", guest_entry("newer_world", json!({})), "0."),
        ("files", guest_entry("file_reader", json!({})), "wasi:filesystem"),
        ("sockets", guest_entry("dialer", json!({})), "wasi:sockets"),
        ("a core module", entry(core_module), "component"),
        ("empty", entry(b""), "empty"),
        ("truncated", entry(&whole[..whole.len() / 2]), "could not be compiled"),
        ("50 MiB", entry(&big), "larger than"),
    ]
}

#[tokio::test]
async fn invalid_entry_or_plugin_is_refused() -> anyhow::Result<()> {
    let mut env = start_env().await?;
    for (what, entry, says) in bad_entries() {
        let before = RefusalCounts::read_counts(&env).await?;
        env.chain.set_generation(1);
        env.chain.publish(vec![entry])?;
        assert_refused(&env, what, says, &before).await?;
    }
    env.chain.set_generation(1);
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.names(),
        ["b0"],
        "a good one is taken"
    );
    assert!(
        env.sidecar.status().await?.refused.is_none(),
        "and nothing is refused any more"
    );
    Ok(())
}

#[tokio::test]
async fn invalid_document_is_refused() -> anyhow::Result<()> {
    let mut env = start_env().await?;
    let good = env.chain.document(5, &[]);
    let mut unknown = good.clone();
    unknown["surprise"] = true.into();
    let mut elsewhere = good.clone();
    elsewhere["namespace"] = "elsewhere".into();
    let older = env.chain.document(0, &[]);
    let other_bytes = env.chain.document(1, &[]);
    for (what, document, says) in [
        ("unknown field", unknown.to_string(), "surprise"),
        ("another namespace", elsewhere.to_string(), "elsewhere"),
        ("an older generation", older.to_string(), "generation"),
        (
            "the same generation with other content",
            other_bytes.to_string(),
            "generation",
        ),
        ("no YAML", "{[".to_owned(), "is not valid"),
        ("empty", String::new(), "is empty"),
    ] {
        let before = RefusalCounts::read_counts(&env).await?;
        env.chain.publish_bytes(document.as_bytes(), vec![])?;
        assert_refused(&env, what, says, &before).await?;
    }
    let before = RefusalCounts::read_counts(&env).await?;
    env.chain.publish_files(&[("other.txt".to_owned(), b"x".to_vec())])?;
    assert_refused(&env, "no document at all", "there is no chain.yaml", &before).await
}

#[tokio::test]
async fn unsigned_chain_is_refused_when_a_key_is_set() -> anyhow::Result<()> {
    let key = SigningKey::generate()?;
    let public = key.public_key().to_string();
    let env = TestEnv::start(vec![]).await?;
    let mut chain = ctrlmesh_tests::ChainDir::create(env.chain.path().with_file_name("signed"))?;
    chain.publish(vec![shard_entry("a")])?;
    let path = |name: &str| env.chain.path().with_file_name(name).display().to_string();
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
    assert_eq!(
        sidecar.admin_client().get("/readyz").await?.status,
        503,
        "no chain, not ready"
    );
    chain.sign_with(SigningKey::generate()?);
    chain.publish(vec![shard_entry("a")])?;
    sidecar
        .wait_status("signed by a stranger", |status| status.counts.refused == 2)
        .await?;
    chain.sign_with(key);
    chain.publish(vec![shard_entry("a")])?;
    sidecar.wait_ready().await?;
    Ok(())
}
