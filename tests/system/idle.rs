//! Idle connections: kept for longer than clients keep them, then closed without losing a request.

use std::time::Duration;

use anyhow::Context;
use ctrlmesh_tests::{DEADLINE, TestEnv};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::external::read_until;

/// Shorter than the deadline of a request head, so that the two can be distinguished.
const IDLE: Duration = Duration::from_secs(2);
const HEAD: Duration = Duration::from_secs(10);

async fn start_env() -> anyhow::Result<TestEnv> {
    let flags = ["--idle-timeout", "2", "--external-address", "127.0.0.1:0"];
    TestEnv::start_with(vec![], &flags).await
}

/// The time for which the other side keeps the connection open from now on.
async fn time_to_end(stream: &mut TcpStream) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut Vec::new())).await?;
    Ok(start.elapsed())
}

/// Kind and payload of the next frame.
async fn read_frame(stream: &mut TcpStream) -> anyhow::Result<(u8, Vec<u8>)> {
    let mut head = [0; 9];
    timeout(DEADLINE, stream.read_exact(&mut head)).await??;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut payload).await?;
    Ok((head[3], payload))
}

#[tokio::test]
async fn idle_connections_end_after_the_idle_time() -> anyhow::Result<()> {
    let env = start_env().await?;
    let external = env.sidecar.external_address().context("it is on")?;
    for (address, request) in [
        (
            env.sidecar.api_address(),
            "GET /api/v1/configmaps HTTP/1.1\r\nhost: x\r\n\r\n",
        ),
        (external, "GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
    ] {
        let mut used = TcpStream::connect(address).await?;
        used.write_all(request.as_bytes()).await?;
        read_until(&mut used, b"}").await?;
        let mut unused = TcpStream::connect(address).await?;
        for stream in [&mut used, &mut unused] {
            let time = time_to_end(stream).await?;
            assert!(time < HEAD, "{address}: {time:?}");
        }
    }
    let mut unused = TcpStream::connect(env.sidecar.admin_address()).await?;
    let time = time_to_end(&mut unused).await?;
    assert!(time > IDLE / 2 && time < HEAD, "{time:?}");
    Ok(())
}

#[tokio::test]
async fn idle_http2_connection_gets_goaway() -> anyhow::Result<()> {
    const GOAWAY: u8 = 7;
    const PING: u8 = 6;
    const SETTINGS: u8 = 4;
    let env = start_env().await?;
    let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await?;
    loop {
        let (kind, payload) = read_frame(&mut stream).await?;
        match kind {
            GOAWAY => {
                assert_eq!(payload.get(4..8), Some(&[0; 4][..]), "without an error");
                break;
            }
            SETTINGS if payload.is_empty() => {}
            SETTINGS => stream.write_all(b"\0\0\0\x04\x01\0\0\0\0").await?,
            PING => panic!("it is asked whether it is there before it is told of the end"),
            _ => {}
        }
    }
    Ok(())
}

#[tokio::test]
async fn unfinished_head_is_cut_off_after_its_time() -> anyhow::Result<()> {
    let flags = ["--idle-timeout", "3600"];
    let env = TestEnv::start_with(vec![], &flags).await?;
    let mut slow = TcpStream::connect(env.sidecar.api_address()).await?;
    slow.write_all(b"GET /api/v1/configmaps HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    read_until(&mut slow, b"}").await?;
    slow.write_all(b"GET /api").await?;
    let time = time_to_end(&mut slow).await?;
    assert!(time > HEAD / 2 && time < HEAD * 2, "{time:?}");
    Ok(())
}
