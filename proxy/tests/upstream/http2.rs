//! Many streams, limits, back-pressure and endings over HTTP/2.

use std::{cell::Cell, future::poll_fn, rc::Rc, time::Duration};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::{Limits, SendError};
use h2::Reason;
use http::{HeaderMap, HeaderValue, Request, header::HOST};
use http_body_util::{BodyExt, StreamBody};
use tokio::{sync::oneshot, task::spawn_local};

use crate::{
    get, h2c_limits, http2, post, read, run_on_worker,
    server::{Exchange, Http2, reset_observing_upstream},
    wait_until,
};

/// Watches stay open, everything else is answered.
async fn api_handler(mut exchange: Exchange) {
    if exchange.request.uri().query() == Some("watch=1") {
        let mut stream = exchange.open();
        let _ = poll_fn(|cx| stream.poll_reset(cx)).await;
    } else {
        let body = exchange.body().await;
        exchange.answer(body);
    }
}

#[test]
fn request_arrives_as_it_was_sent() {
    run_on_worker(async {
        let (server, upstream) = http2(|mut exchange| async move {
            let head = &exchange.request;
            assert_eq!(head.uri().scheme_str(), Some("http"));
            assert_eq!(head.headers()["x-test"], "yes");
            assert!(
                head.headers().get(HOST).is_none(),
                "the authority is the server's own, not the client's Host"
            );
            let authority = head.uri().authority().unwrap().to_string();
            let body = exchange.body().await;
            exchange.answer([authority.as_bytes(), b" ", &body].concat());
        })
        .await;
        let mut request = post("/api/v1/pods?labelSelector=a%3Db", "hello");
        request.headers_mut().insert("x-test", HeaderValue::from_static("yes"));
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static("evil.example"));
        let (status, body) = read(upstream.send(request).await).await;
        assert_eq!((status, body), (200, Bytes::from(format!("{} hello", server.address))));
        assert_eq!(*server.seen.borrow(), ["POST /api/v1/pods?labelSelector=a%3Db"]);
    });
}

fn watches_never_block(server_limit: u32) {
    run_on_worker(async move {
        let server = Http2 {
            max_streams: Some(server_limit),
            ..Http2::default()
        }
        .serve(api_handler)
        .await;
        let upstream = server.upstream(h2c_limits()).await;
        let mut watches = Vec::new();
        for _ in 0..250 {
            let upstream = Rc::clone(&upstream);
            watches.push(spawn_local(async move {
                upstream.send(get("/api/v1/pods?watch=1")).await.unwrap()
            }));
        }
        let mut open = Vec::new();
        for watch in watches {
            open.push(watch.await.unwrap());
        }
        assert_eq!(
            read(upstream.send(post("/api/v1/pods", "now")).await).await,
            (200, Bytes::from("now"))
        );
        let needed = 251_u32.div_ceil(server_limit) as usize;
        assert!(
            server.connections.get() <= needed + 1,
            "{} connections for {needed}",
            server.connections.get()
        );
        assert_eq!(upstream.stats().streams, 250);
        drop(open);
        assert_eq!(upstream.stats().streams, 0);
    });
}

#[test]
fn watches_never_block_request_where_server_allows_100_streams() {
    watches_never_block(100);
}

#[test]
fn watches_never_block_request_where_server_allows_10_streams() {
    watches_never_block(10);
}

#[test]
fn burst_at_start_opens_few_connections() {
    run_on_worker(async {
        let server = Http2 {
            max_streams: Some(100),
            ..Http2::default()
        }
        .serve(api_handler)
        .await;
        let upstream = server.upstream(h2c_limits()).await;
        let requests: Vec<_> = (0..200)
            .map(|_| {
                let upstream = Rc::clone(&upstream);
                spawn_local(async move { read(upstream.send(get("/")).await).await })
            })
            .collect();
        for request in requests {
            assert_eq!(request.await.unwrap().0, 200);
        }
        assert!(
            server.connections.get() <= 2,
            "{} connections",
            server.connections.get()
        );
    });
}

#[test]
fn requests_beyond_all_connections_wait_and_then_fail() {
    run_on_worker(async {
        let server = Http2 {
            max_streams: Some(1),
            ..Http2::default()
        }
        .serve(api_handler)
        .await;
        let limits = Limits {
            max_connections: 2,
            connect_timeout: Duration::from_millis(200),
            ..h2c_limits()
        };
        let upstream = server.upstream(limits).await;
        let first = upstream.send(get("/?watch=1")).await.unwrap();
        let _second = upstream.send(get("/?watch=1")).await.unwrap();
        let refused = upstream.send(get("/")).await;
        assert!(
            matches!(refused, Err(SendError::TooManyConnections { limit: 2 })),
            "{refused:?}"
        );
        let waiting = spawn_local({
            let upstream = Rc::clone(&upstream);
            async move { read(upstream.send(get("/")).await).await.0 }
        });
        wait_until(|| upstream.stats().waiting == 1).await;
        drop(first);
        assert_eq!(waiting.await.unwrap(), 200);
    });
}

#[test]
fn slow_reader_stops_server_and_nobody_else() {
    run_on_worker(async {
        let window = 100_000;
        let sent = Rc::new(Cell::new(0));
        let counted = Rc::clone(&sent);
        let server = Http2::default()
            .serve(move |mut exchange| {
                let sent = Rc::clone(&counted);
                async move {
                    if exchange.request.uri().path() != "/large" {
                        return exchange.answer("");
                    }
                    let mut stream = exchange.open();
                    loop {
                        stream.reserve_capacity(1000);
                        let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                            return;
                        };
                        stream.send_data(vec![0; room].into(), false).unwrap();
                        sent.set(sent.get() + room);
                    }
                }
            })
            .await;
        let upstream = server
            .upstream(Limits {
                stream_window: window,
                ..h2c_limits()
            })
            .await;
        let mut large = upstream.send(get("/large")).await.unwrap().into_body();
        wait_until(|| sent.get() >= window as usize).await;
        for _ in 0..10 {
            read(upstream.send(get("/small")).await).await;
        }
        assert_eq!(sent.get(), window as usize, "the window bounds what is under way");
        let mut taken = 0;
        while taken < 2 * window as usize {
            taken += large.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
        assert!(sent.get() > window as usize, "the window opens as data is taken");
    });
}

#[test]
fn dropping_body_resets_stream() {
    run_on_worker(async {
        let (upstream, seen) = reset_observing_upstream().await;
        drop(upstream.send(get("/?watch=1")).await.unwrap());
        assert_eq!(seen.await.unwrap(), Reason::CANCEL);
    });
}

#[test]
fn trailers_pass_in_both_directions() {
    run_on_worker(async {
        let (_, upstream) = http2(|mut exchange| async move {
            exchange.body().await;
            let trailers = exchange.request.body_mut().trailers().await.unwrap().unwrap();
            let mut stream = exchange.open();
            stream.send_data("data".into(), false).unwrap();
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("17"));
        let frames = [
            http_body::Frame::data(Bytes::from("x")),
            http_body::Frame::trailers(trailers.clone()),
        ];
        let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>)));
        let response = upstream.send(Request::post("/").body(body).unwrap()).await.unwrap();
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), "data");
    });
}

#[test]
fn early_response_does_not_wait_for_upload() {
    run_on_worker(async {
        let (_, upstream) = http2(|exchange| async move { exchange.answer("no need") }).await;
        let body = StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<Bytes>, std::io::Error>,
        >());
        let answer = read(upstream.send(Request::post("/").body(body).unwrap()).await).await;
        assert_eq!(answer, (200, Bytes::from("no need")));
    });
}

#[test]
fn answered_request_does_not_keep_connection_open() {
    run_on_worker(async {
        let (_, upstream) = http2(|exchange| async move { exchange.answer("end") }).await;
        for _ in 0..2 {
            assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        }
        upstream.shutdown().await;
        assert_eq!(upstream.stats().connections, 0);
        let (_, upstream) = http2(|exchange| async move {
            exchange.control.go_away();
            exchange.answer("last");
        })
        .await;
        assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        wait_until(|| upstream.stats().connections == 0).await;
    });
}

#[test]
fn shutdown_lets_requests_end_and_takes_no_longer() {
    run_on_worker(async {
        let (finish, finished) = oneshot::channel::<()>();
        let finished = Rc::new(Cell::new(Some(finished)));
        let (_, upstream) = http2(move |mut exchange| {
            let finished = finished.take();
            async move {
                let mut stream = exchange.open();
                finished.unwrap().await.unwrap();
                stream.send_data("end".into(), true).unwrap();
            }
        })
        .await;
        let response = upstream.send(get("/")).await;
        let drained = spawn_local({
            let upstream = Rc::clone(&upstream);
            async move { upstream.shutdown().await }
        });
        tokio::task::yield_now().await;
        assert!(matches!(
            upstream.send(get("/")).await,
            Err(SendError::Unreachable { .. })
        ));
        finish.send(()).unwrap();
        assert_eq!(read(response).await, (200, Bytes::from("end")));
        drained.await.unwrap();
        assert_eq!(upstream.stats().connections, 0);
    });
}
