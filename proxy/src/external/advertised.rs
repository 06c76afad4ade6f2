//! Asks the API server for its own address: `serverAddressByClientCIDRs` of `GET /api`. Behind a load balancer it differs from the
//! kubeconfig's.
//!
//! `api_server` combines the results. One worker asks for all.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, USER_AGENT};
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;

use super::External;
use crate::request::exchange::OWN_USER_AGENT;
use crate::request::worker::Worker;
use crate::stream::body::RequestBody;
use crate::upstream::{BoxError, SendError, Upstream};

/// Interval of name lookups and of queries to the server: managed API servers change their addresses within a minute.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(15);

/// Time limit of one query, including lookups of the names in its response.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of quick queries in a row without a new address. With three API servers behind a balancer that picks one at random, one stays
/// unknown after this many in one case of nine.
const QUICK_QUERIES: u32 = 8;

/// Interval between quick queries.
const QUICK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of the response; a server names one or two addresses.
const MAX_RESPONSE: usize = 64 << 10;

/// Maximum number of addresses that are used from one response.
const MAX_ADDRESSES: usize = 16;

/// An address that the API server names as its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum AdvertisedAddress {
    Address(SocketAddr),
    /// A host name in lower case, without a dot at its end, and a port.
    Name(String, u16),
}

/// Why a response is unusable.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Send(#[from] SendError),
    #[error("the API server answered {0}")]
    Status(StatusCode),
    #[error("the response of /api is incomplete or has more than {MAX_RESPONSE} bytes: {0}")]
    Body(#[source] BoxError),
    #[error("the response of /api is not an APIVersions object: {0}")]
    Document(#[from] serde_json::Error),
    #[error("the API server did not respond within {} s", QUERY_TIMEOUT.as_secs())]
    Late,
}

/// The fields of `APIVersions` (meta/v1) that are needed here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersions {
    #[serde(rename = "serverAddressByClientCIDRs", default)]
    server_addresses: Vec<ServerAddress>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress {
    server_address: String,
}

/// Queries repeatedly until the sidecar drains. Queries are frequent at first and after each new address, because several API servers may
/// response.
pub(crate) async fn follow_advertised(worker: Rc<Worker>, external: Rc<External>) {
    let mut has_failed = false;
    let mut quick = QUICK_QUERIES;
    let drain = worker.shared.drain.clone();
    let follow = async {
        loop {
            let asked = tokio::time::timeout(QUERY_TIMEOUT, request_addresses(&worker)).await;
            match asked.unwrap_or(Err(Error::Late)) {
                Ok(addresses) => {
                    has_failed = false;
                    if external.shared.address_policy.api_server.note_advertised(addresses) {
                        external.shared.gate.check_open_sockets();
                        quick = QUICK_QUERIES;
                    }
                }
                Err(error) if has_failed => {
                    tracing::debug!(%error, "failed to read the addresses that the API server advertises; retrying")
                }
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(
                        %error,
                        "failed to read the addresses that the API server advertises (GET /api), retrying; until then external \
                         requests can reach those that are not otherwise known"
                    );
                }
            }
            quick = if has_failed { 0 } else { quick.saturating_sub(1) };
            tokio::time::sleep(if quick > 0 { QUICK_INTERVAL } else { REFRESH_INTERVAL }).await;
        }
    };
    tokio::select! {
        () = follow => {}
        () = drain.cancelled() => {}
    }
}

/// Sends one query with the sidecar's credentials, on a connection of its own: behind a Service or a balancer, each connection may reach
/// another API server, which only names its own address.
async fn request_addresses(worker: &Worker) -> Result<HashSet<AdvertisedAddress>, Error> {
    let mut request = Request::new(RequestBody::Full(None));
    *request.uri_mut() = "/api".parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(OWN_USER_AGENT));
    worker.credentials().apply(headers);
    let usual = worker.upstream(true);
    let upstream = Upstream::new(Arc::clone(usual.target()), usual.limits().clone());
    let response = upstream.send(request).await?;
    let status = response.status();
    if status == StatusCode::UNAUTHORIZED {
        worker.credentials().refresh_now();
    }
    if status != StatusCode::OK {
        return Err(Error::Status(status));
    }
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    let mut addresses = parse_addresses(&body.map_err(Error::Body)?.to_bytes())?;
    for (host, port) in names_of(&addresses) {
        match tokio::net::lookup_host((host.as_str(), port)).await {
            Ok(found) => addresses.extend(found.take(MAX_ADDRESSES).map(AdvertisedAddress::Address)),
            Err(error) => tracing::debug!(%error, host, "failed to resolve a name that the API server advertises"),
        }
    }
    Ok(addresses)
}

fn names_of(addresses: &HashSet<AdvertisedAddress>) -> Vec<(String, u16)> {
    let name = |address: &AdvertisedAddress| match address {
        AdvertisedAddress::Name(host, port) => Some((host.clone(), *port)),
        AdvertisedAddress::Address(_) => None,
    };
    addresses.iter().filter_map(name).collect()
}

fn parse_addresses(response: &[u8]) -> Result<HashSet<AdvertisedAddress>, serde_json::Error> {
    let versions: ApiVersions = serde_json::from_slice(response)?;
    let addresses = versions.server_addresses.iter().take(MAX_ADDRESSES);
    Ok(addresses
        .filter_map(|server| AdvertisedAddress::read(&server.server_address))
        .collect())
}

impl std::fmt::Display for AdvertisedAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

impl AdvertisedAddress {
    /// Parses `host:port`, or a host with the default port of HTTPS. Returns `None` for anything else.
    fn read(text: &str) -> Option<Self> {
        const HTTPS: u16 = 443;
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Self::Address(SocketAddr::new(ip, HTTPS)));
        }
        let authority: Authority = text.parse().ok()?;
        let host = authority.host().trim_start_matches('[').trim_end_matches([']', '.']);
        let port = authority.port_u16().unwrap_or(HTTPS);
        match host.parse::<IpAddr>() {
            Ok(ip) => Some(Self::Address(SocketAddr::new(ip, port))),
            Err(_) if host.is_empty() => None,
            Err(_) => Some(Self::Name(host.to_ascii_lowercase(), port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_addresses_are_read_in_every_form() {
        let address = |text: &str| Some(AdvertisedAddress::Address(text.parse().unwrap()));
        let name = |host: &str, port| Some(AdvertisedAddress::Name(host.to_owned(), port));
        for (text, expected) in [
            ("10.0.0.5:6443", address("10.0.0.5:6443")),
            ("10.0.0.5", address("10.0.0.5:443")),
            ("[fd00::5]:6443", address("[fd00::5]:6443")),
            ("fd00::5", address("[fd00::5]:443")),
            ("API.example.:6443", name("api.example", 6443)),
            ("api.example", name("api.example", 443)),
            ("", None),
            ("two words", None),
        ] {
            assert_eq!(AdvertisedAddress::read(text), expected, "{text}");
        }
    }

    #[test]
    fn response_of_server_is_read_and_its_number_of_addresses_bounded() {
        let response = br#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[
            {"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.5:6443"},{"clientCIDR":"10.96.0.0/12","serverAddress":"?"}]}"#;
        assert_eq!(
            parse_addresses(response).unwrap(),
            HashSet::from([AdvertisedAddress::read("10.0.0.5:6443").unwrap()])
        );
        assert!(
            parse_addresses(br#"{"kind":"APIVersions","versions":["v1"]}"#)
                .unwrap()
                .is_empty()
        );
        assert!(parse_addresses(b"<html>").is_err());
        let many = (0..1000).map(|port| serde_json::json!({ "serverAddress": format!("10.0.0.5:{port}") }));
        let many = serde_json::json!({ "serverAddressByClientCIDRs": many.collect::<Vec<_>>() });
        assert_eq!(
            parse_addresses(many.to_string().as_bytes()).unwrap().len(),
            MAX_ADDRESSES
        );
    }
}
