//! Servers that shut connections down while they are in use.

use std::{cell::Cell, collections::HashMap, rc::Rc, time::Duration};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::Limits;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    task::spawn_local,
};

use crate::{
    get, h2c_limits, http2, post, read, run_on_worker,
    server::{Http2, raw_server},
    wait_until,
};

#[test]
fn no_request_fails_or_is_doubled_while_server_sends_goaway_again_and_again() {
    run_on_worker(async {
        let handled = Rc::new(Cell::new(0_u32));
        let counted = Rc::clone(&handled);
        let (server, upstream) = http2(move |mut exchange| {
            counted.set(counted.get() + 1);
            let shut_down = counted.get().is_multiple_of(20);
            async move {
                if shut_down {
                    exchange.control.go_away();
                }
                let body = exchange.body().await;
                exchange.answer(body);
            }
        })
        .await;
        let senders: Vec<_> = (0..40)
            .map(|sender| {
                let upstream = Rc::clone(&upstream);
                spawn_local(async move {
                    for number in 0..25 {
                        let body = format!("{sender}/{number}").repeat(1000);
                        assert_eq!(
                            read(upstream.send(post("/", body.clone())).await).await,
                            (200, Bytes::from(body))
                        );
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await.unwrap();
        }
        assert_eq!(handled.get(), 1000, "each POST reached a handler exactly once");
        assert!(server.connections.get() > 10, "the server did shut connections down");
    });
}

#[test]
fn watch_goes_on_after_goaway_and_new_requests_go_elsewhere() {
    run_on_worker(async {
        let more = Rc::new(Notify::new());
        let go_on = Rc::clone(&more);
        let (server, upstream) = http2(move |mut exchange| {
            let go_on = Rc::clone(&go_on);
            async move {
                if exchange.request.uri().path() != "/watch" {
                    let connection = exchange.connection.to_string();
                    return exchange.answer(connection);
                }
                let mut stream = exchange.open();
                exchange.control.go_away();
                go_on.notified().await;
                stream.send_data("event".into(), true).unwrap();
            }
        })
        .await;
        let watch = upstream.send(get("/watch")).await.unwrap();
        wait_until(|| server.connections.get() == 1).await;
        // The GOAWAY may still be under way: the first of these may yet use the old connection.
        let mut answered_by = read(upstream.send(get("/")).await).await.1;
        while answered_by == "0" {
            answered_by = read(upstream.send(get("/")).await).await.1;
        }
        assert_eq!(answered_by, "1");
        more.notify_one();
        assert_eq!(watch.into_body().collect().await.unwrap().to_bytes(), "event");
        wait_until(|| upstream.stats().connections == 1).await;
    });
}

/// One HTTP/2 frame by hand: type, flags, stream, payload.
async fn write_frame(tcp: &mut TcpStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    tcp.write_all(&frame).await.unwrap();
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Waits for two requests; answers the first, and says with GOAWAY that it did not look at the second.
async fn answer_first_and_go_away(mut tcp: TcpStream) {
    tcp.read_exact(&mut [0; 24]).await.unwrap();
    write_frame(&mut tcp, SETTINGS, 0, 0, &[]).await;
    let mut streams = Vec::new();
    while streams.len() < 2 {
        let mut head = [0; 9];
        tcp.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        tcp.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if head[3] == HEADERS {
            streams.push(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
    }
    let last_stream_and_no_error = [streams[0].to_be_bytes(), [0; 4]].concat();
    write_frame(&mut tcp, GOAWAY, 0, 0, &last_stream_and_no_error).await;
    // END_STREAM and END_HEADERS; 0x88 is ":status: 200" in HPACK's static table.
    write_frame(&mut tcp, HEADERS, 0x5, streams[0], &[0x88]).await;
    let _ = tcp.read_to_end(&mut Vec::new()).await;
}

#[test]
fn requests_above_last_stream_of_goaway_are_sent_again() {
    run_on_worker(async {
        let bodies = Rc::new(std::cell::RefCell::new(HashMap::new()));
        let got = Rc::clone(&bodies);
        let second = Http2::default()
            .serve(move |mut exchange| {
                let got = Rc::clone(&got);
                async move {
                    let body = exchange.body().await;
                    got.borrow_mut().insert(exchange.request.uri().path().to_owned(), body);
                    exchange.answer("again");
                }
            })
            .await;
        let address = second.address;
        let server = raw_server(move |mut tcp, number| async move {
            if number == 0 {
                answer_first_and_go_away(tcp).await;
            } else {
                let mut on = TcpStream::connect(address).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut tcp, &mut on).await;
            }
        })
        .await;
        let upstream = server.upstream(h2c_limits()).await;
        let first = spawn_local({
            let upstream = Rc::clone(&upstream);
            async move { read(upstream.send(post("/a", "a")).await).await }
        });
        let second = read(upstream.send(post("/b", "b")).await).await;
        let mut answers = [first.await.unwrap().1, second.1];
        answers.sort();
        assert_eq!(
            answers,
            ["", "again"],
            "one answered by the first connection, the other sent again"
        );
        assert_eq!(bodies.borrow().len(), 1);
        assert!(
            bodies
                .borrow()
                .iter()
                .all(|(path, body)| path.as_bytes()[1..] == body[..])
        );
        assert_eq!(upstream.stats().repeats, 1);
    });
}

#[test]
fn unused_connections_are_closed_except_last() {
    run_on_worker(async {
        let server = Http2 {
            max_streams: Some(1),
            ..Http2::default()
        }
        .serve(|mut exchange| async move {
            exchange.open().send_data("".into(), true).unwrap();
        })
        .await;
        let limits = Limits {
            idle_timeout: Duration::from_millis(30),
            ..h2c_limits()
        };
        let upstream = server.upstream(limits).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(upstream.send(get("/")).await.unwrap());
        }
        drop(open);
        wait_until(|| upstream.stats().connections == 1).await;
        assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
    });
}
