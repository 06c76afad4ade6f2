//! Connections that stop being HTTP.

use std::rc::Rc;

use bytes::Bytes;
use ctrlmesh_proxy::upstream::Upgrade;
use http::header::{CONNECTION, UPGRADE};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::{get, http1, run_on_worker, wait_until};

async fn read_head(reader: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).await.unwrap(), 0);
    }
    head.to_lowercase()
}

fn exec_request() -> http::Request<http_body_util::Empty<Bytes>> {
    let mut request = get("/api/v1/namespaces/a/pods/b/exec?command=sh");
    request.headers_mut().insert(UPGRADE, "SPDY/3.1".parse().unwrap());
    request
}

#[test]
fn upgraded_stream_passes_bytes_both_ways_until_either_side_ends() {
    run_on_worker(async {
        let (_, upstream) = http1(|tcp, _| async move {
            let mut reader = BufReader::new(tcp);
            let head = read_head(&mut reader).await;
            assert!(
                head.contains("\r\nconnection: upgrade\r\n") && head.contains("\r\nupgrade: spdy/3.1\r\n"),
                "{head}"
            );
            // The first bytes of the new protocol come in the same packet as the head.
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\nhello ";
            reader.get_mut().write_all(answer).await.unwrap();
            let mut sent = Vec::new();
            reader.read_to_end(&mut sent).await.unwrap();
            reader.get_mut().write_all(&sent).await.unwrap();
        })
        .await;
        let Upgrade::Switched(head, mut stream) = upstream.upgrade(exec_request()).await.unwrap() else {
            panic!("not switched")
        };
        assert_eq!(
            (head.status().as_u16(), &head.headers()[UPGRADE]),
            (101, &"SPDY/3.1".parse().unwrap())
        );
        assert_eq!(head.headers()[CONNECTION], "Upgrade");
        stream.io().write_all(b"echo").await.unwrap();
        stream.io().shutdown().await.unwrap();
        let mut all = String::new();
        stream.io().read_to_string(&mut all).await.unwrap();
        assert_eq!(
            all, "hello echo",
            "half-close reaches the server, and its answer still arrives"
        );
        assert_eq!(upstream.stats().connections, 1);
        drop(stream);
        wait_until(|| upstream.stats().connections == 0).await;
    });
}

#[test]
fn server_that_does_not_switch_answers_as_usual() {
    run_on_worker(async {
        let (_, upstream) = http1(|tcp, _| async move {
            let mut reader = BufReader::new(tcp);
            read_head(&mut reader).await;
            reader
                .get_mut()
                .write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
                .await
                .unwrap();
        })
        .await;
        let Upgrade::Refused(response) = upstream.upgrade(exec_request()).await.unwrap() else {
            panic!("switched")
        };
        assert_eq!(response.status(), 403);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "no");
        let weak = Rc::downgrade(&upstream);
        drop(upstream);
        assert!(weak.upgrade().is_none());
    });
}
