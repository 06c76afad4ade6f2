use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;

use http::HeaderValue;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use super::*;
use crate::chain::in_flight::InFlightCounts;
use crate::chain::{Counter, Kind};
use crate::connection::StreamNotifier;
use crate::controller_state::list_views::tests::{READER, resumed_as};
use crate::controller_state::list_views::{KnownView, ListViews};
use crate::plugin::verdict::RequestEdit;

type Frames = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

struct TestWatch {
    notifier: Rc<StreamNotifier>,
    upstream: Frames,
    differs: Rc<Cell<bool>>,
    expired: Rc<Cell<u32>>,
    list_views: Arc<ListViews>,
    /// Counts of the chain that the watch began under, and of the chains after it.
    earlier: Arc<InFlightCounts>,
    later: Arc<InFlightCounts>,
    body: Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>,
}

fn test_watch(content_type: &'static str) -> TestWatch {
    let notifier = StreamNotifier::new();
    let (upstream, mut frames) = mpsc::channel(8);
    let inner = StreamBody::new(futures_util::stream::poll_fn(move |cx| frames.poll_recv(cx)));
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    let differs = Rc::new(Cell::new(false));
    let expired = Rc::new(Cell::new(0));
    let (earlier, later) = (InFlightCounts::new(), InFlightCounts::new());
    let recheck = {
        let (differs, later) = (Rc::clone(&differs), Arc::clone(&later));
        Box::new(move || {
            (!differs.get()).then(|| SameView {
                in_flight_guard: Counter::new(0).count(&later, Kind::Watch),
                again: None,
            })
        })
    };
    let count = {
        let expired = Rc::clone(&expired);
        Rc::new(move || expired.set(expired.get() + 1))
    };
    let list_views = Arc::new(ListViews::default());
    let body = Box::pin(WatchBody::new(
        inner,
        &headers,
        Watching {
            start: WatchStart {
                listener: notifier.listen(),
                in_flight_guard: Counter::new(0).count(&earlier, Kind::Watch),
            },
            recheck,
            again: None,
            on_expired: count,
            position: Some(list_views.start_anew(&READER, [].iter())),
        },
    ));
    TestWatch {
        notifier,
        upstream,
        differs,
        expired,
        list_views,
        earlier,
        later,
        body,
    }
}

impl TestWatch {
    async fn send(&self, bytes: &[u8]) {
        self.upstream
            .send(Ok(Frame::data(Bytes::copy_from_slice(bytes))))
            .await
            .unwrap();
    }

    async fn next(&mut self) -> Option<Bytes> {
        self.body.frame().await.map(|frame| frame.unwrap().into_data().unwrap())
    }

    /// The outcome of resuming the watch after it has ended, and after a list under another view.
    fn next_watch(self) -> KnownView {
        drop(self.body);
        let view = [RequestEdit::AndLabelSelector("shard=b".into())];
        self.list_views.list(&READER, view.iter(), true);
        resumed_as(&self.list_views, &READER, &view)
    }

    /// Numbers of watches that count for the chain under which the watch began, and for a later chain.
    fn watch_counts(&self) -> (u64, u64) {
        (self.earlier.sum().watches, self.later.sum().watches)
    }

    async fn is_pending(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.body.as_mut().poll_frame(cx).is_pending())).await
    }
}

const JSON: &str = "application/json;stream=watch";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf;stream=watch";

#[tokio::test]
async fn watch_continues_under_same_view_and_expires_under_another() {
    let mut watch = test_watch(JSON);
    watch.send(b"{\"type\":\"ADDED\"}\n").await;
    assert_eq!(watch.next().await.unwrap(), "{\"type\":\"ADDED\"}\n");
    assert!(watch.is_pending().await);
    watch.notifier.chain_changed();
    assert_eq!(watch.watch_counts(), (1, 0));
    assert!(watch.is_pending().await, "the same view");
    assert_eq!(watch.watch_counts(), (0, 1));
    watch.differs.set(true);
    watch.notifier.chain_changed();
    let event: serde_json::Value = serde_json::from_slice(&watch.next().await.unwrap()).unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(watch.next().await, None);
    assert_eq!(watch.expired.get(), 1);
    assert_eq!(watch.next_watch(), KnownView::Same, "the client was told");
}

#[tokio::test]
async fn watch_expires_after_current_event() {
    let mut watch = test_watch(JSON);
    watch.send(b"{\"type\":").await;
    assert!(watch.next().await.is_some());
    watch.differs.set(true);
    watch.notifier.chain_changed();
    assert!(watch.is_pending().await, "in the middle of an event");
    assert_eq!(watch.watch_counts(), (1, 0), "it still shows the earlier view");
    watch.send(b"\"ADDED\"}\n").await;
    assert_eq!(watch.next().await.unwrap(), "\"ADDED\"}\n");
    assert!(watch.next().await.unwrap().starts_with(b"{\"type\":\"ERROR\""));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn protobuf_frames_are_followed_byte_by_byte() {
    let mut watch = test_watch(PROTOBUF);
    for part in [&[0_u8, 0][..], &[0, 3, 1], &[2]] {
        watch.send(part).await;
        watch.next().await.unwrap();
    }
    watch.differs.set(true);
    watch.notifier.chain_changed();
    assert!(watch.is_pending().await, "one byte of the event is missing");
    watch.send(&[3]).await;
    assert_eq!(&watch.next().await.unwrap()[..], [3]);
    let event = watch.next().await.unwrap();
    let length = u32::from_be_bytes(event[..4].try_into().unwrap()) as usize;
    assert_eq!(length + 4, event.len());
    assert!(event.windows(5).any(|bytes| bytes == b"ERROR"));
}

#[tokio::test]
async fn watch_in_unknown_encoding_ends_without_event() {
    let mut watch = test_watch("application/cbor-seq");
    watch.differs.set(true);
    watch.notifier.chain_changed();
    assert_eq!(watch.next().await, None);
    assert_eq!(watch.next_watch(), KnownView::Other, "the client is still to be told");
}

#[tokio::test]
async fn draining_ends_watch_between_events() {
    let mut watch = test_watch(JSON);
    assert!(watch.is_pending().await);
    watch.notifier.end();
    assert_eq!(watch.next().await, None);
    assert_eq!(watch.expired.get(), 0);
}
