//! External calls: the three ways to send them, and what arrives at the target.

use anyhow::Context;
use ctrlmesh_tests::target::BIG;
use ctrlmesh_tests::{Client, EntrySpec, Target, TestEnv, wait_until};
use http::{Method, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A sidecar whose external port may reach loopback, where the targets are.
pub(crate) async fn start_env(entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<(TestEnv, Client)> {
    let mut all = vec!["--external-address", "127.0.0.1:0", "--external-allow", "127.0.0.0/8"];
    all.extend(flags);
    let env = TestEnv::start_with(entries, &all).await?;
    let client = Client::http1(env.sidecar.external_address().context("it is on")?);
    Ok((env, client))
}

/// Like [`start_env`], trusting a target's certificate.
pub(crate) async fn start_env_trusting(target: &Target) -> anyhow::Result<(TestEnv, Client, tempfile::TempDir)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("ca.crt");
    std::fs::write(&file, target.certificate())?;
    let (env, client) = start_env(vec![], &["--external-ca-file", &file.display().to_string()]).await?;
    Ok((env, client, directory))
}

/// Headers chosen by the client, as they must arrive.
fn with_test_headers(client: Client) -> Client {
    client
        .with_header("user-agent", "operator/1")
        .with_header("authorization", "Bearer mine")
        .with_header("x-kept", "1")
        .with_header("connection", "x-hop")
        .with_header("x-hop", "1")
        .with_header("proxy-authorization", "Basic secret")
        .with_header("proxy-connection", "keep-alive")
        .with_header("te", "trailers")
}

fn check_arrived(arrived: &ctrlmesh_tests::target::ArrivedRequest) {
    let names: Vec<&str> = arrived.headers.keys().map(http::HeaderName::as_str).collect();
    for (name, value) in [
        ("user-agent", "operator/1"),
        ("authorization", "Bearer mine"),
        ("x-kept", "1"),
    ] {
        assert_eq!(arrived.headers[name], value);
    }
    let others = ["user-agent", "authorization", "x-kept", "host", "content-length"];
    assert!(
        names.iter().all(|name| others.contains(name)),
        "nothing else arrives: {names:?}"
    );
}

#[tokio::test]
async fn rest_01_header_mode_replaces_the_url_and_removes_the_header() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (_stand, client) = start_env(vec![], &[]).await?;
    let url = format!("http://127.0.0.1:{}/there?a=%2f&a;b", target.port());
    for target in ["/here?x=1", "http://elsewhere.example/here"] {
        let client = with_test_headers(client.clone()).with_header("mesh-real-endpoint", &url);
        let answer = client.send(Method::PUT, target, "body").await?;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
    }
    for arrived in target.arrived_requests() {
        check_arrived(&arrived);
        assert_eq!(
            (arrived.method.as_str(), arrived.uri.to_string()),
            ("PUT", "/there?a=%2f&a;b".to_owned())
        );
        assert_eq!(arrived.headers["host"], target.address().to_string());
    }
    assert_eq!(target.arrived_requests().len(), 2);
    Ok(())
}

#[tokio::test]
async fn rest_01_header_mode_uses_verified_tls_and_http2_when_offered() -> anyhow::Result<()> {
    for (protocols, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
    ] {
        let target = Target::start_tls(protocols).await?;
        let (env, client, _file) = start_env_trusting(&target).await?;
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{}/there?q", target.port());
            let answer = with_test_headers(client.clone())
                .with_header("mesh-real-endpoint", &url)
                .get("/")
                .await?;
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            let arrived = target.arrived_requests().pop().context("it arrived")?;
            check_arrived(&arrived);
            assert_eq!(arrived.version, version);
            assert!(arrived.uri.to_string().ends_with("/there?q"), "{}", arrived.uri);
            if version == Version::HTTP_2 {
                assert_eq!(arrived.uri.host(), Some(host));
            }
        }
        let other = Target::start_tls(protocols).await?;
        let url = format!("https://localhost:{}/", other.port());
        let answer = client.with_header("mesh-real-endpoint", &url).get("/").await?;
        let message = answer.json()["message"].to_string();
        assert!(answer.status == 503 && message.contains("certificate"), "{message}");
        assert_eq!(other.arrived_requests().len(), 0, "nobody vouches for it");
        assert_eq!(env.api.requests().count("get"), 0);
    }
    Ok(())
}

#[tokio::test]
async fn rest_02_absolute_target_is_forwarded_by_its_host() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, client) = start_env(vec![], &[]).await?;
    let client = with_test_headers(client).with_header("host", "other.example");
    for host in ["localhost", "LOCALHOST.", "127.0.0.1"] {
        let url = format!("http://{host}:{}/p/../q?a=1", target.port());
        let answer = client.send(Method::POST, &url, "body").await?;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
        for gone in ["x-hop", "proxy-authenticate"] {
            assert!(!answer.headers.contains_key(gone), "{gone}: {:?}", answer.headers);
        }
        assert_eq!(answer.headers["x-kept"], "1");
        let arrived = target.arrived_requests().pop().context("it arrived")?;
        check_arrived(&arrived);
        assert_eq!(arrived.uri.to_string(), "/p/../q?a=1", "as it came");
        let host = host.trim_end_matches('.').to_lowercase();
        assert_eq!(arrived.headers["host"], format!("{host}:{}", target.port()));
    }
    // Another spelling of the name is the same target, so its connection is reused.
    let metric = "ctrlmesh_external_requests_total{way=\"absolute\",code=\"2xx\"}";
    wait_until("all are counted", || async {
        Ok(env.sidecar.metric_value(metric).await? >= 3.0)
    })
    .await?;
    let targets = env.sidecar.metric_value("ctrlmesh_external_targets").await?;
    assert!(
        (2.0..=4.0).contains(&targets),
        "by name and by address, on two threads: {targets}"
    );
    let line = "access: external request method=POST way=\"absolute\"";
    wait_until("it is logged", || async { Ok(env.sidecar.log().contains(line)) }).await?;
    assert!(!env.sidecar.log().contains("q?a"), "without its query");
    Ok(())
}

#[tokio::test]
async fn http2_client_is_served() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, _) = start_env(vec![], &[]).await?;
    let client = Client::http2(env.sidecar.external_address().context("it is on")?);
    let url = format!("http://127.0.0.1:{}/there", target.port());
    let answer = client.with_header("mesh-real-endpoint", &url).get("/here").await?;
    assert_eq!(
        (answer.status, target.arrived_requests()[0].uri.path()),
        (200, "/there")
    );
    Ok(())
}

#[tokio::test]
async fn large_bodies_stream_both_ways() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, client) = start_env(vec![], &[]).await?;
    let big = client.get(&format!("http://127.0.0.1:{}/big", target.port())).await?;
    assert_eq!(big.body.len(), BIG);
    // Each chunk comes back before the next one is sent: the body is streamed.
    let mut stream = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    let head = format!(
        "POST http://127.0.0.1:{}/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        target.port()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(b"3\r\none\r\n").await?;
    read_until(&mut stream, b"one\r\n").await?;
    stream.write_all(b"3\r\ntwo\r\n").await?;
    read_until(&mut stream, b"two\r\n").await?;
    stream.write_all(b"0\r\n\r\n").await?;
    read_until(&mut stream, b"0\r\n\r\n").await?;
    Ok(())
}

pub(crate) async fn read_until(stream: &mut TcpStream, end: &[u8]) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let read = async {
        while !bytes.ends_with(end) {
            bytes.push(stream.read_u8().await?);
        }
        anyhow::Ok(())
    };
    let read = tokio::time::timeout(ctrlmesh_tests::DEADLINE, read).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    read.with_context(|| text.clone())?.with_context(|| text.clone())?;
    Ok(text)
}

#[tokio::test]
async fn request_at_the_target_ends_when_the_client_goes_away() -> anyhow::Result<()> {
    for protocols in [&["h2"][..], &["http/1.1"]] {
        let target = Target::start_tls(protocols).await?;
        let (env, client, _file) = start_env_trusting(&target).await?;
        let url = format!("https://localhost:{}/hold", target.port());
        let mut stream = client.with_header("mesh-real-endpoint", &url).open_stream("/").await?;
        assert_eq!(stream.next().await?.as_deref(), Some(&b"first"[..]));
        assert_eq!(target.held_count(), 1);
        drop(stream);
        wait_until("the target hears of it", || async { Ok(target.held_count() == 0) }).await?;
        let gone = "ctrlmesh_external_request_failures_total{reason=\"client_gone\"}";
        wait_until("it is counted", || async {
            Ok(env.sidecar.metric_value(gone).await? >= 1.0)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn missing_and_broken_targets_are_distinguished() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (_stand, client) = start_env(vec![], &[]).await?;
    let url = format!("http://127.0.0.1:{}/reset", target.port());
    let broke = client.send(Method::POST, &url, "").await?;
    assert_eq!(
        (broke.status, broke.headers.get("retry-after")),
        (502, None),
        "it may have happened"
    );
    let read = client.get(&url).await?;
    assert_eq!(
        (read.status, &read.headers["retry-after"]),
        (502, &"1".parse()?),
        "a read can be repeated"
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    drop(listener);
    let gone = client.get(&url).await?;
    let message = gone.json()["message"].to_string();
    assert_eq!((gone.status, &gone.headers["retry-after"]), (503, &"1".parse()?));
    assert!(
        message.contains("127.0.0.1:") && !message.contains("API server"),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn requests_in_flight_finish_when_the_sidecar_drains() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (mut env, client) = start_env(vec![], &[]).await?;
    let url = format!("http://127.0.0.1:{}/late", target.port());
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.get(&url).await }
    });
    wait_until("it arrives", || async { Ok(target.arrived_requests().len() == 1) }).await?;
    env.sidecar.send_sigterm()?;
    wait_until("nothing new is taken", || async { Ok(client.get("/").await.is_err()) }).await?;
    target.release_late_response();
    assert_eq!(held.await??.status, 200);
    assert!(env.sidecar.wait_end().await?.success(), "{}", env.sidecar.log());
    Ok(())
}

#[tokio::test]
async fn external_port_is_disabled_by_default() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    assert_eq!(env.sidecar.external_address(), None);
    Ok(())
}

#[tokio::test]
async fn non_loopback_address_is_warned_about() -> anyhow::Result<()> {
    let env = TestEnv::start_with(vec![], &["--external-address", "0.0.0.0:0"]).await?;
    let log = env.sidecar.log();
    assert!(log.contains("is not on loopback"), "{log}");
    let (quiet, _) = self::start_env(vec![], &[]).await?;
    assert!(!quiet.sidecar.log().contains("is not on loopback"));
    Ok(())
}
