use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::Instant;

use super::*;
use crate::connection::{HEAD_TIMEOUT, MAX_DISCARDED};

const TIMEOUTS: Timeouts = Timeouts {
    head: HEAD_TIMEOUT,
    idle: Duration::from_secs(120),
};

/// Buffer for the largest body of these tests, so that a client can send it before any of it is read.
const ROOM: usize = 1 << 20;

/// Refuses each request after a second, without reading its body, as a plugin may.
async fn refuse_all(stream: DuplexStream) {
    let connection = Rc::new(Connection::default());
    connection.activity().set_http1();
    let service = service_fn(|request: Request<Incoming>| {
        let connection = Rc::clone(&connection);
        async move {
            let request = IncomingBody::new(&connection, request);
            let _guard = connection.begin_request();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(request);
            let mut refused = Response::new(ClientBody::full(Bytes::from_static(b"no"), None));
            *refused.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            connection.finish(Ok::<_, BoxError>(refused))
        }
    });
    let _ = serve_http1(&StreamNotifier::new(), &connection, stream, TIMEOUTS, service).await;
}

/// The result of `act` on a client's connection.
async fn with_client<T>(act: impl AsyncFnOnce(&mut DuplexStream) -> T) -> T {
    let (mut client, server) = tokio::io::duplex(ROOM);
    tokio::select! {
        seen = async {
            let seen = act(&mut client).await;
            drop(client);
            seen
        } => seen,
        () = async {
            refuse_all(server).await;
            std::future::pending().await
        } => unreachable!("it is pending"),
    }
}

async fn read_response(client: &mut DuplexStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\nno") {
        read.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(read).unwrap()
}

async fn send_post(client: &mut DuplexStream, fields: &str) {
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
}

/// The time for which the connection stays open from now on.
async fn time_to_end(client: &mut DuplexStream) -> Duration {
    let start = Instant::now();
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn connection_is_idle_and_usable_after_refused_body_arrives() {
    for fields in ["content-length: 4\r\n", "transfer-encoding: chunked\r\n"] {
        let rest: &[u8] = if fields.contains("chunked") {
            b"4\r\nbody\r\n0\r\n\r\n"
        } else {
            b"body"
        };
        for is_late in [false, true] {
            let idle = with_client(async |client| {
                send_post(client, fields).await;
                if !is_late {
                    // By then the head has been read, and the response has not been sent.
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    client.write_all(rest).await.unwrap();
                }
                let refused = read_response(client).await;
                assert!(
                    refused.starts_with("HTTP/1.1 429") && !refused.contains("close"),
                    "{refused}"
                );
                if is_late {
                    tokio::time::sleep(HEAD_TIMEOUT / 2).await;
                    client.write_all(rest).await.unwrap();
                }
                tokio::time::sleep(3 * HEAD_TIMEOUT).await;
                send_post(client, "").await;
                read_response(client).await;
                time_to_end(client).await
            })
            .await;
            assert_eq!(idle.as_secs(), TIMEOUTS.idle.as_secs(), "{fields} {is_late}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connection_ends_after_head_timeout_when_refused_body_does_not_arrive() {
    let time = with_client(async |client| {
        send_post(client, "content-length: 4\r\n").await;
        read_response(client).await;
        time_to_end(client).await
    })
    .await;
    assert_eq!(time, HEAD_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn response_has_connection_close_when_body_is_too_long_or_may_not_arrive() {
    let long = format!("content-length: {}\r\n", MAX_DISCARDED + 1);
    for fields in [long.as_str(), "content-length: 4\r\nexpect: 100-continue\r\n"] {
        let refused = with_client(async |client| {
            send_post(client, fields).await;
            let refused = read_response(client).await;
            time_to_end(client).await;
            refused
        })
        .await;
        let is_final = refused.starts_with("HTTP/1.1 429");
        assert!(is_final && refused.contains("connection: close"), "{fields}{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn discarded_bytes_are_bounded() {
    let size = usize::try_from(MAX_DISCARDED).unwrap();
    let chunk = [format!("{size:x}\r\n").as_bytes(), &vec![b'x'; size], b"\r\n"].concat();
    for (last, is_kept) in [(&b"0\r\n\r\n"[..], true), (b"1\r\nx\r\n", false)] {
        with_client(async |client| {
            send_post(client, "transfer-encoding: chunked\r\n").await;
            read_response(client).await;
            client.write_all(&chunk).await.unwrap();
            client.write_all(last).await.unwrap();
            if is_kept {
                send_post(client, "").await;
                read_response(client).await;
            } else {
                assert_eq!(time_to_end(client).await, Duration::ZERO);
            }
        })
        .await;
    }
}
