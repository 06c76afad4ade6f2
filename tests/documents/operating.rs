//! docs/operating.md and docs/manager.md describe every flag, environment variable and metric of sidecar and manager.

use std::fs;

use anyhow::Context;
use clap::CommandFactory;
use ctrlmesh_tests::{Client, TestEnv, repository_root, shard_entry};

fn read_document(name: &str) -> String {
    fs::read_to_string(repository_root().join("docs").join(name)).unwrap()
}

#[test]
fn sidecar_flags_and_variables_are_described() {
    assert_describes(&read_document("operating.md"), &ctrlmesh_proxy::config::Cli::command());
}

#[test]
fn manager_flags_and_variables_are_described() {
    assert_describes(&read_document("manager.md"), &ctrlmesh_manager::args::Args::command());
}

fn assert_describes(document: &str, command: &clap::Command) {
    for argument in command.get_arguments() {
        let Some(flag) = argument.get_long().filter(|flag| !matches!(*flag, "help" | "version")) else {
            continue;
        };
        assert!(document.contains(&format!("`--{flag}`")), "--{flag} is not described");
        if let Some(variable) = argument.get_env() {
            let variable = variable.to_string_lossy();
            assert!(
                document.contains(&format!("`{variable}`")),
                "{variable} is not described"
            );
        }
    }
}

#[test]
fn manager_metrics_are_described() {
    let document = read_document("manager.md") + &read_document("labels.md");
    let text = ctrlmesh_manager::metrics::Metrics::default().render().unwrap();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ctrlmesh_manager_")?.split(' ').next())
        .collect();
    assert!(names.contains(&"leader"), "{names:?}");
    for name in names {
        let name = name.strip_prefix("labels_").unwrap_or(name);
        assert!(document.contains(&format!("`{name}")), "{name} is not described");
    }
}

#[tokio::test]
async fn sidecar_metrics_and_log_fields_are_described() -> anyhow::Result<()> {
    let document = read_document("operating.md");
    let env = TestEnv::start_with(vec![shard_entry("a")], &["--external-address", "127.0.0.1:0"]).await?;
    env.client().get("/api/v1/configmaps").await?;
    let external = Client::http1(env.sidecar.external_address().context("it is on")?);
    assert_eq!(external.get("http://127.0.0.1:9/").await?.status, 403);
    let text = String::from_utf8(env.sidecar.admin_client().get("/metrics").await?.body.to_vec())?;
    let metrics = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for metric in metrics {
        assert!(document.contains(&format!("`{metric}")), "{metric} is not described");
    }
    let log = env.sidecar.log();
    for kind in ["access: request", "access: external request"] {
        let line = log.lines().find(|line| line.contains(kind)).context(kind)?;
        for field in line.split(' ').filter_map(|word| Some(word.split_once('=')?.0)) {
            assert!(
                document.contains(&format!("`{field}`")),
                "log field {field} is not described"
            );
        }
    }
    Ok(())
}
