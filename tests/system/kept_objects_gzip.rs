//! Lists and watches of which a plugin keeps some objects, and that an API server or a proxy before it compresses.

use std::io::Write;
use std::sync::Arc;

use ctrlmesh_tests::{Client, config_map};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::kept_objects::{ALL, FixedServer, list_of, start_env, start_env_behind};

/// Fields of a response with JSON in gzip.
pub(crate) const GZIP: [(&str, &str); 2] = [("content-type", "application/json"), ("content-encoding", "gzip")];

pub(crate) fn gzip(body: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn gzip_is_asked_for_if_the_client_accepts_it() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    for (accepted, expected) in [
        (Some("gzip, br"), "gzip"),
        (Some("gzip;q=0"), "identity"),
        (None, "identity"),
    ] {
        env.api.requests().clear();
        let client = accepted.map_or(env.client(), |accepted| {
            env.client().with_header("accept-encoding", accepted)
        });
        assert_eq!(client.get(ALL).await?.names(), ["a0", "a1", "a2"]);
        let seen = env.api.requests().recent();
        let list = seen.iter().find(|seen| seen.target == ALL).unwrap();
        assert_eq!(list.headers["accept-encoding"], expected, "{accepted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn list_in_gzip_is_filtered_and_comes_uncompressed() -> anyhow::Result<()> {
    let mine = config_map("a", "mine", "x");
    let foreign = config_map("b", "foreign", "x");
    let list = json!({ "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [mine, foreign] });
    let fields = [("etag", "\"1\""), ("vary", "accept-encoding")];
    let server = FixedServer::start(&[GZIP.as_slice(), &fields].concat(), gzip(&list.to_string())).await?;
    let address = server.env.sidecar.api_address();
    for client in [Client::http1(address), Client::http2(address)] {
        let answer = client.with_header("accept-encoding", "gzip").get(ALL).await?;
        assert_eq!((answer.status, answer.names()), (200, vec!["mine".to_owned()]));
        assert_eq!(answer.json()["items"][0], mine);
        for name in ["content-encoding", "content-length", "etag"] {
            assert!(!answer.headers.contains_key(name), "{name}");
        }
        assert_eq!(answer.headers["vary"], "accept-encoding");
    }
    Ok(())
}

#[tokio::test]
async fn list_in_gzip_that_is_cut_or_corrupt_is_a_broken_transfer() -> anyhow::Result<()> {
    let list = gzip(&list_of(&config_map("a", "mine", "x")));
    let (cut, _) = list.split_at(list.len() - 1);
    let mut corrupt = list.clone();
    // The first byte of the checksum.
    corrupt[list.len() - 8] ^= 1;
    let longer = [list.as_slice(), b"more"].concat();
    for body in [cut, corrupt.as_slice(), longer.as_slice(), b"{}"] {
        let server = FixedServer::start(&GZIP, body).await?;
        let address = server.env.sidecar.api_address();
        for client in [Client::http1(address), Client::http2(address)] {
            assert!(client.get(ALL).await.is_err());
        }
        let metric = "ctrlmesh_unfilterable_responses_total";
        assert_eq!(server.env.sidecar.metric_value(metric).await?, 2.0);
    }
    Ok(())
}

#[tokio::test]
async fn short_text_of_an_error_in_gzip_comes_uncompressed() -> anyhow::Result<()> {
    let headers = [("content-type", "text/plain"), ("content-encoding", "gzip")];
    let server = FixedServer::start_with_status(403, &headers, gzip("not for you")).await?;
    let answer = server.env.client().get(ALL).await?;
    assert_eq!((answer.status, &*answer.body), (403, b"not for you".as_slice()));
    assert!(!answer.headers.contains_key("content-encoding"));
    let long = gzip(&"x".repeat(1 << 20));
    assert!(long.len() < 64 << 10, "the bound is on the content");
    let server = FixedServer::start_with_status(403, &headers, long).await?;
    assert!(server.env.client().get(ALL).await.is_err());
    Ok(())
}

/// Sends what of a watch in gzip has been flushed after one event, and then nothing more.
async fn send_first_event(mut stream: TcpStream, flushed: &[u8]) -> anyhow::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut request).await? > 0, "the request was cut");
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n";
    let length = flushed.len();
    let head = format!("{head}transfer-encoding: chunked\r\n\r\n{length:x}\r\n");
    stream.write_all(&[head.as_bytes(), flushed, b"\r\n"].concat()).await?;
    std::future::pending().await
}

#[tokio::test]
async fn event_in_gzip_is_sent_when_it_happens() -> anyhow::Result<()> {
    let added = json!({ "type": "ADDED", "object": config_map("a", "mine", "x") });
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(format!("{added}\n").as_bytes())?;
    encoder.flush()?;
    let flushed = Arc::new(std::mem::take(encoder.get_mut()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let flushed = Arc::clone(&flushed);
            connections.spawn(async move { drop(send_first_event(stream, &flushed).await) });
        }
    });
    let env = start_env_behind(&server).await?;
    let mut watch = env.client().open_stream(&format!("{ALL}?watch=1")).await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    assert!(!watch.head.headers.contains_key("content-encoding"));
    assert_eq!(watch.next_event().await?, added);
    Ok(())
}
