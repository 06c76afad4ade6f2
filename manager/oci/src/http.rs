//! Requests to a registry: limited in size, retried, and only to addresses that [`super::address_policy`] allows.
//!
//! The client of oci-client is not used: it follows every redirect and every realm, reads manifests and tokens whole, however large
//! they are, and hides `Retry-After` (docs/adr/0013-oci.md).

use bytes::{Bytes, BytesMut};
use k8s_openapi::jiff::Timestamp;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode, Url};

use super::address_policy::{self, AddressPolicy};
use super::clients::{Clients, error_with_causes};
use super::failure::{Failure, FailureReason, Retry, error_chain};
use super::login;
use super::pull_secret::Credentials;
use super::reference::Image;
use super::retries::{Attempts, random_jitter, retry_after};
use super::settings::Settings;

/// Maximum redirects of one request; S3 needs one.
const MAX_REDIRECTS: usize = 5;

/// A request below a repository.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegistryRequest<'a> {
    pub(super) method: &'a Method,
    /// Relative to the repository: `manifests/1.0`.
    pub(super) path: &'a str,
    pub(super) accept: &'static str,
    pub(super) limit: usize,
}

#[derive(Debug)]
pub(super) struct RegistryResponse {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A repository during one pull.
pub(super) struct Repository<'a> {
    clients: &'a Clients,
    settings: &'a Settings,
    base: Url,
    name: String,
    credentials: Option<Credentials>,
    /// `None` until the registry has asked for a login.
    authorization: Option<HeaderValue>,
}

impl<'a> Repository<'a> {
    pub(super) fn new(
        clients: &'a Clients,
        settings: &'a Settings,
        image: &Image,
        credentials: Option<Credentials>,
    ) -> Result<Self, Failure> {
        let name = image.host.split_once(':').map_or(image.host.as_str(), |(name, _)| name);
        let is_insecure = settings.insecure.contains(&image.host) || settings.insecure.contains(name);
        let scheme = if is_insecure { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{}/v2/{}/", image.registry, image.repository));
        let base = base.map_err(|error| {
            Failure::new(
                FailureReason::InvalidReference,
                format!("{} is no registry: {error}", image.registry),
            )
        })?;
        AddressPolicy::FromObject.check(&base)?;
        Ok(Self {
            clients,
            settings,
            base,
            name: image.repository.clone(),
            credentials,
            authorization: None,
        })
    }

    /// Sends a request, with retries while they make sense.
    pub(super) async fn send_with_retries(
        &mut self,
        request: RegistryRequest<'_>,
    ) -> Result<RegistryResponse, Failure> {
        let mut attempts = Attempts::new(&self.settings.times);
        loop {
            match self.send_once(request).await {
                Ok(response) => return Ok(response),
                Err(failure) => tokio::time::sleep(attempts.next_pause(failure, random_jitter())?).await,
            }
        }
    }

    async fn send_once(&mut self, request: RegistryRequest<'_>) -> Result<RegistryResponse, Failure> {
        let mut response = self.send(request).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.authorization.is_none() {
            let challenge = login::challenge_of(response.headers());
            drop(response);
            self.log_in(challenge).await?;
            response = self.send(request).await?;
        }
        self.check_response(&response, request)?;
        let headers = response.headers().clone();
        let body = if *request.method == Method::HEAD {
            Bytes::new()
        } else {
            self.read(response, request.limit).await?
        };
        Ok(RegistryResponse { headers, body })
    }

    /// Sends a request and follows redirects. Credentials go to the registry itself only.
    async fn send(&self, request: RegistryRequest<'_>) -> Result<Response, Failure> {
        let policy = AddressPolicy::for_registry(&self.base);
        let mut url = self.base.join(request.path).map_err(|error| {
            Failure::new(
                FailureReason::InvalidReference,
                format!("{} is no path: {error}", request.path),
            )
        })?;
        for _ in 0..=MAX_REDIRECTS {
            let is_own = url.origin() == self.base.origin();
            let client = self
                .clients
                .client_for(if is_own { AddressPolicy::FromObject } else { policy });
            let mut builder = client
                .request(request.method.clone(), url.clone())
                .header(ACCEPT, request.accept);
            if let (true, Some(authorization)) = (is_own, &self.authorization) {
                builder = builder.header(AUTHORIZATION, authorization);
            }
            let response = builder.send().await.map_err(|error| self.transport_failure(error))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            url = address_policy::redirect_target(&url, location.unwrap_or_default(), policy)?;
        }
        let problem = format!("{} redirects in a circle", self.host());
        Err(Failure::new(FailureReason::UnsafeRedirect, problem))
    }

    async fn log_in(&mut self, challenge: Option<login::Challenge>) -> Result<(), Failure> {
        let authorization = match challenge {
            None => None,
            Some(login::Challenge::Basic) => self.credentials.as_ref().map(login::basic_header),
            Some(login::Challenge::Bearer { realm, service }) => {
                let hosts = &self.settings.auth_hosts;
                let realm = address_policy::token_server_url(&self.base, &realm, |host| hosts.contains(host))?;
                Some(self.fetch_token(realm, &service).await?)
            }
        };
        match authorization {
            Some(authorization) => self.authorization = Some(authorization),
            None => return Err(self.access_denied()),
        }
        Ok(())
    }

    /// Gets a token for pulling from this repository (distribution, "Token Authentication Specification").
    async fn fetch_token(&self, mut realm: Url, service: &str) -> Result<HeaderValue, Failure> {
        let policy = if realm.host_str() == self.base.host_str() {
            AddressPolicy::FromObject
        } else {
            AddressPolicy::for_registry(&self.base)
        };
        realm
            .query_pairs_mut()
            .append_pair("service", service)
            .append_pair("scope", &format!("repository:{}:pull", self.name));
        let mut request = self.clients.client_for(policy).get(realm);
        if let Some(credentials) = &self.credentials {
            request = request.header(AUTHORIZATION, login::basic_header(credentials));
        }
        let response = request.send().await.map_err(|error| self.transport_failure(error))?;
        match response.status() {
            StatusCode::OK => {}
            status if is_passing(status) => return Err(self.unavailable(status, response.headers())),
            _ => return Err(self.access_denied()),
        }
        let body = self.read(response, login::MAX_TOKEN_BYTES).await?;
        login::bearer_header(&body).ok_or_else(|| {
            let message = format!("{} answers without a valid token", self.host());
            Failure::new(FailureReason::AccessDenied, message)
        })
    }

    /// Reads a body. Fails if it is larger than `limit`, whatever its headers say.
    async fn read(&self, mut response: Response, limit: usize) -> Result<Bytes, Failure> {
        let too_large = || {
            let message = format!(
                "{} sends more than the {limit} bytes that it announced or may send",
                self.host()
            );
            Failure::new(FailureReason::DigestMismatch, message)
        };
        if response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        while let Some(part) = response.chunk().await.map_err(|error| self.transport_failure(error))? {
            if body.len() + part.len() > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&part);
        }
        Ok(body.freeze())
    }

    fn check_response(&self, response: &Response, request: RegistryRequest<'_>) -> Result<(), Failure> {
        let status = response.status();
        match status {
            StatusCode::OK => Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.access_denied()),
            StatusCode::NOT_FOUND => {
                let message = format!(
                    "{} has no {} in {}; is it pushed?",
                    self.host(),
                    request.path,
                    self.name
                );
                Err(Failure::new(FailureReason::NotFound, message))
            }
            status if is_passing(status) => Err(self.unavailable(status, response.headers())),
            status => {
                let message = format!("{} answers {status} for {} in {}", self.host(), request.path, self.name);
                Err(Failure::new(FailureReason::RegistryUnavailable, message))
            }
        }
    }

    fn access_denied(&self) -> Failure {
        let (host, name) = (self.host(), &self.name);
        let message = match &self.credentials {
            Some(credentials) => format!(
                "{host} does not let user {} pull {name}; correct the Secret of pullSecret, or the user's rights",
                ctrlmesh_contract::error::quote(&credentials.user)
            ),
            None => format!("{host} does not let everybody pull {name}; name a Secret with credentials in pullSecret"),
        };
        Failure::new(FailureReason::AccessDenied, message)
    }

    fn unavailable(&self, status: StatusCode, headers: &HeaderMap) -> Failure {
        let message = format!("{} answers {status}", self.host());
        let failure = Failure::temporary(FailureReason::RegistryUnavailable, message);
        match retry_after(headers, Timestamp::now()) {
            Some(pause) => Failure {
                again: Retry::After(pause),
                ..failure
            },
            None => failure,
        }
    }

    /// The failure for a response that did not arrive, or not completely.
    fn transport_failure(&self, error: reqwest::Error) -> Failure {
        let host = self.host();
        if address_policy::is_out_of_reach(&error) {
            let message = format!("{host} is not followed: {}", error_with_causes(error));
            return Failure::new(FailureReason::UnsafeRedirect, message);
        }
        let hint = if is_response_without_tls(&error) {
            "; if it speaks plain HTTP, name it with --insecure-registry"
        } else {
            ""
        };
        let message = format!(
            "{host} can't be reached, or is too slow: {}{hint}",
            error_with_causes(error)
        );
        Failure::temporary(FailureReason::RegistryUnavailable, message)
    }

    fn host(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        self.base
            .port()
            .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }
}

/// Whether the handshake failed because the server does not speak TLS.
fn is_response_without_tls(error: &reqwest::Error) -> bool {
    let mut of_tls = error_chain(error).filter_map(|cause| cause.downcast_ref::<rustls::Error>());
    of_tls.any(|error| matches!(error, rustls::Error::InvalidMessage(_)))
}

fn is_passing(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS) || status.is_server_error()
}
