use http_body_util::{BodyExt, Full};

use super::*;

fn plain_shape() -> BodyShape {
    BodyShape {
        pace: None,
        hold: None,
        cut_after: None,
        end_after: None,
        expired: false,
        reset: Reset::Cancel,
    }
}

fn shaped_body(
    bytes: &'static [u8],
    shape: BodyShape,
    encoding: Option<WatchEncoding>,
) -> impl Body<Data = Bytes, Error = BoxError> {
    let inner = Full::new(Bytes::from_static(bytes)).map_err(|never| match never {});
    ShapedBody::new(inner, shape, encoding, Rc::default())
}

/// A body that never sends anything, like an idle watch.
fn idle_body(shape: BodyShape, encoding: Option<WatchEncoding>) -> impl Body<Data = Bytes, Error = BoxError> {
    let never = http_body_util::StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, BoxError>>());
    ShapedBody::new(never, shape, encoding, Rc::default())
}

#[tokio::test(start_paused = true)]
async fn body_without_shape_is_unchanged() {
    let bytes = shaped_body(b"hello", plain_shape(), None)
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(bytes, "hello");
}

#[tokio::test(start_paused = true)]
async fn first_byte_is_held() {
    let start = Instant::now();
    let body = shaped_body(
        b"hello",
        BodyShape {
            hold: Some(Duration::from_secs(12)),
            ..plain_shape()
        },
        None,
    );
    assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(start.elapsed().as_secs(), 12);
}

#[tokio::test(start_paused = true)]
async fn body_is_sent_at_configured_pace() {
    static BYTES: [u8; 10_000] = [7; 10_000];
    let start = Instant::now();
    let body = shaped_body(
        &BYTES,
        BodyShape {
            pace: Some(1_000),
            ..plain_shape()
        },
        None,
    );
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), BYTES.len());
    assert!((9..=10).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn cut_sends_limited_bytes_and_then_reset() {
    for (reset, reason) in [
        (Reset::Cancel, h2::Reason::CANCEL),
        (Reset::InternalError, h2::Reason::INTERNAL_ERROR),
    ] {
        let mut body = Box::pin(shaped_body(
            b"hello",
            BodyShape {
                cut_after: Some(3),
                reset,
                ..plain_shape()
            },
            None,
        ));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hel");
        let error = body.frame().await.unwrap().unwrap_err();
        let source = std::error::Error::source(&*error)
            .unwrap()
            .downcast_ref::<h2::Error>()
            .unwrap();
        assert_eq!(source.reason(), Some(reason));
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn hang_ends_after_maximum_time() {
    let start = Instant::now();
    let mut body = Box::pin(shaped_body(
        b"hello",
        BodyShape {
            cut_after: Some(0),
            reset: Reset::Hang,
            ..plain_shape()
        },
        None,
    ));
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(start.elapsed(), LONGEST_HANG);
}

#[tokio::test(start_paused = true)]
async fn watch_ends_after_its_time_with_or_without_expired() {
    let shape = BodyShape {
        end_after: Some(Duration::from_secs(5)),
        expired: true,
        ..plain_shape()
    };
    let start = Instant::now();
    let bytes = idle_body(shape.clone(), Some(WatchEncoding::Json))
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(start.elapsed().as_secs(), 5);
    let event: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(event["object"]["code"], 410);
    let quiet = idle_body(
        BodyShape {
            expired: false,
            ..shape
        },
        Some(WatchEncoding::Json),
    );
    assert!(quiet.collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn event_under_way_is_finished_before_watch_ends() {
    static EVENT: &[u8] = b"{\"type\":\"ADDED\",\"object\":{}}\n";
    let shape = BodyShape {
        pace: Some(10),
        end_after: Some(Duration::from_millis(500)),
        expired: true,
        ..plain_shape()
    };
    let bytes = shaped_body(EVENT, shape, Some(WatchEncoding::Json))
        .collect()
        .await
        .unwrap()
        .to_bytes();
    let lines: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&bytes)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(lines.len(), 2, "{bytes:?}");
    assert_eq!(lines[1]["object"]["code"], 410);
}
