//! A request on its way to its answer, how its body is read, and how an answer is built.

use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::RequestInfo;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode, request};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use crate::accept::Encoding;
use crate::body::ResponseBody;
use crate::control::Control;
use crate::refusal::Refusal;
use crate::shared::Shared;

/// The largest request body; kube-apiserver's limit (apiserver `pkg/server/config.go`, `MaxRequestBodyBytes`).
const MAX_BODY: usize = 3 * 1024 * 1024;

/// How long a request body may take.
const BODY_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Exchange<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) control: &'a Control,
    pub(crate) parts: &'a mut request::Parts,
    pub(crate) info: &'a RequestInfo<'a>,
    pub(crate) query: &'a str,
    pub(crate) body: Incoming,
}

pub(crate) async fn read_body(body: Incoming) -> Result<Bytes, Refusal> {
    match tokio::time::timeout(BODY_DEADLINE, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::too_large(MAX_BODY)),
        Ok(Err(error)) => Err(Refusal::bad_request(format!(
            "the request body could not be read: {error}"
        ))),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "Timeout",
            "the request body came too slowly",
        )),
    }
}

pub(crate) fn json_response(status: StatusCode, body: ResponseBody) -> Response<ResponseBody> {
    build_response(status, Encoding::Json.media_type(), body)
}

pub(crate) fn build_response(
    status: StatusCode,
    content_type: &'static str,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
