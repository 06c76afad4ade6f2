//! One HTTP/2 connection to the API server: opening it, keeping it alive, and one exchange on it.
//!
//! Uses `h2` itself and not hyper, because the pool must know how many streams the server allows, and a retry must know whether GOAWAY or
//! RST_STREAM means "not processed". Leaves choosing a connection to `pool.rs`, and the reaction to a failure to the loop in `upstream.rs`.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::{Pin, pin},
    rc::{Rc, Weak},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::{Builder, ResponseFuture, SendRequest},
};
use http::{Request, Response};

use super::{
    Upstream,
    attempt::Failure,
    connect::Transport,
    error::{BoxError, ConnectError},
    keepalive::{Keepalive, MonitoredStream},
    limits::Limits,
    request::RequestBody,
    unread::{UnreadResponse, UnreadResponses},
    upload::{Upload, Uploaded},
};

/// Value of `current_max_send_streams` until the server's SETTINGS arrive. No server sends this number, because SETTINGS values have 32
/// bits.
const BEFORE_SETTINGS: usize = usize::MAX - 1;

/// Maximum size of response frames. Large lists arrive in fewer pieces than with the default of 16 KiB.
const MAX_FRAME: u32 = 64 << 10;

/// Maximum size of all response headers together, decoded: the limit of Go's servers for request headers.
const MAX_HEADER_LIST: u32 = 1 << 20;

/// Maximum amount that a stream may queue in the connection beyond the server's window.
const MAX_SEND_BUFFER: usize = 128 << 10;

type Io = MonitoredStream<Transport>;
/// The future that reads and writes; its owner drives the connection.
pub(super) type Driver = h2::client::Connection<Io, Bytes>;

/// A connection as the pool sees it. When the last `Rc` is dropped, it closes itself once its streams have ended.
#[derive(Debug)]
pub(super) struct Connection {
    /// The stream of a response that was read to its end, until the next request is sent. `h2` wakes the driver when an ended stream is
    /// dropped, unless it is about to run anyway.
    ended: RefCell<Option<RecvStream>>,
    send: SendRequest<Bytes>,
    most_streams: usize,
    /// The server's limit when it was last read.
    limit: Cell<usize>,
    active: Cell<usize>,
    /// Number of streams that got a response, which proves that the connection works.
    answered: Cell<u64>,
    /// [`Upstream::sweeps`] when the last stream ended.
    idle_since: Cell<u64>,
    pub(super) generation: u64,
    unread: Rc<UnreadResponses>,
    pool: Weak<Upstream>,
}

#[derive(Debug)]
pub(super) struct Established {
    pub(super) connection: Rc<Connection>,
    pub(super) driver: Driver,
    pub(super) keepalive: Keepalive,
}

/// Sends the preface and waits for the server's SETTINGS, so that its limit on streams is known before the first request.
pub(super) async fn establish(
    stream: Transport,
    generation: u64,
    pool: &Rc<Upstream>,
) -> Result<Established, ConnectError> {
    let limits = pool.limits();
    let authority = || pool.target().authority().to_string();
    let broken = |source: BoxError| ConnectError::Handshake {
        authority: authority(),
        source,
    };
    let has_traffic = Rc::new(Cell::new(false));
    let io = MonitoredStream {
        io: stream,
        has_traffic: Rc::clone(&has_traffic),
        unread: Rc::clone(&limits.unread),
    };
    let (send, mut driver) = client_builder(limits)
        .handshake(io)
        .await
        .map_err(|error| broken(error.into()))?;
    wait_for_settings(&mut driver, &send).await.map_err(broken)?;
    if send.current_max_send_streams() == 0 {
        return Err(ConnectError::NoStreams { authority: authority() });
    }
    let pings = driver.ping_pong().ok_or_else(|| broken("no pings".into()))?;
    let connection = Rc::new(Connection {
        ended: RefCell::new(None),
        limit: Cell::new(send.current_max_send_streams().min(limits.max_streams_per_connection)),
        send,
        most_streams: limits.max_streams_per_connection,
        active: Cell::new(0),
        answered: Cell::new(0),
        idle_since: Cell::new(pool.sweeps()),
        generation,
        unread: Rc::clone(&limits.unread),
        pool: Rc::downgrade(pool),
    });
    let keepalive = Keepalive {
        pings,
        has_traffic,
        interval: limits.ping_interval,
        pong_timeout: limits.ping_timeout,
    };
    Ok(Established {
        connection,
        driver,
        keepalive,
    })
}

/// Drives the connection until the server's SETTINGS have arrived.
async fn wait_for_settings(driver: &mut Driver, send: &SendRequest<Bytes>) -> Result<(), BoxError> {
    poll_fn(|cx| match Pin::new(&mut *driver).poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err("connection closed".into())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        Poll::Pending if send.current_max_send_streams() == BEFORE_SETTINGS => Poll::Pending,
        Poll::Pending => Poll::Ready(Ok(())),
    })
    .await
}

fn client_builder(limits: &Limits) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_max_send_streams(BEFORE_SETTINGS)
        .initial_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .enable_push(false);
    builder
}

impl Connection {
    pub(super) fn active_streams(&self) -> usize {
        self.active.get()
    }

    /// Maximum number of open streams, as the server last announced.
    pub(super) fn limit(&self) -> usize {
        self.limit.get()
    }

    pub(super) fn has_room(&self) -> bool {
        self.active.get() < self.limit.get()
    }

    /// Since which sweep the connection has been unused; `None` while it is in use.
    pub(super) fn idle_since(&self) -> Option<u64> {
        (self.active.get() == 0).then(|| self.idle_since.get())
    }

    /// Whether the connection may take requests: no GOAWAY, not closed, stream numbers left. Updates the limit too.
    pub(super) fn is_open(&self) -> bool {
        self.sender().is_some()
    }

    /// Sends one request, if the connection [may take requests](Self::is_open).
    pub(super) fn sender(&self) -> Option<SendRequest<Bytes>> {
        self.limit
            .set(self.send.current_max_send_streams().min(self.most_streams));
        // A clone is never itself waiting for a stream, so this returns at once.
        let mut sender = self.send.clone();
        let ready = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        matches!(ready, Poll::Ready(Ok(()))).then_some(sender)
    }

    /// Takes the permit for one stream.
    pub(super) fn take_permit(self: &Rc<Self>) -> StreamPermit {
        self.active.set(self.active.get() + 1);
        StreamPermit {
            connection: Rc::clone(self),
            is_bodiless: false,
        }
    }
}

/// The right to one stream of a connection; released when dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    connection: Rc<Connection>,
    /// Whether a request without a body was sent, so that its stream is closed when its response has ended.
    is_bodiless: bool,
}

/// The body of a response, with the stream that it arrives on.
#[derive(Debug)]
pub(super) struct StreamBody {
    pub(super) response: Rc<UnreadResponse>,
    /// A request body that the server answered before it had received all of it.
    pub(super) upload: Option<Upload>,
    pub(super) permit: StreamPermit,
}

impl StreamPermit {
    pub(super) const fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Sends a request, and returns a future that waits for the head of its response.
    ///
    /// Takes `body` if the server answers before it has received all of it; on failure, restores it. The request is given to the
    /// connection at once, because the future would be larger with it and move it twice.
    pub(super) fn exchange(
        mut self,
        mut sender: SendRequest<Bytes>,
        request: Request<()>,
        body: &mut Option<Box<RequestBody>>,
    ) -> impl Future<Output = Result<Response<StreamBody>, Failure>> {
        self.is_bodiless = body.is_none();
        let sent = sender.send_request(request, self.is_bodiless);
        drop(sender);
        // The driver has been woken for the request.
        drop(self.connection.ended.take());
        self.wait_for_head(sent, body)
    }

    async fn wait_for_head(
        self,
        sent: Result<(ResponseFuture, SendStream<Bytes>), h2::Error>,
        body: &mut Option<Box<RequestBody>>,
    ) -> Result<Response<StreamBody>, Failure> {
        let (response, stream) = sent.map_err(unsent_failure)?;
        let (response, upload) = match body.take() {
            None => (response.await, None),
            Some(content) => {
                let mut upload = Upload::new(content, stream);
                match head_during_upload(response, &mut upload).await {
                    Ok((Ok(response), uploaded)) => (Ok(response), (!uploaded).then_some(upload)),
                    Ok((Err(error), _)) => {
                        *body = Some(upload.into_body());
                        (Err(error), None)
                    }
                    Err(error) => return Err(Failure::RequestBody(error)),
                }
            }
        };
        match response {
            Ok(response) => {
                self.connection
                    .answered
                    .set(self.connection.answered.get().saturating_add(1));
                let unread = Rc::clone(&self.connection.unread);
                Ok(response.map(|body| StreamBody {
                    response: unread.track(body),
                    upload,
                    permit: self,
                }))
            }
            Err(error) => Err(self.failure_of(error)),
        }
    }

    /// Ends the exchange after a response that was read to its end.
    pub(super) fn finish(self, response: &UnreadResponse) {
        if self.is_bodiless
            && let Some(stream) = response.take_stream()
        {
            self.connection.ended.borrow_mut().get_or_insert(stream);
        }
    }

    fn failure_of(&self, error: h2::Error) -> Failure {
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        // For h2, the server's GOAWAY is the error of a stream only if the stream lies above the last stream that the server will process
        // (RFC 9113 §6.8).
        if error.is_remote() && (error.is_go_away() || refused) {
            return Failure::NotProcessed(error.into());
        }
        let stale = !error.is_reset() && self.connection.answered.get() > 0;
        Failure::Broken {
            stale,
            source: error.into(),
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.active.set(connection.active.get().saturating_sub(1));
        if let Some(pool) = connection.pool.upgrade() {
            if connection.active.get() == 0 {
                connection.idle_since.set(pool.sweeps());
            }
            pool.room_made();
        }
    }
}

/// The connection did not take the request: it was closing already, or the request cannot be written.
fn unsent_failure(error: h2::Error) -> Failure {
    if error.is_go_away() || error.is_io() || error.is_reset() {
        Failure::Unsent(error.into())
    } else {
        Failure::Invalid(error.into())
    }
}

/// Waits for the response while sending the body. Returns whether the upload is complete, or the client's error.
async fn head_during_upload(
    response: ResponseFuture,
    upload: &mut Upload,
) -> Result<(Result<Response<RecvStream>, h2::Error>, bool), BoxError> {
    let mut response = pin!(response);
    let mut uploaded = false;
    poll_fn(|cx| {
        if !uploaded && let Poll::Ready(end) = upload.poll(cx) {
            uploaded = true;
            if let Uploaded::Failed(error) = end {
                return Poll::Ready(Err(error));
            }
        }
        response.as_mut().poll(cx).map(|response| Ok((response, uploaded)))
    })
    .await
}
