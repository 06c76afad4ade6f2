//! Connections of external calls: the target's protocol, many targets, and the end of the sidecar.

use anyhow::Context;
use ctrlmesh_tests::{DEADLINE, Target, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::external::{read_until, start_env};

#[tokio::test]
async fn older_target_protocol_does_not_change_the_client_protocol() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let old = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await?;
            read_until(&mut stream, b"\r\n\r\n").await?;
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello").await?;
        }
        anyhow::Ok(())
    });
    let (env, _) = start_env(vec![], &[]).await?;
    let mut client = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    for _ in 0..2 {
        let request = format!("GET {url} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await?;
        let answer = read_until(&mut client, b"0\r\n\r\n").await?;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("hello"),
            "{answer}"
        );
    }
    old.await?
}

#[tokio::test]
async fn response_continues_while_many_targets_are_called() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (env, client) = start_env(vec![], &["--workers", "1"]).await?;
    let mut held = client
        .open_stream(&format!("http://127.0.0.1:{}/hold", target.port()))
        .await?;
    assert_eq!(held.next().await?.as_deref(), Some(&b"first"[..]));
    let mut others = JoinSet::new();
    for number in 0..300_u16 {
        // Nobody listens there: only the connections count, of which a thread keeps 256.
        let [high, low] = number.to_be_bytes();
        let (client, url) = (client.clone(), format!("http://127.7.{high}.{low}:{}/", target.port()));
        others.spawn(async move { anyhow::Ok(client.get(&url).await?.status) });
    }
    while let Some(status) = others.join_next().await {
        assert_eq!(status??, 503);
    }
    assert_eq!(env.sidecar.metric_value("ctrlmesh_external_targets").await?, 256.0);
    assert_eq!(target.held_count(), 1, "it was not cut off");
    drop(held);
    wait_until("the target hears of its end", || async { Ok(target.held_count() == 0) }).await
}

#[tokio::test]
async fn idle_connection_does_not_delay_the_end() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let (mut env, _) = start_env(vec![], &["--drain-timeout", "30"]).await?;
    let mut idle = TcpStream::connect(env.sidecar.external_address().context("it is on")?).await?;
    let request = format!("GET http://127.0.0.1:{}/ HTTP/1.1\r\nhost: x\r\n\r\n", target.port());
    idle.write_all(request.as_bytes()).await?;
    read_until(&mut idle, b"hello").await?;
    let start = std::time::Instant::now();
    env.sidecar.send_sigterm()?;
    let ended = tokio::time::timeout(DEADLINE, idle.read(&mut [0; 8])).await?;
    assert!(ended.map_or(true, |read| read == 0));
    assert!(env.sidecar.wait_end().await?.success(), "{}", env.sidecar.log());
    assert!(start.elapsed().as_secs() < 15, "{:?}", start.elapsed());
    Ok(())
}
