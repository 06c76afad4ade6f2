//! Addresses to which a registry may refer the manager: redirects of blobs, and the realm that issues tokens.
//!
//! Everybody who may write a ShardingConfig can name a registry. The registry's responses must not make the manager send requests
//! into its own pod or machine.
//!
//! Guarantees: redirects never go from https to http; the manager's own loopback is used only if the object names a registry there;
//! link-local addresses and the metadata addresses of clouds are never used.
//! Caveat: behind a proxy, the proxy resolves names, so names are judged by their spelling only.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ctrlmesh_contract::addresses::{SpecialAddress, special_address};
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::failure::{Failure, FailureReason, error_chain};

/// The addresses that requests may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressPolicy {
    /// For URLs from an object: all but link-local and metadata addresses.
    FromObject,
    /// For URLs from a registry: as [`Self::FromObject`], without loopback.
    FromRegistry,
}

impl AddressPolicy {
    /// The policy for URLs that this registry sends.
    pub(super) fn for_registry(registry: &Url) -> Self {
        let is_local = match ip_host(registry) {
            Some(ip) => ip.is_loopback(),
            None => registry.host_str().is_some_and(is_localhost),
        };
        if is_local { Self::FromObject } else { Self::FromRegistry }
    }

    fn allows(self, ip: IpAddr) -> bool {
        match special_address(ip) {
            None => true,
            Some(SpecialAddress::Loopback | SpecialAddress::Unspecified) => self == Self::FromObject,
            Some(_) => false,
        }
    }

    /// Fails if the URL's host is an IP address that this policy forbids. Names are checked when they are resolved.
    pub(super) fn check(self, url: &Url) -> Result<(), Failure> {
        let is_in = match (ip_host(url), url.host_str()) {
            (Some(ip), _) => self.allows(ip),
            (None, Some(name)) => self == Self::FromObject || !is_localhost(name),
            (None, None) => false,
        };
        if is_in {
            return Ok(());
        }
        Err(unsafe_redirect(&format!(
            "{} is an address that plugins are not fetched from",
            host_of(url)
        )))
    }
}

/// The host, if it is an IP address. `Url` has normalised its spelling: 2130706433 is 127.0.0.1 here.
fn ip_host(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

/// The target of a redirect, if it is allowed.
pub(super) fn redirect_target(from: &Url, location: &str, policy: AddressPolicy) -> Result<Url, Failure> {
    let Ok(to) = from.join(location) else {
        return Err(unsafe_redirect("it redirects to an invalid URL"));
    };
    let is_allowed = match to.scheme() {
        "https" => true,
        "http" => from.scheme() == "http",
        _ => false,
    };
    if !is_allowed {
        return Err(unsafe_redirect(&format!(
            "it redirects from {} to {}: {}",
            from.scheme(),
            to.scheme(),
            host_of(&to)
        )));
    }
    if to.origin() != from.origin() {
        policy.check(&to)?;
    }
    Ok(to)
}

/// The URL of a registry's token server, if it is allowed.
pub(super) fn token_server_url(registry: &Url, realm: &str, allowed: impl Fn(&str) -> bool) -> Result<Url, Failure> {
    let Ok(to) = Url::parse(realm) else {
        return Err(unsafe_redirect("the realm that it names for tokens is an invalid URL"));
    };
    let (ours, theirs) = (
        registry.host_str().unwrap_or_default(),
        to.host_str().unwrap_or_default(),
    );
    let is_same = ours == theirs;
    let is_safe = to.scheme() == "https" || (is_same && to.scheme() == "http" && registry.scheme() == "http");
    if !is_safe {
        return Err(unsafe_redirect(&format!("it asks to log in at {theirs} without TLS")));
    }
    if is_same || allowed(theirs) {
        return Ok(to);
    }
    if !is_same_site(ours, theirs) {
        return Err(unsafe_redirect(&format!(
            "it asks to log in at {theirs}, which is another site; if that is right, start the manager with \
             --registry-auth-host={theirs}"
        )));
    }
    AddressPolicy::for_registry(registry).check(&to)?;
    Ok(to)
}

/// Whether two host names belong to one owner, judged without the list of public suffixes: the last two labels are equal, or the
/// last three if the last two look like `co.uk`. IP addresses and single labels never do.
fn is_same_site(a: &str, b: &str) -> bool {
    let is_name = |host: &str| host.parse::<IpAddr>().is_err() && !host.starts_with('[');
    let (mut ours, mut theirs) = (a.rsplit('.'), b.rsplit('.'));
    let (Some(top), Some(second)) = (ours.next(), ours.next()) else {
        return false;
    };
    if !is_name(a) || !is_name(b) || theirs.next() != Some(top) || theirs.next() != Some(second) {
        return false;
    }
    if top.len() > 2 || second.len() > 3 {
        return true;
    }
    matches!((ours.next(), theirs.next()), (Some(a), Some(b)) if a == b)
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or("nowhere").to_owned()
}

fn unsafe_redirect(problem: &str) -> Failure {
    Failure::new(
        FailureReason::UnsafeRedirect,
        format!("the registry is not followed: {problem}"),
    )
}

/// A DNS resolver that leaves out addresses that its policy forbids.
#[derive(Clone)]
pub(super) struct Resolver {
    pub(super) policy: AddressPolicy,
    /// Static names, which are not resolved by DNS.
    pub(super) hosts: Arc<BTreeMap<String, IpAddr>>,
    /// Names of proxies. They may have any address, because the administrator chose them.
    pub(super) proxies: Arc<Vec<String>>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { policy, hosts, proxies } = self.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found: Vec<SocketAddr> = match hosts.get(name) {
                Some(ip) => vec![SocketAddr::new(*ip, 0)],
                None => tokio::net::lookup_host((name, 0)).await?.collect(),
            };
            if proxies.iter().any(|proxy| proxy == name) {
                return Ok(Box::new(found.into_iter()) as Addrs);
            }
            let allowed: Vec<SocketAddr> = found
                .into_iter()
                .filter(|address| policy.allows(address.ip()))
                .collect();
            if allowed.is_empty() {
                let error = io::Error::new(io::ErrorKind::PermissionDenied, OutOfReach(name.to_owned()));
                return Err(error.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// The name has only addresses that are not allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0} is at an address that plugins are not fetched from")]
struct OutOfReach(String);

/// Whether the cause of an error is a name without allowed addresses.
pub(super) fn is_out_of_reach(error: &(dyn std::error::Error + 'static)) -> bool {
    error_chain(error).any(|cause| cause.is::<OutOfReach>())
}

#[cfg(test)]
mod tests;
