//! The baseline: a proxy of hyper and nothing else, one thread, keep-alive connections to the origin.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use http::Request;
use http::header::HOST;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::process::announce_address;

type Pool = Rc<RefCell<Vec<client::SendRequest<Incoming>>>>;

pub(crate) async fn serve_bare_proxy(origin: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce_address(listener.local_addr()?)?;
    let pool = Pool::default();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let pool = Rc::clone(&pool);
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| forward_request(Rc::clone(&pool), origin, request));
            let _ = server::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn forward_request(
    pool: Pool,
    origin: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<http::Response<Incoming>, hyper::Error> {
    let idle = pool.borrow_mut().pop();
    let mut sender = match idle {
        Some(sender) if sender.is_ready() => sender,
        _ => connect_origin(origin).await?,
    };
    if let Ok(host) = origin.to_string().parse() {
        request.headers_mut().insert(HOST, host);
    }
    let response = sender.send_request(request).await?;
    // Returned when the body has been read: hyper makes it ready then.
    tokio::task::spawn_local(async move {
        if sender.ready().await.is_ok() {
            pool.borrow_mut().push(sender);
        }
    });
    Ok(response)
}

async fn connect_origin(origin: SocketAddr) -> Result<client::SendRequest<Incoming>, hyper::Error> {
    let stream = match TcpStream::connect(origin).await {
        Ok(stream) => stream,
        // Without an origin the measurement is void; the load reports the broken connection.
        Err(_) => std::future::pending().await,
    };
    let _ = stream.set_nodelay(true);
    let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}
