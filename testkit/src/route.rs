//! One request from head to answer: logs it, applies faults, authenticates it, and passes it on to discovery or to a resource.
//! [`crate::resources`] has the verbs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::{RequestInfo, RequestInfoError};
use http::header::{AUTHORIZATION, CONNECTION, RETRY_AFTER, TRAILER};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use crate::accept::Encoding;
use crate::body::{BodyFaults, Interrupted, ResponseBody, full_body};
use crate::control::Control;
use crate::discovery;
use crate::exchange::{Exchange, build_response};
use crate::faults::{Facts, Fault, FaultTime, Gate};
use crate::refusal::Refusal;
use crate::resources;
use crate::shared::Shared;
use crate::upgrade;

/// The interim response of [`Fault::EarlyHints`].
const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </version>; rel=preload\r\n\r\n";

/// Serves one request. An error resets the stream, or the connection on HTTP/1.1.
pub(crate) async fn serve_request(
    shared: Arc<Shared>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Interrupted> {
    let _guard = shared.gauges.count_request();
    let (mut parts, body) = request.into_parts();
    let (method, uri) = (parts.method.clone(), parts.uri.clone());
    let encoding = Encoding::for_status(&parts.headers);
    let info = RequestInfo::parse(method.as_str(), uri.path(), uri.query());
    let (verb, resource) = info
        .as_ref()
        .map_or(("", ""), |info| (info.verb.as_str(), &*info.resource));
    shared.requests.record_request(&parts, verb, resource);
    let plan = FaultPlan::new(&shared, &method, uri.path(), info.as_ref().ok(), parts.version);
    plan.run_before(&control).await?;
    let answer = match plan.refusal.clone() {
        Some(refusal) => Err(refusal),
        None if plan.tunnel => upgrade::serve_echo(&mut parts, &control.tunnels),
        None => {
            let exchange = |info| Exchange {
                shared: &shared,
                control: &control,
                parts: &mut parts,
                info,
                query: uri.query().unwrap_or_default(),
                body,
            };
            match &info {
                Ok(info) => Box::pin(execute_request(exchange(info))).await,
                Err(error) => Err(parse_refusal(error)),
            }
        }
    };
    plan.run_after(&control).await?;
    let response = plan.shape_response(
        &control,
        answer.unwrap_or_else(|refusal| refusal_response(&refusal, encoding)),
    );
    // On HTTP/2, hyper would send the body of an answer to HEAD.
    Ok(if method == Method::HEAD {
        response.map(|_| full_body(""))
    } else {
        response
    })
}

fn parse_refusal(error: &RequestInfoError) -> Refusal {
    match error {
        RequestInfoError::Query(error) => Refusal::new(StatusCode::URI_TOO_LONG, "", error.to_string()),
        _ => Refusal::bad_request(error.to_string()),
    }
}

async fn execute_request(exchange: Exchange<'_>) -> Result<Response<ResponseBody>, Refusal> {
    let authorization = exchange
        .parts
        .headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if !exchange.shared.faults.is_authorized(authorization) {
        return Err(Refusal::unauthorized());
    }
    if exchange.info.is_resource_request {
        return resources::serve_resource(exchange).await;
    }
    if !matches!(exchange.parts.method, Method::GET | Method::HEAD) {
        return Err(Refusal::no_such_resource());
    }
    let (path, headers) = (&exchange.info.path, &exchange.parts.headers);
    discovery::serve_discovery(exchange.shared, exchange.control.number, path, headers)
}

fn refusal_response(refusal: &Refusal, encoding: Encoding) -> Response<ResponseBody> {
    let status = &refusal.0;
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = match encoding {
        Encoding::Json => status.to_json(),
        Encoding::Protobuf => status.to_protobuf(),
    };
    let mut response = build_response(code, encoding.media_type(), full_body(body));
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

async fn wait_for_gates(gates: &[Gate]) {
    for gate in gates {
        if !gate.wait_until_open().await {
            tracing::warn!("gate stayed closed for a minute; continuing with the request");
        }
    }
}

/// The faults of one request.
#[derive(Default)]
struct FaultPlan {
    is_http2: bool,
    delay: Duration,
    gates: Vec<Gate>,
    answer_gates: Vec<Gate>,
    refusal: Option<Refusal>,
    /// Zero is sent too, although a Status can't express it.
    retry_after: Option<u32>,
    reset_stream: Option<FaultTime>,
    reset_connection: Option<FaultTime>,
    goaway: bool,
    tunnel: bool,
    early_hints: bool,
    shape: BodyFaults,
}

impl FaultPlan {
    fn new(shared: &Shared, method: &Method, path: &str, info: Option<&RequestInfo<'_>>, version: Version) -> Self {
        let facts = Facts {
            method,
            path,
            verb: info.map_or("", |info| info.verb.as_str()),
            resource: info.map_or("", |info| &info.resource),
            namespace: info.map_or("", |info| &info.namespace),
            name: info.map_or("", |info| &info.name),
        };
        let mut plan = Self {
            is_http2: version == Version::HTTP_2,
            ..Self::default()
        };
        for fault in shared.faults.take_faults(&facts) {
            plan.add_fault(fault);
        }
        plan
    }

    fn add_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Delay(delay) => self.delay += delay,
            Fault::Hold(gate) => self.gates.push(gate),
            Fault::HoldAnswer(gate) => self.answer_gates.push(gate),
            Fault::Status { code, retry_after } => {
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let reason = ctrlmesh_wire::default_reason(code.as_u16());
                let refusal = Refusal::new(code, reason, "refused by a fault rule");
                self.refusal = Some(refusal.retry_after(retry_after.unwrap_or_default()));
                self.retry_after = retry_after;
            }
            Fault::ResetStream(when) if self.is_http2 => self.reset_stream = Some(when),
            Fault::ResetStream(when) | Fault::ResetConnection(when) => self.reset_connection = Some(when),
            Fault::Goaway => self.goaway = true,
            Fault::Tunnel => self.tunnel = true,
            Fault::SlowBody { chunk, every } => self.shape.slow = Some((chunk, every)),
            Fault::CutBody { after } => self.shape.cut_after = Some(after),
            Fault::LateEnd(gate) => self.shape.late_end = Some(gate),
            Fault::EarlyHints if self.is_http2 => {
                self.refusal = Some(Refusal::not_implemented("103 responses on HTTP/2"))
            }
            Fault::EarlyHints => self.early_hints = true,
            Fault::Trailers(trailers) => self.shape.trailers = Some(trailers),
        }
    }

    async fn run_before(&self, control: &Control) -> Result<(), Interrupted> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        wait_for_gates(&self.gates).await;
        self.reset_when(control, FaultTime::BeforeExecuting)
    }

    async fn run_after(&self, control: &Control) -> Result<(), Interrupted> {
        wait_for_gates(&self.answer_gates).await;
        self.reset_when(control, FaultTime::AfterExecuting)
    }

    fn reset_when(&self, control: &Control, when: FaultTime) -> Result<(), Interrupted> {
        if self.reset_connection == Some(when) {
            control.reset();
        }
        let is_reset = self.reset_connection == Some(when) || self.reset_stream == Some(when);
        if is_reset { Err(Interrupted::new()) } else { Ok(()) }
    }

    fn shape_response(self, control: &Control, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        if self.goaway && self.is_http2 {
            control.goaway();
        } else if self.goaway {
            // hyper would write this head before it sees the shutdown.
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if self.early_hints {
            control.tricks.send_interim(Bytes::from_static(EARLY_HINTS));
        }
        if let Some(trailers) = &self.shape.trailers {
            for name in trailers.keys() {
                response.headers_mut().append(TRAILER, name.clone().into());
            }
        }
        response.map(|body| self.shape.apply_to_body(body))
    }
}
