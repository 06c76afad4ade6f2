//! Chains replaced under load: no request fails, state survives, labels select entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, shard_entry};
use serde_json::json;

fn next_version() -> EntrySpec {
    let settings = json!({
        "shard": "a", "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": "a" } },
        }],
    });
    EntrySpec::new(
        "shard-selector/test",
        ctrlmesh_plugins_builtin::samples::SHARD_SELECTOR_NEXT,
    )
    .with_settings(settings)
}

#[tokio::test]
async fn no_request_fails_while_the_plugin_is_replaced() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 2)?;
    env.seed_config_maps("default", "b", 2)?;
    let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = {
        let (client, over, answered) = (env.client(), Arc::clone(&over), Arc::clone(&answered));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let answer = client.get("/api/v1/configmaps").await?;
                anyhow::ensure!(answer.names() == ["a0", "a1"], "{} {:?}", answer.status, answer.body);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    };
    for _ in 0..5 {
        env.publish(vec![next_version()]).await?;
        env.publish(vec![shard_entry("a")]).await?;
    }
    over.store(true, Ordering::Relaxed);
    load.await??;
    assert!(answered.load(Ordering::Relaxed) > 0);
    Ok(())
}

#[tokio::test]
async fn state_survives_reload_and_goes_with_its_entry() -> anyhow::Result<()> {
    let counting = || guest_entry("stateful", json!({ "ops": [{ "add": { "key": "c", "delta": 1 } }] }));
    let mut env = TestEnv::start(vec![counting()]).await?;
    let client = env.client();
    let count = async |target: &str| {
        anyhow::Ok(
            client.get(target).await?.json()["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    assert_eq!(count("/api/v1/pods").await?, "1");
    assert_eq!(count("/api/v1/pods").await?, "2", "shared by the threads");
    env.publish(vec![counting().with_field("timeoutMs", 20.into())]).await?;
    assert_eq!(count("/api/v1/pods").await?, "3");
    env.publish(vec![]).await?;
    env.publish(vec![counting()]).await?;
    assert_eq!(count("/api/v1/pods").await?, "1", "the entry was gone in between");
    Ok(())
}

#[tokio::test]
async fn label_changes_select_entries() -> anyhow::Result<()> {
    let of = |name: &str| {
        let selector = json!({ "matchLabels": { "shard": name } });
        shard_entry(name)
            .with_field("name", format!("shard-selector/{name}").into())
            .with_field("podSelector", selector)
    };
    let mut env = TestEnv::start(vec![of("a"), of("b")]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.names(),
        ["a0", "b0"],
        "no entry selects the pod"
    );
    for (name, expected) in [("a", "a0"), ("b", "b0")] {
        env.chain.set_labels(&[("shard", name)])?;
        let entry = format!("shard-selector/{name}");
        env.sidecar
            .wait_status("the label chooses", |status| {
                status.chain.entries.iter().any(|it| it.name == entry)
            })
            .await?;
        assert_eq!(env.client().get("/api/v1/configmaps").await?.names(), [expected]);
    }
    Ok(())
}

#[tokio::test]
async fn restarted_sidecar_reads_its_chain_from_the_directory() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let key = SigningKey::generate()?;
    let mut signed = ctrlmesh_tests::ChainDir::create(env.chain.path().with_file_name("signed"))?;
    signed.sign_with(key);
    signed.publish(vec![shard_entry("a")])?;
    let files = env.chain.path().parent().unwrap().join("kubeconfig");
    let flags: Vec<String> = [("--kubeconfig", files), ("--chain-dir", signed.path().to_owned())]
        .into_iter()
        .flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()])
        .collect();
    let again = ctrlmesh_tests::Sidecar::start(&flags).await?;
    again.wait_ready().await?;
    assert_eq!(again.status().await?.chain.generation, 1);
    Ok(())
}
