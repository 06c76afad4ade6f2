//! `ctrlmesh uninstall` against an in-memory API server: what it prints about the cluster, and what it deletes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use anyhow::Result;
use ctrlmesh_testkit::{ApiServer, Resource};
use serde_json::{Value, json};

const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";

/// A root in one namespace and two shards in another.
async fn test_cluster() -> Result<ApiServer> {
    let kind = Resource::namespaced(
        "ctrlmesh.kusionstack.io",
        "v1alpha1",
        "shardingconfigs",
        "ShardingConfig",
    );
    let builder = ApiServer::builder().namespace("one").namespace("two").resource(kind);
    let server = builder.start().await?;
    let root = json!({ "root": { "prefix": "operator" } });
    for (namespace, name, spec) in [
        ("one", "root", root),
        ("two", "left", json!({})),
        ("two", "right", json!({})),
    ] {
        server.store().put(sharding_config(namespace, name, &spec))?;
    }
    Ok(server)
}

fn sharding_config(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

fn remaining_configs(server: &ApiServer) -> usize {
    server.store().read(|state| state.list(KIND).count())
}

/// Exit code, standard output, standard error.
async fn run_uninstall(server: &ApiServer, flags: &'static [&'static str]) -> Result<(Option<i32>, String, String)> {
    run_uninstall_with(&server.plain_kubeconfig(), flags).await
}

async fn run_uninstall_with(cluster: &str, flags: &'static [&'static str]) -> Result<(Option<i32>, String, String)> {
    let mut kubeconfig = tempfile::NamedTempFile::new()?;
    kubeconfig.write_all(cluster.as_bytes())?;
    let running = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        command
            .arg("uninstall")
            .args(flags)
            .env("KUBECONFIG", kubeconfig.path())
            .output()
    });
    let output = running.await??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

const COUNTED: &str = "3 ShardingConfigs (1 root, 2 shards) in 2 namespaces";

#[tokio::test]
async fn uninstall_names_cluster_and_counts_before_and_after() -> Result<()> {
    let server = test_cluster().await?;
    let (code, printed, errors) = run_uninstall(&server, &["--yes"]).await?;
    assert_eq!((code, remaining_configs(&server)), (Some(0), 0), "{printed}{errors}");
    let named = format!("context testkit, server {}", server.url());
    let lines: Vec<&str> = printed.lines().collect();
    let [first, second, .., last] = lines[..] else {
        panic!("{printed}");
    };
    assert_eq!(first, format!("{named}/: looking for ShardingConfigs"));
    assert!(
        second.starts_with(&named) && second.ends_with(&format!("deleting {COUNTED}")),
        "{second}"
    );
    assert!(
        last.starts_with(&named) && last.contains("deleted 3 ShardingConfigs"),
        "{last}"
    );
    assert!(last.contains("kubectl delete -k deploy/"), "{last}");
    Ok(())
}

#[tokio::test]
async fn uninstall_deletes_nothing_without_confirmation() -> Result<()> {
    let server = test_cluster().await?;
    let (code, printed, errors) = run_uninstall(&server, &[]).await?;
    assert_eq!((code, remaining_configs(&server)), (Some(1), 3));
    assert!(
        printed.contains("context testkit") && printed.contains(&format!("would delete {COUNTED}")),
        "{printed}"
    );
    assert!(errors.contains("--yes"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn uninstall_succeeds_where_nothing_is_installed() -> Result<()> {
    let server = ApiServer::builder().namespace("one").start().await?;
    for flags in [&[][..], &["--yes"]] {
        let (code, printed, errors) = run_uninstall(&server, flags).await?;
        assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
        let named = format!("context testkit, server {}", server.url());
        assert!(
            printed.starts_with(&named) && printed.contains("nothing is installed") && printed.lines().count() == 2,
            "{printed}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn uninstall_fails_where_no_api_server_answers() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let server = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut request = BufReader::new(&connection).lines();
            let mut head = request
                .by_ref()
                .take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            while head.next().is_some() {}
            let response = "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\nConnection: close\r\n\r\nnot found\n";
            // The client's error says it if this fails.
            let _ = (&connection).write_all(response.as_bytes());
        }
    });
    let kubeconfig = kubeconfig(&server);
    for flags in [&[][..], &["--yes"]] {
        let (code, printed, errors) = run_uninstall_with(&kubeconfig, flags).await?;
        let first = format!("context web, server {server}/: looking for ShardingConfigs");
        assert_eq!((code, printed.trim_end()), (Some(1), &*first), "{errors}");
        assert_eq!(
            errors,
            format!("ctrlmesh: the API server at {server}/ (context web) answered not found (HTTP 404)\n")
        );
    }
    Ok(())
}

fn kubeconfig(server: &str) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "web",
        "contexts": [{ "name": "web", "context": { "cluster": "web", "user": "web" } }],
        "clusters": [{ "name": "web", "cluster": { "server": server } }],
        "users": [{ "name": "web", "user": {} }],
    });
    kubeconfig.to_string()
}

#[tokio::test]
async fn uninstall_names_server_that_it_cannot_reach() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let server = format!("http://{}", listener.local_addr()?);
    drop(listener);
    let (code, printed, errors) = run_uninstall_with(&kubeconfig(&server), &[]).await?;
    assert_eq!(code, Some(1), "{printed}");
    assert_eq!(
        errors,
        format!("ctrlmesh: cannot reach the API server at {server}/ (context web): nothing listens there\n")
    );
    Ok(())
}

#[tokio::test]
async fn uninstall_names_kubeconfig_that_it_cannot_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("missing");
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .arg("uninstall")
        .env("KUBECONFIG", &missing)
        .output()?;
    let message = format!(
        "ctrlmesh: not in a pod, and cannot read the kubeconfig {}: it does not exist; set KUBECONFIG to the kubeconfig of a cluster\n",
        missing.display()
    );
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr)),
        (Some(1), message.into())
    );
    Ok(())
}
