//! Servers for one test each: HTTP/2 by `h2`, HTTP/1.1 by hyper or by hand; what they saw can be asked.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::{Limits, Upstream};
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Notify, oneshot},
    task::spawn_local,
};
use tokio_rustls::TlsAcceptor;

use crate::{http2, target_of};

pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

type Handling = Pin<Box<dyn Future<Output = ()>>>;
type Handler = dyn Fn(Exchange) -> Handling;

/// One request at an HTTP/2 server.
pub struct Exchange {
    pub request: Request<RecvStream>,
    pub respond: SendResponse<Bytes>,
    /// Number of the connection, from 0.
    pub connection: usize,
    pub control: Rc<Control>,
}

/// A handler's control over its connection.
#[derive(Default)]
pub struct Control {
    graceful: Notify,
    cut: Notify,
}

impl Control {
    /// GOAWAY, as a server that shuts down.
    pub fn go_away(&self) {
        self.graceful.notify_one();
    }

    /// Closes the TCP connection; never returns, so that the handler doesn't reset its stream first.
    pub async fn close_tcp(&self) {
        self.cut.notify_one();
        std::future::pending().await
    }
}

impl Exchange {
    /// Reads the whole body, or what comes of it.
    pub async fn body(&mut self) -> Vec<u8> {
        let body = self.request.body_mut();
        let mut all = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            all.extend_from_slice(&data);
        }
        all
    }

    pub fn answer(mut self, body: impl Into<Bytes>) {
        let mut stream = self.respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(body.into(), true).unwrap();
    }

    /// Sends the head and leaves the stream open.
    pub fn open(&mut self) -> h2::SendStream<Bytes> {
        self.respond.send_response(Response::new(()), false).unwrap()
    }

    pub fn reset(mut self, reason: Reason) {
        self.respond.send_reset(reason);
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub connections: Rc<Cell<usize>>,
    /// Requests seen, "METHOD path".
    pub seen: Rc<RefCell<Vec<String>>>,
}

impl Server {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The upstream that a worker has for this server, without TLS.
    pub async fn upstream(&self, limits: Limits) -> Rc<Upstream> {
        Upstream::new(target_of(self.url()).await, limits)
    }
}

/// Settings of an HTTP/2 server.
#[derive(Clone, Default)]
pub struct Http2 {
    pub max_streams: Option<u32>,
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Http2 {
    pub async fn serve<F>(self, handler: impl Fn(Exchange) -> F + 'static) -> Server
    where
        F: Future<Output = ()> + 'static,
    {
        let handler: Rc<Handler> = Rc::new(move |exchange| Box::pin(handler(exchange)));
        let seen = Rc::<RefCell<Vec<String>>>::default();
        let noted = Rc::clone(&seen);
        let server = raw_server(move |tcp, number| {
            let (settings, handler, seen) = (self.clone(), Rc::clone(&handler), Rc::clone(&noted));
            async move {
                if let Some(tls) = &settings.tls {
                    if let Ok(stream) = TlsAcceptor::from(Arc::clone(tls)).accept(tcp).await {
                        settings.connection(stream, number, handler, seen).await;
                    }
                } else {
                    settings.connection(tcp, number, handler, seen).await;
                }
            }
        })
        .await;
        Server { seen, ..server }
    }

    async fn connection(&self, io: impl Io, number: usize, handler: Rc<Handler>, seen: Rc<RefCell<Vec<String>>>) {
        let mut builder = h2::server::Builder::new();
        if let Some(most) = self.max_streams {
            builder.max_concurrent_streams(most);
        }
        let Ok(mut connection) = builder.handshake::<_, Bytes>(io).await else {
            return;
        };
        let control = Rc::new(Control::default());
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept() => accepted,
                () = control.graceful.notified() => { connection.graceful_shutdown(); continue }
                () = control.cut.notified() => return,
            };
            let Some(Ok((request, respond))) = accepted else { return };
            seen.borrow_mut().push(format!(
                "{} {}",
                request.method(),
                request.uri().path_and_query().unwrap()
            ));
            spawn_local(handler(Exchange {
                request,
                respond,
                connection: number,
                control: Rc::clone(&control),
            }));
        }
    }
}

/// Accepts connections and leaves each to a function that speaks by hand.
pub async fn raw_server<F>(handle: impl Fn(tokio::net::TcpStream, usize) -> F + 'static) -> Server
where
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server {
        address: listener.local_addr().unwrap(),
        connections: Rc::default(),
        seen: Rc::default(),
    };
    let connections = Rc::clone(&server.connections);
    spawn_local(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let number = connections.replace(connections.get() + 1);
            spawn_local(handle(tcp, number));
        }
    });
    server
}

/// A server that answers with a head alone, what a worker has for it, and why its stream is reset.
pub async fn reset_observing_upstream() -> (Rc<Upstream>, oneshot::Receiver<Reason>) {
    let (reset, seen) = oneshot::channel();
    let reset = Rc::new(Cell::new(Some(reset)));
    let (_, upstream) = http2(move |mut exchange| {
        let reset = reset.take();
        async move {
            let mut stream = exchange.open();
            let reason = poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
            reset.unwrap().send(reason).unwrap();
        }
    })
    .await;
    (upstream, seen)
}
