//! HTTP clients with the configured certificate authorities, proxies and timeouts.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;

use reqwest::{Certificate, NoProxy, Proxy, Url, redirect};

use super::address_policy::{AddressPolicy, Resolver};
use super::failure::{Failure, FailureReason};
use super::settings::Settings;

/// HTTP clients, one for each [`AddressPolicy`].
#[derive(Clone)]
pub(super) struct Clients {
    named: reqwest::Client,
    sent: reqwest::Client,
}

impl Clients {
    /// `authorities`: PEM; they are trusted in addition to the system's.
    pub(super) fn new(settings: &Settings, authorities: &[u8]) -> Result<Self, Failure> {
        Ok(Self {
            named: new_client(settings, authorities, AddressPolicy::FromObject)?,
            sent: new_client(settings, authorities, AddressPolicy::FromRegistry)?,
        })
    }

    pub(super) const fn client_for(&self, policy: AddressPolicy) -> &reqwest::Client {
        match policy {
            AddressPolicy::FromObject => &self.named,
            AddressPolicy::FromRegistry => &self.sent,
        }
    }
}

fn new_client(settings: &Settings, authorities: &[u8], policy: AddressPolicy) -> Result<reqwest::Client, Failure> {
    let wrong = |problem: &str, error: reqwest::Error| {
        let message = format!(
            "the manager can't ask registries: {problem}: {}",
            error_with_causes(error)
        );
        Failure::new(FailureReason::RegistryUnavailable, message)
    };
    let authorities =
        Certificate::from_pem_bundle(authorities).map_err(|error| wrong("--registry-ca-file is no PEM", error))?;
    let mut builder = reqwest::Client::builder()
        .tls_certs_merge(authorities)
        .redirect(redirect::Policy::none())
        .connect_timeout(settings.times.connect)
        .read_timeout(settings.times.read)
        .user_agent(concat!("ctrlmesh-manager/", env!("CARGO_PKG_VERSION")))
        .no_proxy();
    let except = settings.proxies.except.as_deref().and_then(NoProxy::from_string);
    let proxies = &settings.proxies;
    for (variable, proxy) in [
        ("HTTPS_PROXY", proxies.https.as_ref().map(Proxy::https)),
        ("HTTP_PROXY", proxies.http.as_ref().map(Proxy::http)),
    ] {
        if let Some(proxy) = proxy {
            let proxy = proxy.map_err(|error| wrong(&format!("{variable} is not the URL of a proxy"), error))?;
            builder = builder.proxy(proxy.no_proxy(except.clone()));
        }
    }
    let names = [&proxies.https, &proxies.http].into_iter().flatten();
    let resolver = Resolver {
        policy,
        hosts: Arc::new(settings.hosts.iter().cloned().collect::<BTreeMap<_, _>>()),
        proxies: Arc::new(names.filter_map(|address| proxy_name(address)).collect()),
    };
    let problem = "no certificate authorities? install ca-certificates, or set --registry-ca-file";
    builder
        .dns_resolver(resolver)
        .build()
        .map_err(|error| wrong(problem, error))
}

fn proxy_name(address: &str) -> Option<String> {
    let url = match address.contains("://") {
        true => Url::parse(address),
        false => Url::parse(&format!("http://{address}")),
    };
    url.ok()?.host_str().map(str::to_owned)
}

/// An error's text with its causes, without its URL: the URL of a redirected blob contains a signature.
pub(super) fn error_with_causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut next = StdError::source(&error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_have_names_with_and_without_scheme() {
        assert_eq!(
            proxy_name("http://me:secret@proxy.dev:3128").as_deref(),
            Some("proxy.dev")
        );
        assert_eq!(proxy_name("proxy.dev:3128").as_deref(), Some("proxy.dev"));
    }
}
