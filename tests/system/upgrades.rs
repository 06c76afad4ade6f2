//! exec, attach, port-forward: after 101, bytes pass both ways.

use std::sync::{Arc, Mutex, PoisonError};

use ctrlmesh_testkit::{ApiServer, Fault, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::path_cleaning_proxy::kubeconfig_for;
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, guest_entry, shard_entry, wait_until};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(crate) const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec";
/// A subresource of an aggregated API server.
pub(crate) const VNC: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/v/vnc";

/// A client that asks to upgrade. The API server switches protocols for each exec from now on.
fn exec_client(env: &TestEnv) -> Client {
    tunnel_client(env, EXEC)
}

/// A client that asks to upgrade. The API server switches protocols for each request of this path from now on.
pub(crate) fn tunnel_client(env: &TestEnv, path: &str) -> Client {
    env.api.faults().add(Rule::new(Fault::Tunnel).path(path));
    env.client()
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "SPDY/3.1")
}

/// The response to an exec. After a 101, the exec lasts as long as this.
async fn open_exec(client: &Client) -> anyhow::Result<Stream> {
    open_tunnel(client, EXEC).await
}

/// The response to a request for a tunnel. After a 101, the tunnel lasts as long as this.
pub(crate) async fn open_tunnel(client: &Client, path: &str) -> anyhow::Result<Stream> {
    client.open_stream_with(Method::POST, path).await
}

async fn check_echo(env: &TestEnv, subresource: &str, protocol: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let head = format!(
        "POST /api/v1/namespaces/default/pods/p/{subresource}?command=sh&stdin=true HTTP/1.1\r\nhost: x\r\n\
         connection: Upgrade\r\nupgrade: {protocol}\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let head = if protocol == "websocket" {
        head.replacen("POST", "GET", 1)
    } else {
        head
    };
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await?);
    }
    let text = String::from_utf8(answer)?.to_lowercase();
    assert!(text.starts_with("http/1.1 101"), "{subresource} {protocol}: {text}");
    assert!(
        text.contains(&format!("upgrade: {}", protocol.to_lowercase())),
        "{text}"
    );
    let sent = vec![7; 200_000];
    let (mut reader, mut writer) = stream.split();
    let mut back = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut back));
    wrote?;
    read?;
    assert!(back == sent, "the echo is byte-exact");
    Ok(())
}

#[tokio::test]
async fn bytes_pass_both_ways_after_101() -> anyhow::Result<()> {
    let env = TestEnv::start_around(ApiServer::builder().start().await?, vec![shard_entry("a")], &[]).await?;
    env.api.store().put(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))?;
    for (subresource, protocol) in [
        ("exec", "SPDY/3.1"),
        ("attach", "SPDY/3.1"),
        ("portforward", "SPDY/3.1"),
        ("exec", "websocket"),
    ] {
        check_echo(&env, subresource, protocol).await?;
    }
    env.api.wait_until(|activity| activity.tunnels == 0).await?;
    Ok(())
}

#[tokio::test]
async fn refused_upgrade_is_an_ordinary_response() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let client = Client::http1(env.sidecar.api_address())
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "SPDY/3.1");
    let answer = client.get("/api/v1/namespaces/default/pods/missing/exec").await?;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (404, Some("Status")));
    Ok(())
}

/// A plugin that gives this verdict on each 101.
fn entry_for_switches(then: Value) -> EntrySpec {
    guest_entry("scripted", json!({ "onResponse": [{ "status": 101, "then": then }] }))
}

#[tokio::test]
async fn plugin_edits_head_of_101_without_breaking_the_tunnel() -> anyhow::Result<()> {
    let edits = json!([{ "setHeader": { "name": "x-shard", "value": "a" } }, "closeConnection"]);
    let plan = json!({ "edits": edits, "body": { "cutAfter": 10, "reset": "close" } });
    let env = TestEnv::start(vec![entry_for_switches(json!({ "proceed": plan }))]).await?;
    let exec = open_exec(&exec_client(&env)).await?;
    assert_eq!(exec.head.status, 101);
    for (name, expected) in [("x-shard", "a"), ("connection", "Upgrade"), ("upgrade", "SPDY/3.1")] {
        let values: Vec<_> = exec.head.headers.get_all(name).iter().collect();
        assert_eq!(values, [expected], "{name}");
    }
    check_echo(&env, "exec", "SPDY/3.1").await
}

#[tokio::test]
async fn only_edits_of_tunnel_head_are_reported() -> anyhow::Result<()> {
    let set_header = json!({ "setHeader": { "name": "x-shard", "value": "a" } });
    for (edits, touched) in [
        (
            json!([set_header, "closeConnection"]),
            r#"touched="edited by scripted/test""#,
        ),
        (json!(["closeConnection"]), r#"touched="""#),
    ] {
        let plan = json!({ "edits": edits, "body": { "cutAfter": 10, "reset": "close" } });
        let env = TestEnv::start(vec![entry_for_switches(json!({ "proceed": plan }))]).await?;
        drop(open_exec(&exec_client(&env)).await?);
        let is_expected = |line: &str| line.contains("upstream_status=101") && line.contains(touched);
        wait_until(touched, || async { Ok(env.sidecar.log().lines().any(is_expected)) }).await?;
    }
    Ok(())
}

#[tokio::test]
async fn exec_that_plugin_stops_at_101_ends_at_the_api_server() -> anyhow::Result<()> {
    let header = |name: &str| json!({ "setHeader": { "name": name, "value": "x" } });
    let set = |name: &str| json!({ "proceed": { "edits": [header(name)] } });
    for (then, expected) in [
        (json!({ "replace": { "code": 503, "message": "lost" } }), 503),
        (json!({ "answer": { "code": 429 } }), 429),
        (set("upgrade"), 500),
        (set("x-stream-protocol-version"), 500),
        (
            json!({ "proceed": { "edits": [{ "removeHeader": "sec-websocket-accept" }] } }),
            500,
        ),
    ] {
        let env = TestEnv::start(vec![entry_for_switches(then.clone())]).await?;
        let answer = exec_client(&env).send(Method::POST, EXEC, "").await?;
        assert_eq!(answer.status, expected, "{then}");
        env.api.wait_until(|activity| activity.tunnels == 0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn exec_that_plugin_leaves_hanging_at_101_ends_at_the_api_server() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![entry_for_switches(json!({ "reset": "hang" }))]).await?;
    let client = exec_client(&env);
    let hanging = tokio::spawn(async move { open_exec(&client).await });
    let calls = r#"ctrlmesh_plugin_calls_total{entry="scripted/test",phase="response"}"#;
    wait_until("the plugin has seen the 101", || async {
        Ok(env.sidecar.metric_value(calls).await? >= 1.0)
    })
    .await?;
    env.api.wait_until(|activity| activity.tunnels == 0).await?;
    assert!(!hanging.is_finished());
    hanging.abort();
    Ok(())
}

#[tokio::test]
async fn upgrade_of_other_paths_is_an_ordinary_request() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    let client = env
        .client()
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "websocket");
    assert_eq!(
        client.get("/api/v1/configmaps").await?.names(),
        ["a0"],
        "a list is a list"
    );
    let lock = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
    let body =
        r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"lock","namespace":"operator"}}"#;
    env.api
        .store()
        .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "operator" } }))?;
    let created = client
        .with_header("content-type", "application/json")
        .send(http::Method::POST, lock, body)
        .await?;
    assert_eq!(
        (created.status, created.json()["metadata"]["name"].as_str()),
        (201, Some("lock"))
    );
    let renamed = |name: &str| {
        env.api
            .store()
            .read(|state| state.get("leases.coordination.k8s.io", "operator", name).is_some())
    };
    assert!(renamed("lock---a") && !renamed("lock"));
    Ok(())
}

/// A server that switches to the first offered protocol, or to `h2c` if a request asks for that, and records the received heads in lower
/// case.
struct SwitchingServer {
    env: TestEnv,
    heads: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl SwitchingServer {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", listener.local_addr()?);
        let heads = Arc::new(Mutex::new(Vec::new()));
        let mut serving = JoinSet::new();
        let noted = Arc::clone(&heads);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(switch_protocols(stream, Arc::clone(&noted)));
            }
        });
        let api = ApiServer::builder().start().await?;
        let env = TestEnv::start_behind(api, vec![], &kubeconfig_for(&server)).await?;
        Ok(Self {
            env,
            heads,
            _serving: serving,
        })
    }

    /// Sends a request with these header lines; returns its status and what the server received.
    async fn send_upgrade(&self, target: &str, headers: &str) -> anyhow::Result<(u16, String)> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut stream = TcpStream::connect(self.env.sidecar.api_address()).await?;
        let head = format!("GET {target} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await?;
        let status = line.split(' ').nth(1).unwrap_or_default().parse()?;
        let heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        let path = target.to_lowercase();
        let seen = heads.iter().find(|head| head.contains(&path));
        Ok((status, seen.cloned().unwrap_or_default()))
    }
}

async fn switch_protocols(stream: TcpStream, heads: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.is_ok_and(|read| read > 0) {
                continue;
            }
            return;
        }
        let head = head.to_lowercase();
        let offered = head.lines().find_map(|line| line.strip_prefix("upgrade: "));
        let chosen = offered.map(|list| {
            if head.contains("x-wants: h2c") {
                "h2c"
            } else {
                list.split(',').next().unwrap_or(list)
            }
        });
        let answer = match chosen {
            Some(protocol) => {
                format!("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n")
            }
            None => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
        };
        heads.lock().unwrap_or_else(PoisonError::into_inner).push(head);
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

const CONSOLE: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/v/console";

#[tokio::test]
async fn only_websocket_and_spdy_of_the_offered_protocols_pass() -> anyhow::Result<()> {
    let server = SwitchingServer::start().await?;
    for (target, offered, passed) in [
        (EXEC, "h2c, websocket", Some("websocket")),
        (EXEC, "SPDY/3.1, H2C", Some("spdy/3.1")),
        (EXEC, "H2C", None),
        (EXEC, "WebSocket,spdy/3.1", Some("websocket, spdy/3.1")),
        (CONSOLE, "websocket", Some("websocket")),
        (CONSOLE, "h2c", None),
        ("/api/v1/pods?watch=1", "foo/2, websocket", Some("websocket")),
        ("/api/v1/pods?watch=1", "h2c", None),
        ("/api/v1/pods", "websocket", None),
        ("/version", "websocket", None),
        ("/version", "H2C", None),
        ("/version", "h2c, websocket", None),
    ] {
        let (status, head) = server
            .send_upgrade(target, &format!("connection: upgrade\r\nupgrade: {offered}\r\n"))
            .await?;
        let seen = head.lines().find_map(|line| line.strip_prefix("upgrade: "));
        assert_eq!(
            (status, seen),
            (if passed.is_some() { 101 } else { 200 }, passed),
            "{target}: {offered}: {head}"
        );
    }
    let (status, _) = server
        .send_upgrade(EXEC, "connection: upgrade\r\nupgrade: websocket\r\nx-wants: h2c\r\n")
        .await?;
    assert_eq!(status, 502, "a protocol that was not offered");
    Ok(())
}

#[tokio::test]
async fn websocket_token_is_not_overridden_by_credentials_of_the_sidecar() -> anyhow::Result<()> {
    let server = SwitchingServer::start().await?;
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-protocol: v5.channel.k8s.io";
    let token = "base64url.bearer.authorization.k8s.io.cG9vcg";
    for target in [EXEC, "/api/v1/pods?watch=1", CONSOLE] {
        let (_, head) = server.send_upgrade(target, &format!("{upgrade}, {token}\r\n")).await?;
        assert!(
            !head.contains("authorization: ") && head.contains(&token.to_lowercase()),
            "{target}: {head}"
        );
        let (_, head) = server
            .send_upgrade(target, &format!("{upgrade}\r\nsec-websocket-protocol: {token}\r\n"))
            .await?;
        assert!(!head.contains("authorization: "), "{target}: {head}");
        let (_, head) = server.send_upgrade(target, &format!("{upgrade}\r\n")).await?;
        assert!(head.contains("authorization: bearer sidecars-own"), "{target}: {head}");
    }
    Ok(())
}
