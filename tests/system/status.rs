//! `ctrlmesh status` with a real sidecar: content, formats, and exit codes.

use std::net::{SocketAddr, TcpListener};
use std::process::Output;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::status::{EntryState, Status};
use ctrlmesh_tests::{
    ChainDir, DEADLINE, EntrySpec, Sidecar, TestEnv, binary_path, expensive_plugins, guest_entry, shard_entry,
    wait_until,
};
use serde_json::json;
use tokio::process::Command;

use crate::faults::{fault_rule, faults_entry};
use crate::limits::LIST;

async fn run_status(address: SocketAddr, more: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(binary_path("ctrlmesh")?);
    command.args(["status", "--address", &address.to_string()]).args(more);
    Ok(tokio::time::timeout(DEADLINE, command.kill_on_drop(true).output()).await??)
}

/// Exit code, standard output, standard error.
fn output_parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The cells of the row with this first cell.
fn row_cells<'t>(table: &'t str, first: &str) -> Vec<&'t str> {
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(first));
    row.map(|line| line.split_whitespace().collect()).unwrap_or_default()
}

#[tokio::test]
async fn status_counts_compiling_plugins() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let path = |name: &str| env.chain.path().with_file_name(name).display().to_string();
    let mut slow = ChainDir::create(env.chain.path().with_file_name("slow"))?;
    let plugin = ctrlmesh_plugins_builtin::SHARD_SELECTOR;
    let entries = [2000, 2001].map(|functions| {
        let bytes = expensive_plugins::with_functions(plugin, functions);
        EntrySpec::new(&format!("shard-selector/{functions}"), &bytes).with_settings(json!({}))
    });
    slow.publish(entries.to_vec())?;
    // Without a cache, both plugins are compiled.
    let flags = ["--kubeconfig", &path("kubeconfig"), "--chain-dir", &path("slow")].map(ToOwned::to_owned);
    let sidecar = Sidecar::start(&flags).await?;
    let says = |text: &str| text.contains("compiling 2 plugins (") && text.contains(" s)");
    wait_until("/readyz counts what is compiled", || async {
        let answer = sidecar.admin_client().get("/readyz").await?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        anyhow::ensure!(answer.status == 503, "it was ready before it said that it compiles");
        Ok(says(&text) && !text.contains("first chain"))
    })
    .await?;
    let (code, table, _) = output_parts(&run_status(sidecar.admin_address(), &[]).await?);
    assert_eq!(code, Some(1), "{table}");
    assert!(says(&table) && !table.contains("no chain loaded yet"), "{table}");
    Ok(())
}

#[tokio::test]
async fn status_of_healthy_sidecar_succeeds() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let (code, table, errors) = output_parts(&run_status(env.sidecar.admin_address(), &[]).await?);
    assert_eq!((code, &*errors), (Some(0), ""), "{table}");
    assert_eq!(row_cells(&table, "pod"), ["pod", "operator/operator-0"]);
    assert_eq!(row_cells(&table, "sidecar"), ["sidecar", env!("CARGO_PKG_VERSION")]);
    assert_eq!(row_cells(&table, "chain")[..3], ["chain", "generation", "1,"]);
    assert_eq!(
        row_cells(&table, "ENTRY")[..4],
        ["ENTRY", "PLUGIN", "SETTINGS", "STATE"]
    );
    let digest = Digest::of(ctrlmesh_plugins_builtin::SHARD_SELECTOR).hex();
    let status = env.sidecar.status().await?;
    let entry = [
        "shard-selector/test",
        &digest[..12],
        &status.chain.entries[0].settings_hash[..12],
        "active",
        "0",
    ];
    assert_eq!(row_cells(&table, "shard-selector/test"), entry);

    let (code, document, _) = output_parts(&run_status(env.sidecar.admin_address(), &["--output", "json"]).await?);
    assert_eq!(code, Some(0));
    let parsed: Status = serde_json::from_str(&document)?;
    assert_eq!(serde_json::to_value(parsed)?, serde_json::to_value(status)?);
    Ok(())
}

#[tokio::test]
async fn status_fails_and_explains_when_chain_is_refused() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.chain
        .publish(vec![guest_entry("refuse_settings", json!({ "because": "not today" }))])?;
    env.sidecar
        .wait_status("refused", |status| status.refused.is_some())
        .await?;
    let (code, table, errors) = output_parts(&run_status(env.sidecar.admin_address(), &[]).await?);
    assert_eq!((code, &*errors), (Some(1), ""));
    assert!(row_cells(&table, "refused").join(" ").contains("not today"), "{table}");
    assert_eq!(row_cells(&table, "chain")[..3], ["chain", "generation", "1,"]);
    assert_eq!(row_cells(&table, "shard-selector/test")[3], "active");

    let (code, document, _) = output_parts(&run_status(env.sidecar.admin_address(), &["--output", "json"]).await?);
    assert_eq!(code, Some(1));
    let parsed: Status = serde_json::from_str(&document)?;
    assert!(
        parsed
            .refused
            .is_some_and(|refused| refused.message.contains("not today"))
    );
    Ok(())
}

#[tokio::test]
async fn status_fails_when_an_entry_fails() -> anyhow::Result<()> {
    let trap = guest_entry("trap", json!({ "in": "on-request", "how": "panic" }));
    let env = TestEnv::start(vec![trap]).await?;
    // One fault is no failure yet: the next call may succeed.
    for _ in 0..5 {
        env.client().get("/api/v1/configmaps").await?;
    }
    env.sidecar
        .wait_status("a quarantine", |status| {
            status.chain.entries[0].state != EntryState::Active
        })
        .await?;
    let (code, table, _) = output_parts(&run_status(env.sidecar.admin_address(), &[]).await?);
    assert_eq!(code, Some(1), "{table}");
    let entry = row_cells(&table, "trap/test");
    assert!(matches!(entry[3], "failing" | "quarantined"), "{table}");
    assert_eq!(row_cells(&table, "plugins")[..3], ["plugins", "5", "faults,"]);
    Ok(())
}

#[tokio::test]
async fn status_names_address_without_admin_port() -> anyhow::Result<()> {
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let env = TestEnv::start(vec![]).await?;
    for address in [nobody, env.sidecar.api_address()] {
        for form in ["text", "json"] {
            let (code, out, errors) = output_parts(&run_status(address, &["--output", form]).await?);
            assert_eq!((code, &*out), (Some(1), ""));
            let says = format!("ctrlmesh: cannot read /status of a sidecar at {address}");
            assert!(errors.starts_with(&says), "{errors}");
            assert!(errors.contains("is that its admin port (5441 in a pod)?"), "{errors}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn status_shows_plugin_reports() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![faults_entry(json!([fault_rule(json!("refuse"), json!({}))]))]).await?;
    assert_eq!(env.client().get(LIST).await?.status, 503);
    let (code, table, _) = output_parts(&run_status(env.sidecar.admin_address(), &[]).await?);
    assert_eq!(code, Some(0), "{table}");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let mut rows = rows.filter(|row| row.first() == Some(&"fault-inject/test"));
    let cells = rows.next_back().unwrap();
    assert_eq!(cells[1..], ["x", "fired", "1,", "matched", "1"]);
    Ok(())
}
