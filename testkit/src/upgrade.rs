//! `exec`, `attach` and `portforward` of pods: a tunnel that echoes. It runs nothing and speaks neither SPDY nor WebSocket frames: after
//! the 101, each byte is sent back, which is all that a test of a proxy needs.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Response, StatusCode, Version, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::activity::Gauges;
use crate::body::{ResponseBody, full_body};
use crate::refusal::Refusal;

/// Spawns and tracks the tunnels.
#[derive(Debug, Clone)]
pub(crate) struct Tunnels {
    pub(crate) tasks: TaskTracker,
    pub(crate) ended: CancellationToken,
    pub(crate) gauges: Gauges,
}

/// Whether a subresource of pods is served as a tunnel.
pub(crate) fn is_tunnel(subresource: &str) -> bool {
    matches!(subresource, "exec" | "attach" | "portforward")
}

/// The protocol in the `Upgrade` header.
fn requested_protocol(parts: &request::Parts) -> Option<HeaderValue> {
    let connection = parts
        .headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut tokens = connection.flat_map(|value| value.split(','));
    let asks = tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    parts
        .headers
        .get(UPGRADE)
        .filter(|_| asks && parts.version == Version::HTTP_11)
        .cloned()
}

/// Whether the request asks for WebSocket.
pub(crate) fn is_websocket(parts: &request::Parts) -> bool {
    requested_protocol(parts).is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Answers 101 and echoes until one side ends.
pub(crate) fn serve_echo(parts: &mut request::Parts, tunnels: &Tunnels) -> Result<Response<ResponseBody>, Refusal> {
    let protocol = requested_protocol(parts).ok_or_else(|| Refusal::bad_request("Upgrade request required"))?;
    let upgraded = parts
        .extensions
        .remove::<OnUpgrade>()
        .ok_or_else(|| Refusal::bad_request("the connection cannot be upgraded"))?;
    let guard = tunnels.gauges.count_tunnel();
    let ended = tunnels.ended.clone();
    tunnels.tasks.spawn(async move {
        let _guard = guard;
        let echoing = async {
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded.await?));
            let copied = tokio::io::copy(&mut reader, &mut writer).await;
            let closed = tokio::io::AsyncWriteExt::shutdown(&mut writer).await;
            Ok::<_, hyper::Error>(copied.and(closed))
        };
        tokio::select! {
            done = echoing => tracing::debug!(?done, "tunnel ended"),
            () = ended.cancelled() => {}
        }
    });
    let mut response = Response::new(full_body(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    Ok(response)
}
