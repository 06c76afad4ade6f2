//! The same promises over HTTP/1.1, where a connection carries one request at a time.

use std::{cell::Cell, convert::Infallible, rc::Rc};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::Limits;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::Notify,
    task::spawn_local,
};

use crate::{
    assert_perhaps_executed, get, http1, post, read, run_on_worker,
    server::{Server, raw_server},
    wait_until,
};

/// Answers with method, path, host and body.
async fn serve_echo(tcp: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let host = request.headers()[header::HOST].to_str().unwrap().to_owned();
        assert!(request.headers().get(header::EXPECT).is_none());
        let mut answer = format!("{} {} {host} ", request.method(), request.uri()).into_bytes();
        answer.extend(request.into_body().collect().await.unwrap().to_bytes());
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(tcp), service)
        .await;
}

async fn echo_server() -> Server {
    raw_server(|tcp, _| serve_echo(tcp)).await
}

/// Reads one request head and a body of `Content-Length`; `None` at the end of the connection.
async fn read_request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |n| n.parse().unwrap());
    reader.read_exact(&mut vec![0; length]).await.unwrap();
    head.lines().next().map(str::to_owned)
}

#[test]
fn requests_reuse_connection_and_keep_their_form() {
    run_on_worker(async {
        let (server, upstream) = http1(|tcp, _| serve_echo(tcp)).await;
        let mut request = post("/api/v1/x?a=%20b", "body");
        request
            .headers_mut()
            .insert(header::HOST, "evil.example".parse().unwrap());
        request
            .headers_mut()
            .insert(header::EXPECT, "100-continue".parse().unwrap());
        let expected = format!("POST /api/v1/x?a=%20b {} body", server.address);
        assert_eq!(read(upstream.send(request).await).await, (200, Bytes::from(expected)));
        for _ in 0..5 {
            assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        }
        assert_eq!(server.connections.get(), 1);
    });
}

#[test]
fn concurrent_requests_take_connection_each_within_bound() {
    run_on_worker(async {
        let server = echo_server().await;
        let upstream = server
            .upstream(Limits {
                max_connections: 4,
                ..Limits::default()
            })
            .await;
        let requests: Vec<_> = (0..40)
            .map(|number| {
                let upstream = Rc::clone(&upstream);
                spawn_local(async move { read(upstream.send(post("/", format!("{number}"))).await).await.0 })
            })
            .collect();
        for request in requests {
            assert_eq!(request.await.unwrap(), 200);
        }
        assert!(
            (2..=4).contains(&server.connections.get()),
            "{} connections",
            server.connections.get()
        );
    });
}

#[test]
fn write_on_connection_that_server_has_closed_goes_out_on_new_one() {
    run_on_worker(async {
        let close = Rc::new(Notify::new());
        let closing = Rc::clone(&close);
        let (server, upstream) = http1(move |tcp, number| {
            let closing = Rc::clone(&closing);
            async move {
                if number == 0 {
                    tokio::select! { () = serve_echo(tcp) => {}, () = closing.notified() => {} }
                } else {
                    serve_echo(tcp).await;
                }
            }
        })
        .await;
        read(upstream.send(get("/")).await).await;
        close.notify_one();
        wait_until(|| upstream.stats().connections == 0).await;
        assert_eq!(read(upstream.send(post("/", "x")).await).await.0, 200);
        assert_eq!(server.connections.get(), 2);
    });
}

#[test]
fn write_that_was_received_is_not_repeated_and_read_is_once() {
    run_on_worker(async {
        let seen = Rc::new(Cell::new(0));
        let counted = Rc::clone(&seen);
        let (_, upstream) = http1(move |tcp, _| {
            let seen = Rc::clone(&counted);
            async move {
                let mut reader = BufReader::new(tcp);
                while let Some(line) = read_request(&mut reader).await {
                    seen.set(seen.get() + 1);
                    if line.contains("/cut") {
                        return;
                    }
                    reader
                        .get_mut()
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                        .await
                        .unwrap();
                }
            }
        })
        .await;
        read(upstream.send(get("/warm")).await).await;
        let failed = upstream.send(post("/cut", "once")).await.unwrap_err();
        assert_perhaps_executed(&failed);
        assert_eq!(seen.get(), 2);
        read(upstream.send(get("/warm")).await).await;
        assert!(upstream.send(get("/cut")).await.is_err());
        assert_eq!(seen.get(), 5, "the read went out twice");
    });
}

#[test]
fn dropping_body_closes_connection() {
    run_on_worker(async {
        let closed = Rc::new(Cell::new(false));
        let noticed = Rc::clone(&closed);
        let (_, upstream) = http1(move |tcp, _| {
            let closed = Rc::clone(&noticed);
            async move {
                let mut reader = BufReader::new(tcp);
                read_request(&mut reader).await.unwrap();
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
                reader.get_mut().write_all(head).await.unwrap();
                assert!(read_request(&mut reader).await.is_none());
                closed.set(true);
            }
        })
        .await;
        let mut watch = upstream.send(get("/?watch=1")).await.unwrap().into_body();
        assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "x");
        drop(watch);
        wait_until(|| closed.get()).await;
    });
}

#[test]
fn interim_responses_are_skipped_and_trailers_kept() {
    run_on_worker(async {
        let (_, upstream) = http1(|tcp, _| async move {
            let mut reader = BufReader::new(tcp);
            read_request(&mut reader).await.unwrap();
            let answer =
                b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\
                trailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 17\r\n\r\n";
            reader.get_mut().write_all(answer).await.unwrap();
        })
        .await;
        let body = upstream
            .send(get("/"))
            .await
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap();
        assert_eq!(body.trailers().unwrap()["x-sum"], "17");
        assert_eq!(body.to_bytes(), "ok");
    });
}
