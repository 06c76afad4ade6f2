//! Calls to other services: the three ways in, and what arrives at the target.

use anyhow::Context;
use ctrlmesh_tests::target::BIG;
use ctrlmesh_tests::{Client, EntrySpec, Stand, Target, wait_until};
use http::{Method, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A sidecar whose external port may reach loopback, where the targets are.
pub(crate) async fn stand(entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<(Stand, Client)> {
    let mut all = vec!["--external-address", "127.0.0.1:0", "--external-allow", "127.0.0.0/8"];
    all.extend(flags);
    let stand = Stand::start_with(entries, &all).await?;
    let client = Client::http1(stand.sidecar.external().context("it is on")?);
    Ok((stand, client))
}

/// The same, trusting a target.
pub(crate) async fn trusting(target: &Target) -> anyhow::Result<(Stand, Client, tempfile::TempDir)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("ca.crt");
    std::fs::write(&file, target.certificate())?;
    let (stand, client) = stand(vec![], &["--external-ca-file", &file.display().to_string()]).await?;
    Ok((stand, client, directory))
}

/// The part of a head that a client chose, as it must arrive.
fn dressed(client: Client) -> Client {
    client
        .with("user-agent", "operator/1")
        .with("authorization", "Bearer mine")
        .with("x-kept", "1")
        .with("connection", "x-hop")
        .with("x-hop", "1")
        .with("proxy-authorization", "Basic secret")
        .with("proxy-connection", "keep-alive")
        .with("te", "trailers")
}

fn check_arrived(arrived: &ctrlmesh_tests::target::Arrived) {
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
async fn rest_01_header_mode_replaces_the_whole_url_and_the_header_stays_here() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (_stand, client) = stand(vec![], &[]).await?;
    let url = format!("http://127.0.0.1:{}/there?a=%2f&a;b", target.port());
    for target in ["/here?x=1", "http://elsewhere.example/here"] {
        let client = dressed(client.clone()).with("mesh-real-endpoint", &url);
        let answer = client.send(Method::PUT, target, "body").await?;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
    }
    for arrived in target.arrived() {
        check_arrived(&arrived);
        assert_eq!(
            (arrived.method.as_str(), arrived.uri.to_string()),
            ("PUT", "/there?a=%2f&a;b".to_owned())
        );
        assert_eq!(arrived.headers["host"], target.address().to_string());
    }
    assert_eq!(target.arrived().len(), 2);
    Ok(())
}

#[tokio::test]
async fn rest_01_header_mode_speaks_verified_tls_and_http2_where_it_is_offered() -> anyhow::Result<()> {
    for (protocols, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
    ] {
        let target = Target::tls(protocols).await?;
        let (stand, client, _file) = trusting(&target).await?;
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{}/there?q", target.port());
            let answer = dressed(client.clone())
                .with("mesh-real-endpoint", &url)
                .get("/")
                .await?;
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            let arrived = target.arrived().pop().context("it arrived")?;
            check_arrived(&arrived);
            assert_eq!(arrived.version, version);
            assert!(arrived.uri.to_string().ends_with("/there?q"), "{}", arrived.uri);
            if version == Version::HTTP_2 {
                assert_eq!(arrived.uri.host(), Some(host));
            }
        }
        let other = Target::tls(protocols).await?;
        let url = format!("https://localhost:{}/", other.port());
        let answer = client.with("mesh-real-endpoint", &url).get("/").await?;
        let message = answer.json()["message"].to_string();
        assert!(answer.status == 503 && message.contains("certificate"), "{message}");
        assert_eq!(other.arrived().len(), 0, "nobody vouches for it");
        assert_eq!(stand.api.requests().count("get"), 0);
    }
    Ok(())
}

#[tokio::test]
async fn rest_02_an_absolute_target_is_forwarded_and_its_host_counts() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (stand, client) = stand(vec![], &[]).await?;
    let client = dressed(client).with("host", "other.example");
    for host in ["localhost", "LOCALHOST.", "127.0.0.1"] {
        let url = format!("http://{host}:{}/p/../q?a=1", target.port());
        let answer = client.send(Method::POST, &url, "body").await?;
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
        for gone in ["x-hop", "proxy-authenticate"] {
            assert!(!answer.headers.contains_key(gone), "{gone}: {:?}", answer.headers);
        }
        assert_eq!(answer.headers["x-kept"], "1");
        let arrived = target.arrived().pop().context("it arrived")?;
        check_arrived(&arrived);
        assert_eq!(arrived.uri.to_string(), "/p/../q?a=1", "as it came");
        let host = host.trim_end_matches('.').to_lowercase();
        assert_eq!(arrived.headers["host"], format!("{host}:{}", target.port()));
    }
    // A name in another spelling is the same target: its connection is used again.
    let metric = "ctrlmesh_external_requests_total{way=\"absolute\",code=\"2xx\"}";
    wait_until("all are counted", || async {
        Ok(stand.sidecar.metric(metric).await? >= 3.0)
    })
    .await?;
    let targets = stand.sidecar.metric("ctrlmesh_external_targets").await?;
    assert!(
        (2.0..=4.0).contains(&targets),
        "by name and by address, on two threads: {targets}"
    );
    let line = "access: external request method=POST way=\"absolute\"";
    wait_until("it is logged", || async { Ok(stand.sidecar.log().contains(line)) }).await?;
    assert!(!stand.sidecar.log().contains("q?a"), "without its query");
    Ok(())
}

#[tokio::test]
async fn a_client_over_http2_is_served_too() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (stand, _) = stand(vec![], &[]).await?;
    let client = Client::http2(stand.sidecar.external().context("it is on")?);
    let url = format!("http://127.0.0.1:{}/there", target.port());
    let answer = client.with("mesh-real-endpoint", &url).get("/here").await?;
    assert_eq!((answer.status, target.arrived()[0].uri.path()), (200, "/there"));
    Ok(())
}

#[tokio::test]
async fn large_bodies_stream_both_ways() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (stand, client) = stand(vec![], &[]).await?;
    let big = client.get(&format!("http://127.0.0.1:{}/big", target.port())).await?;
    assert_eq!(big.body.len(), BIG);
    // Each chunk comes back before the next one is sent: nothing waits for the end.
    let mut stream = TcpStream::connect(stand.sidecar.external().context("it is on")?).await?;
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
async fn a_client_that_goes_away_ends_its_request_at_the_target() -> anyhow::Result<()> {
    for protocols in [&["h2"][..], &["http/1.1"]] {
        let target = Target::tls(protocols).await?;
        let (stand, client, _file) = trusting(&target).await?;
        let url = format!("https://localhost:{}/hold", target.port());
        let mut stream = client.with("mesh-real-endpoint", &url).stream("/").await?;
        assert_eq!(stream.next().await?.as_deref(), Some(&b"first"[..]));
        assert_eq!(target.held(), 1);
        drop(stream);
        wait_until("the target hears of it", || async { Ok(target.held() == 0) }).await?;
        let gone = "ctrlmesh_external_request_failures_total{reason=\"client_gone\"}";
        wait_until("it is counted", || async {
            Ok(stand.sidecar.metric(gone).await? >= 1.0)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_target_that_is_gone_or_breaks_off_is_told_apart() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (_stand, client) = stand(vec![], &[]).await?;
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
    let target = Target::plain().await?;
    let (mut stand, client) = stand(vec![], &[]).await?;
    let url = format!("http://127.0.0.1:{}/late", target.port());
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.get(&url).await }
    });
    wait_until("it arrives", || async { Ok(target.arrived().len() == 1) }).await?;
    stand.sidecar.terminate()?;
    wait_until("nothing new is taken", || async { Ok(client.get("/").await.is_err()) }).await?;
    target.let_answer();
    assert_eq!(held.await??.status, 200);
    assert!(stand.sidecar.wait_end().await?.success(), "{}", stand.sidecar.log());
    Ok(())
}

#[tokio::test]
async fn it_is_off_unless_asked_for() -> anyhow::Result<()> {
    let stand = Stand::start(vec![]).await?;
    assert_eq!(stand.sidecar.external(), None);
    Ok(())
}

#[tokio::test]
async fn an_address_that_others_reach_is_warned_about() -> anyhow::Result<()> {
    let stand = Stand::start_with(vec![], &["--external-address", "0.0.0.0:0"]).await?;
    let log = stand.sidecar.log();
    assert!(log.contains("is not on loopback"), "{log}");
    let (quiet, _) = self::stand(vec![], &[]).await?;
    assert!(!quiet.sidecar.log().contains("is not on loopback"));
    Ok(())
}
