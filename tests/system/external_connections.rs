//! Connections of external calls: what a target's protocol, many targets, and the sidecar's end do to them.

use anyhow::Context;
use ctrlmesh_tests::{DEADLINE, Target, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::external::{read_until, stand};

#[tokio::test]
async fn a_target_of_an_older_protocol_does_not_change_the_clients() -> anyhow::Result<()> {
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
    let (stand, _) = stand(vec![], &[]).await?;
    let mut client = TcpStream::connect(stand.sidecar.external().context("it is on")?).await?;
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
async fn an_answer_goes_on_while_many_others_are_called() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (stand, client) = stand(vec![], &["--workers", "1"]).await?;
    let mut held = client
        .stream(&format!("http://127.0.0.1:{}/hold", target.port()))
        .await?;
    assert_eq!(held.next().await?.as_deref(), Some(&b"first"[..]));
    let mut others = JoinSet::new();
    for number in 0..300_u16 {
        // Nobody listens there: only the places count, of which a thread keeps 256.
        let [high, low] = number.to_be_bytes();
        let (client, url) = (client.clone(), format!("http://127.7.{high}.{low}:{}/", target.port()));
        others.spawn(async move { anyhow::Ok(client.get(&url).await?.status) });
    }
    while let Some(status) = others.join_next().await {
        assert_eq!(status??, 503);
    }
    assert_eq!(stand.sidecar.metric("ctrlmesh_external_targets").await?, 256.0);
    assert_eq!(target.held(), 1, "it was not cut off");
    drop(held);
    wait_until("the target hears of its end", || async { Ok(target.held() == 0) }).await
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_end() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let (mut stand, _) = stand(vec![], &["--drain-timeout", "30"]).await?;
    let mut idle = TcpStream::connect(stand.sidecar.external().context("it is on")?).await?;
    let request = format!("GET http://127.0.0.1:{}/ HTTP/1.1\r\nhost: x\r\n\r\n", target.port());
    idle.write_all(request.as_bytes()).await?;
    read_until(&mut idle, b"hello").await?;
    let start = std::time::Instant::now();
    stand.sidecar.terminate()?;
    let ended = tokio::time::timeout(DEADLINE, idle.read(&mut [0; 8])).await?;
    assert!(ended.map_or(true, |read| read == 0));
    assert!(stand.sidecar.wait_end().await?.success(), "{}", stand.sidecar.log());
    assert!(start.elapsed().as_secs() < 15, "{:?}", start.elapsed());
    Ok(())
}
