use std::future::poll_fn;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::coop::{consume_budget, has_budget_remaining};

use super::*;

const TIMEOUTS: Timeouts = Timeouts {
    head: Duration::from_secs(10),
    idle: Duration::from_secs(120),
};
const SECOND: Duration = Duration::from_secs(1);

fn observed_connection(is_http1: bool) -> (Activity, Deadlines, ObservedStream<DuplexStream>, DuplexStream) {
    let (client, server) = tokio::io::duplex(64);
    let activity = Activity::default();
    if is_http1 {
        activity.set_http1();
    }
    let deadlines = Deadlines::new(activity.clone(), TIMEOUTS);
    let stream = ObservedStream::new(server, activity.clone());
    (activity, deadlines, stream, client)
}

/// The next limit that is exceeded, and after how many seconds.
async fn next_expiry(deadlines: &mut Deadlines) -> (Expired, u64) {
    let start = Instant::now();
    let expired = poll_fn(|cx| deadlines.poll_expired(cx)).await;
    (expired, start.elapsed().as_secs())
}

async fn expires_not_within(deadlines: &mut Deadlines, time: Duration) {
    let expired = tokio::time::timeout(time, next_expiry(deadlines)).await;
    assert!(expired.is_err(), "{expired:?}");
}

#[tokio::test(start_paused = true)]
async fn idle_connection_expires_after_idle_time_since_its_last_request() {
    let (activity, mut deadlines, _stream, _client) = observed_connection(true);
    expires_not_within(&mut deadlines, 100 * SECOND).await;
    let request = activity.begin();
    expires_not_within(&mut deadlines, 1000 * SECOND).await;
    drop(request);
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
    let late = activity.begin();
    expires_not_within(&mut deadlines, 1000 * SECOND).await;
    drop(late);
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::CloseGrace, 10));
}

#[tokio::test(start_paused = true)]
async fn timer_wakes_the_task_that_has_polled_last() {
    let (_activity, mut deadlines, _stream, _client) = observed_connection(true);
    let mut poll_from_another_task = || {
        let mut other = Context::from_waker(Waker::noop());
        deadlines.poll_expired(&mut other)
    };
    assert!((0..2).all(|_| poll_from_another_task().is_pending()));
    let expired = tokio::time::timeout(200 * SECOND, next_expiry(&mut deadlines)).await;
    assert_eq!(expired, Ok((Expired::Idle, 120)));
}

#[tokio::test(start_paused = true)]
async fn timer_wakes_a_task_that_had_used_up_its_budget() {
    let (_activity, mut deadlines, _stream, _client) = observed_connection(true);
    poll_fn(|cx| {
        while has_budget_remaining() {
            let _ = pin!(consume_budget()).poll(cx);
        }
        assert!(deadlines.poll_expired(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let expired = tokio::time::timeout(200 * SECOND, next_expiry(&mut deadlines)).await;
    assert_eq!(expired, Ok((Expired::Idle, 120)));
}

#[tokio::test(start_paused = true)]
async fn connection_is_not_idle_while_one_of_two_requests_remains() {
    let (activity, mut deadlines, _stream, _client) = observed_connection(false);
    let (first, second) = (activity.begin(), activity.begin());
    drop(first);
    expires_not_within(&mut deadlines, 1000 * SECOND).await;
    drop(second);
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
}

#[tokio::test(start_paused = true)]
async fn unfinished_head_expires_although_bytes_keep_arriving() {
    let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
    drop(activity.begin());
    expires_not_within(&mut deadlines, 100 * SECOND).await;
    for _ in 0..3 {
        client.write_all(b"G").await.unwrap();
        stream.read_u8().await.unwrap();
        expires_not_within(&mut deadlines, 3 * SECOND).await;
    }
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Head, 1));
}

#[tokio::test(start_paused = true)]
async fn pipelined_request_or_body_does_not_count_as_next_head() {
    let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
    let request = activity.begin();
    client.write_all(b"body").await.unwrap();
    stream.read_exact(&mut [0; 4]).await.unwrap();
    drop(request);
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
}

#[tokio::test(start_paused = true)]
async fn frames_without_requests_do_not_keep_http2_connection() {
    let (_activity, mut deadlines, mut stream, mut client) = observed_connection(false);
    expires_not_within(&mut deadlines, 60 * SECOND).await;
    let (preface, ping) = ([0; 24], *b"\0\0\x08\x06\0\0\0\0\0pingping");
    client.write_all(&[&preface[..], &ping].concat()).await.unwrap();
    stream.read_exact(&mut [0; 24 + 17]).await.unwrap();
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 60));
}

#[tokio::test(start_paused = true)]
async fn http2_head_that_has_begun_expires_beside_other_requests() {
    let (activity, mut deadlines, mut stream, mut client) = observed_connection(false);
    let _other = activity.begin();
    let (preface, headers) = ([0; 24], *b"\0\0\x08\x01\0\0\0\0\x01half");
    client.write_all(&[&preface[..], &headers].concat()).await.unwrap();
    stream.read_exact(&mut [0; 24 + 13]).await.unwrap();
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Head, 10));
}

#[tokio::test]
async fn one_poll_of_a_connection_reads_one_portion_of_heads() {
    let (client, server) = tokio::io::duplex(1 << 20);
    let (activity, mut client) = (Activity::default(), client);
    let mut stream = ObservedStream::new(server, activity.clone());
    let heads = [&[0, 0x20, 0, 1, 4, 0, 0, 0, 1][..], &[0; 0x2000]].concat();
    client
        .write_all(&[&[0; 24][..], &heads, &heads].concat())
        .await
        .unwrap();
    let mut read = |bytes: usize| {
        let mut bytes = vec![0; bytes];
        let mut buffer = ReadBuf::new(&mut bytes);
        let polled = Pin::new(&mut stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        polled.is_ready() && !buffer.filled().is_empty()
    };
    assert!(read(24 + heads.len()));
    for _ in 0..3 {
        assert!(!read(1), "hyper reads after each request that it accepts");
    }
    activity.begin_poll();
    assert!(read(1));
}

#[tokio::test]
async fn arriving_head_reserves_memory_and_is_refused_at_limit() {
    let memory = RequestMemory::default();
    let connection = || {
        let (client, server) = tokio::io::duplex(1 << 20);
        let activity = Activity::new(memory.clone());
        activity.set_http1();
        (client, ObservedStream::new(server, activity.clone()), activity)
    };
    let send = async |(client, stream): (&mut DuplexStream, &mut ObservedStream<DuplexStream>), bytes: usize| {
        client.write_all(&vec![b'x'; bytes]).await.unwrap();
        stream.read_exact(&mut vec![0; bytes]).await.map(drop)
    };
    let (mut client, mut stream, activity) = connection();
    send((&mut client, &mut stream), FREE_HEAD).await.unwrap();
    send((&mut client, &mut stream), 100).await.unwrap();
    assert!(memory.take(memory.bound() - 100) && !memory.take(1));
    let (mut other, mut small, _) = connection();
    send((&mut other, &mut small), FREE_HEAD).await.unwrap();
    let refused = send((&mut other, &mut small), 1).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
    let _request = activity.begin();
    assert!(memory.take(100), "the head is whole");
    send((&mut client, &mut stream), 1 << 16).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn response_that_is_still_being_read_keeps_its_connection() {
    let (activity, mut deadlines, mut stream, mut client) = observed_connection(true);
    drop(activity.begin());
    let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
    assert!(unread.is_err(), "the client has room for 64 bytes");
    for _ in 0..3 {
        expires_not_within(&mut deadlines, 100 * SECOND).await;
        client.read_exact(&mut [0; 64]).await.unwrap();
        let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
        assert!(unread.is_err(), "some of it is read each time");
    }
    client.read_exact(&mut [0; 64]).await.unwrap();
    stream.write_all(&[0; 1]).await.unwrap();
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Idle, 120));
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_nothing_keeps_its_connection_for_idle_time() {
    let (activity, mut deadlines, mut stream, _client) = observed_connection(false);
    let request = activity.begin();
    let unread = tokio::time::timeout(SECOND, stream.write_all(&[0; 100])).await;
    assert!(unread.is_err(), "the client has room for 64 bytes");
    expires_not_within(&mut deadlines, 1000 * SECOND).await;
    drop(request);
    assert_eq!(next_expiry(&mut deadlines).await, (Expired::Unread, 120));
}
