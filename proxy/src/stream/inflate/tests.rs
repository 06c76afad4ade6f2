use std::io::Write;
use std::task::Waker;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{FutureExt, stream};
use http::HeaderMap;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use super::*;

type FrameResult = Result<Frame<Bytes>, BoxError>;

/// Length of the checksum and the length at the end of a member, in bytes.
const TRAILER_BYTES: usize = 8;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Lines that differ, so that they do not become a few bytes.
fn lines(count: u64) -> Vec<u8> {
    let lines = (0..count).map(|line| format!("{line} {}\n", line.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    lines.collect::<String>().into_bytes()
}

fn data(bytes: &[u8]) -> FrameResult {
    Ok(Frame::data(Bytes::copy_from_slice(bytes)))
}

fn inflated(frames: Vec<FrameResult>) -> InflatedBody<StreamBody<impl stream::Stream<Item = FrameResult> + Unpin>> {
    InflatedBody::new(StreamBody::new(stream::iter(frames)))
}

/// The content of these bytes, which come in frames of `size`.
async fn content_of(bytes: &[u8], size: usize) -> Result<Bytes, BoxError> {
    let frames = bytes.chunks(size).map(data).collect();
    Ok(inflated(frames).collect().await?.to_bytes())
}

async fn failure_of(bytes: &[u8]) -> InflateError {
    let error = content_of(bytes, 1000).await.unwrap_err();
    *error.downcast::<InflateError>().unwrap()
}

#[tokio::test]
async fn body_is_inflated_whatever_its_frames_are() {
    let content = lines(10_000);
    let compressed = gzip(&content);
    assert!(content.len() > 2 * MAX_FRAME_BYTES && compressed.len() > 2 * MAX_STEP_BYTES);
    for size in [1, 1000, compressed.len()] {
        assert_eq!(
            content_of(&compressed, size).await.unwrap(),
            content,
            "frames of {size}"
        );
    }
}

#[tokio::test]
async fn members_are_one_body() {
    let members = [gzip(b"one "), gzip(b""), gzip(b"two")].concat();
    for size in [1, 10, members.len()] {
        assert_eq!(content_of(&members, size).await.unwrap(), "one two", "frames of {size}");
    }
}

#[tokio::test]
async fn body_without_bytes_is_empty() {
    for frames in [vec![], vec![data(b""), data(b"")]] {
        let mut body = inflated(frames);
        assert!(!body.is_end_stream(), "hyper would end the response without an error");
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn body_that_ends_in_the_middle_is_a_broken_transfer() {
    let compressed = gzip(b"content");
    for length in 1..compressed.len() {
        let (part, _) = compressed.split_at(length);
        assert!(matches!(failure_of(part).await, InflateError::Unfinished), "{length}");
        let second = [compressed.as_slice(), part].concat();
        assert!(
            matches!(failure_of(&second).await, InflateError::Unfinished),
            "{length}"
        );
    }
    let (part, _) = compressed.split_at(compressed.len() - 1);
    let mut body = inflated(vec![data(part), Ok(Frame::trailers(HeaderMap::new()))]);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "content");
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn corrupt_body_is_a_broken_transfer() {
    let compressed = gzip(&lines(100));
    let first_of_length = compressed.len() - TRAILER_BYTES / 2;
    let first_of_checksum = compressed.len() - TRAILER_BYTES;
    for position in [0, 1, 2, first_of_checksum, first_of_length] {
        let mut corrupt = compressed.clone();
        corrupt[position] ^= 1;
        assert!(
            matches!(failure_of(&corrupt).await, InflateError::Corrupt(_)),
            "{position}"
        );
    }
    assert!(matches!(
        failure_of(b"{\"kind\":\"List\"}").await,
        InflateError::Corrupt(_)
    ));
}

#[tokio::test]
async fn bytes_after_the_end_break_the_transfer() {
    let compressed = gzip(b"content");
    for after in [&b"\0"[..], b"\0\0\0\0", b"{\"kind\":\"List\"}", b"\x1f\x8b"] {
        let mut body = inflated(vec![data(&compressed), data(after)]);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "content");
        assert!(body.frame().await.unwrap().is_err(), "{after:?}");
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn error_of_the_upstream_passes() {
    let compressed = gzip(b"content");
    for length in [5, compressed.len()] {
        let (part, _) = compressed.split_at(length);
        let body = inflated(vec![data(part), Err("reset".into())]);
        let error = body.collect().await.unwrap_err();
        assert_eq!(error.to_string(), "reset");
    }
}

#[tokio::test]
async fn trailers_follow_inflated_body() {
    let trailers = HeaderMap::from_iter([(http::header::EXPIRES, "0".parse().unwrap())]);
    let body = inflated(vec![data(&gzip(b"content")), Ok(Frame::trailers(trailers.clone()))]);
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
    assert_eq!(collected.to_bytes(), "content");
}

/// The bytes that the body gives before it waits for the upstream.
fn ready_bytes(body: &mut (impl Body<Data = Bytes, Error = BoxError> + Unpin)) -> Vec<u8> {
    let mut ready = Vec::new();
    while let Some(frame) = body.frame().now_or_never() {
        let frame = frame.unwrap().unwrap().into_data().unwrap();
        assert!(frame.len() <= MAX_FRAME_BYTES);
        ready.extend_from_slice(&frame);
    }
    ready
}

#[tokio::test]
async fn bytes_that_have_arrived_are_inflated_at_once() {
    let (sender, mut receiver) = mpsc::channel::<FrameResult>(1);
    let frames = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let mut body = InflatedBody::new(StreamBody::new(frames));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // The last is taken by the inflater as a whole, long before all of its output fits into frames.
    for event in [lines(1), lines(2), vec![b'v'; 5 * MAX_FRAME_BYTES + 1]] {
        encoder.write_all(&event).unwrap();
        encoder.flush().unwrap();
        sender.try_send(data(&std::mem::take(encoder.get_mut()))).unwrap();
        assert!(ready_bytes(&mut body) == event, "{} bytes", event.len());
    }
    sender.try_send(data(&encoder.finish().unwrap())).unwrap();
    drop(sender);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn output_is_made_in_bounded_frames_when_it_is_asked_for() {
    const CONTENT_BYTES: usize = 100 << 20;
    let zeros = vec![0; 1 << 20];
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..CONTENT_BYTES / zeros.len() {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < CONTENT_BYTES / 100);
    let mut body = inflated(vec![data(&bomb)]);
    let mut inflated_bytes = 0;
    while let Some(frame) = body.frame().await {
        let length = frame.unwrap().into_data().unwrap().len();
        assert!(length <= MAX_FRAME_BYTES, "{length}");
        inflated_bytes += length;
    }
    assert_eq!(inflated_bytes, CONTENT_BYTES);
}

#[test]
fn body_without_output_lets_other_tasks_run() {
    const MEMBERS: usize = 10 * MAX_SILENT_STEPS;
    let members = gzip(b"").repeat(MEMBERS);
    let single_bytes: Vec<FrameResult> = members.iter().map(|byte| data(&[*byte])).collect();
    let empty_frames: Vec<FrameResult> = (0..MEMBERS).map(|_| data(b"")).collect();
    for frames in [vec![data(&members)], single_bytes, empty_frames] {
        let mut body = inflated(frames);
        let mut cx = Context::from_waker(Waker::noop());
        let mut turns = 0;
        let end = loop {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Ready(end) => break end,
                Poll::Pending => turns += 1,
            }
        };
        assert!(end.is_none(), "{end:?}");
        assert!(turns >= MEMBERS / MAX_SILENT_STEPS, "{turns}");
    }
}
