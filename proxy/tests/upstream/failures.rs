//! Requests that are or are not sent again over HTTP/2, and silence of server and client.

use std::{cell::Cell, rc::Rc, time::Duration};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::{BodyError, HeadTimeout, Limits, SendError};
use h2::Reason;
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::oneshot;

use crate::{
    assert_perhaps_executed, get, h2c_limits, http2, post, read, run_on_worker,
    server::{Http2, raw_server, reset_observing_upstream},
};

#[test]
fn refused_stream_is_sent_again_elsewhere_with_its_body() {
    run_on_worker(async {
        let (_, upstream) = http2(|mut exchange| async move {
            let body = exchange.body().await;
            if exchange.connection == 0 {
                exchange.reset(Reason::REFUSED_STREAM)
            } else {
                exchange.answer(body)
            }
        })
        .await;
        let body = vec![7_u8; 100_000];
        assert_eq!(
            read(upstream.send(post("/", body.clone())).await).await,
            (200, Bytes::from(body))
        );
        assert_eq!(upstream.stats().repeats, 1);
    });
}

#[test]
fn refused_stream_with_body_too_large_to_keep_is_not_processed() {
    run_on_worker(async {
        let server = Http2::default()
            .serve(|mut exchange| async move {
                exchange.body().await;
                exchange.reset(Reason::REFUSED_STREAM);
            })
            .await;
        let upstream = server
            .upstream(Limits {
                replay_buffer: 1000,
                ..h2c_limits()
            })
            .await;
        let failed = upstream.send(post("/", vec![0; 1001])).await.unwrap_err();
        assert!(
            matches!(failed, SendError::NotProcessed { .. }) && !failed.maybe_executed(),
            "{failed}"
        );
    });
}

#[test]
fn write_whose_connection_broke_is_not_repeated() {
    run_on_worker(async {
        let (server, upstream) = http2(|mut exchange| async move {
            exchange.body().await;
            if exchange.request.method() == http::Method::POST {
                exchange.control.close_tcp().await;
            } else {
                exchange.answer("");
            }
        })
        .await;
        assert_eq!(read(upstream.send(get("/warm")).await).await.0, 200);
        let failed = upstream.send(post("/", "once")).await.unwrap_err();
        assert_perhaps_executed(&failed);
        assert_eq!(*server.seen.borrow(), ["GET /warm", "POST /"]);
    });
}

#[test]
fn read_whose_reused_connection_broke_is_repeated_once() {
    run_on_worker(async {
        let cuts = Rc::new(Cell::new(0));
        let counted = Rc::clone(&cuts);
        let (server, upstream) = http2(move |exchange| {
            let cut = exchange.request.uri().path() == "/cut" && counted.get() == 0;
            if cut {
                counted.set(1);
            }
            async move {
                if cut {
                    exchange.control.close_tcp().await
                } else {
                    exchange.answer("ok")
                }
            }
        })
        .await;
        read(upstream.send(get("/warm")).await).await;
        assert_eq!(read(upstream.send(get("/cut")).await).await, (200, Bytes::from("ok")));
        assert_eq!(*server.seen.borrow(), ["GET /warm", "GET /cut", "GET /cut"]);
    });
}

#[test]
fn server_that_no_longer_answers_is_found_by_ping() {
    run_on_worker(async {
        let server = raw_server(|mut tcp, _| async move {
            // Speaks as far as SETTINGS, then never reads again.
            let connection = h2::server::handshake(&mut tcp).await.unwrap();
            std::future::pending::<()>().await;
            drop(connection);
        })
        .await;
        let ping = Duration::from_millis(20);
        let limits = Limits {
            ping_interval: ping,
            ping_timeout: ping,
            head_timeout: None,
            ..h2c_limits()
        };
        let upstream = server.upstream(limits).await;
        let failed = upstream.send(post("/", "")).await.unwrap_err();
        assert_perhaps_executed(&failed);
        assert_eq!(upstream.stats().connections, 0);
    });
}

#[test]
fn body_that_client_breaks_off_is_distinguished() {
    run_on_worker(async {
        let (_, upstream) = http2(|mut exchange| async move { drop(exchange.body().await) }).await;
        let frames = [
            Ok(http_body::Frame::data(Bytes::from("half"))),
            Err(std::io::Error::other("client gone")),
        ];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let failed = upstream.send(Request::post("/").body(body).unwrap()).await.unwrap_err();
        assert!(matches!(failed, SendError::RequestBody { .. }), "{failed:?}");
    });
}

#[test]
fn missing_head_runs_into_limit_of_its_request() {
    run_on_worker(async {
        let server = Http2::default()
            .serve(|exchange| async move {
                std::future::pending::<()>().await;
                drop(exchange);
            })
            .await;
        let upstream = server
            .upstream(Limits {
                head_timeout: None,
                ..h2c_limits()
            })
            .await;
        let mut request = get("/");
        let timeout = Duration::from_millis(20);
        request.extensions_mut().insert(HeadTimeout(Some(timeout)));
        let failed = upstream.send(request).await.unwrap_err();
        assert!(
            matches!(failed, SendError::HeadTimeout { timeout: limit } if limit == timeout),
            "{failed:?}"
        );
        assert_eq!(upstream.stats().streams, 0);
    });
}

#[test]
fn body_that_client_breaks_off_after_head_resets_stream() {
    run_on_worker(async {
        let (upstream, seen) = reset_observing_upstream().await;
        let (break_off, broken) = oneshot::channel::<()>();
        let end = async move {
            broken.await.unwrap();
            Err::<http_body::Frame<Bytes>, _>(std::io::Error::other("client gone"))
        };
        let body = StreamBody::new(Box::pin(futures_util::stream::once(end)));
        let mut response = upstream
            .send(Request::post("/").body(body).unwrap())
            .await
            .unwrap()
            .into_body();
        break_off.send(()).unwrap();
        let failed = response.frame().await.unwrap().unwrap_err();
        assert!(failed.downcast_ref::<BodyError>().is_some(), "{failed:?}");
        assert_eq!(seen.await.unwrap(), Reason::CANCEL);
    });
}
