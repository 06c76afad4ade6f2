//! Tracks the API server's addresses. External traffic must not reach it, because rules for API traffic would not apply there.
//!
//! The known addresses are those of its URL, the recent ones of the URL's host name, the pod's Service `kubernetes` by name and address,
//! and the addresses that the server has advertised (`advertised`). `address_policy` decides which spellings of an address are equal.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::RwLock;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::advertised::{AdvertisedAddress, REFRESH_INTERVAL};
use crate::lock::{read_unpoisoned, write_unpoisoned};
use crate::upstream::Target;

/// DNS names of Service `kubernetes` in namespace `default`; the cluster's domain may follow the last one.
const SERVICE_NAMES: [&str; 3] = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// Time limit of one lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// An address that the name had counts for this long afterwards, because load balancers remove addresses slowly.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(600);

/// An advertised address counts for this long after it was advertised last: another service may get it then. A balancer that picks one of
/// the API servers at random for each query, every 15 seconds, leaves none out for so long.
const ADVERTISED_LIFETIME: Duration = Duration::from_hours(24);

/// Maximum number of remembered advertised addresses; the one that was not seen for the longest time is dropped first.
const MAX_ADVERTISED: usize = 64;

pub(super) struct ApiServer {
    host: String,
    port: u16,
    /// Addresses that do not change: those of the URL and of the Service.
    fixed: Vec<SocketAddr>,
    /// Addresses of `host`, and when they were last seen; stays empty if `host` is an address.
    seen: RwLock<HashMap<IpAddr, Instant>>,
    /// Advertised addresses, and when each was advertised last. None is dropped while no query succeeds.
    advertised: RwLock<HashMap<AdvertisedAddress, Instant>>,
}

impl ApiServer {
    /// `service` is the address of Service `kubernetes` from the pod's environment.
    pub(super) fn new(target: &Target, service: Option<SocketAddr>) -> Self {
        let host = target.host().trim_end_matches('.').to_ascii_lowercase();
        let port = target.port();
        let of_url = host.parse().ok().map(|ip| SocketAddr::new(ip, port));
        Self {
            fixed: of_url.into_iter().chain(service).collect(),
            host,
            port,
            seen: RwLock::default(),
            advertised: RwLock::default(),
        }
    }

    /// Whether this host name is the API server's. `host` is in lower case, without a dot at its end.
    pub(super) fn is_named(&self, host: &str, port: u16) -> bool {
        let is_service = SERVICE_NAMES.contains(&host) || host.starts_with("kubernetes.default.svc.");
        is_service || (host == self.host && port == self.port) || self.advertises(host, port)
    }

    fn advertises(&self, host: &str, port: u16) -> bool {
        let advertised = read_unpoisoned(&self.advertised);
        let is_this = |address: &AdvertisedAddress| matches!(address, AdvertisedAddress::Name(name, of_name) if name == host && *of_name == port);
        advertised.keys().any(is_this)
    }

    /// The API server's addresses with this port; `None` if they are not known yet, so that any address could be one.
    pub(super) fn known_addresses(&self, port: u16) -> Option<Vec<IpAddr>> {
        let fixed = self
            .fixed
            .iter()
            .filter(|address| address.port() == port)
            .map(SocketAddr::ip);
        let mut addresses: Vec<IpAddr> = fixed.collect();
        let advertised = read_unpoisoned(&self.advertised);
        addresses.extend(advertised.keys().filter_map(|address| match address {
            AdvertisedAddress::Address(address) if address.port() == port => Some(address.ip()),
            _ => None,
        }));
        drop(advertised);
        if port == self.port && self.host.parse::<IpAddr>().is_err() {
            let seen = read_unpoisoned(&self.seen);
            if seen.is_empty() {
                return None;
            }
            addresses.extend(seen.keys());
        }
        Some(addresses)
    }

    /// Looks the name up repeatedly until `stop`. Calls `on_change` when an address appears that the name did not have recently.
    pub(super) async fn follow_name(&self, stop: CancellationToken, on_change: impl Fn()) {
        if self.host.parse::<IpAddr>().is_ok() {
            return;
        }
        let mut ticks = tokio::time::interval(REFRESH_INTERVAL);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            let lookup = tokio::net::lookup_host((self.host.as_str(), self.port));
            match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
                Ok(Ok(found)) => {
                    if self.note_addresses(found.map(|address| address.ip().to_canonical())) {
                        on_change();
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, host = self.host, "failed to resolve the API server's name"),
                Err(_) => tracing::debug!(host = self.host, "timed out resolving the API server's name"),
            }
        }
    }

    fn note_addresses(&self, found: impl Iterator<Item = IpAddr>) -> bool {
        let now = Instant::now();
        let mut seen = write_unpoisoned(&self.seen);
        let mut has_changed = false;
        for address in found {
            has_changed |= seen.insert(address, now).is_none();
        }
        seen.retain(|_, last| now.duration_since(*last) < ADDRESS_LIFETIME);
        has_changed
    }

    /// Notes addresses that the server has advertised. Returns whether one of them is new.
    pub(super) fn note_advertised(&self, addresses: impl IntoIterator<Item = AdvertisedAddress>) -> bool {
        let mut has_changed = false;
        let now = Instant::now();
        let mut advertised = write_unpoisoned(&self.advertised);
        for advertised_address in addresses {
            if advertised.insert(advertised_address.clone(), now).is_none() {
                has_changed = true;
                tracing::info!(
                    address = %advertised_address,
                    "the API server advertises this address; external requests may not reach it"
                );
            }
        }
        advertised.retain(|_, last| now.duration_since(*last) < ADVERTISED_LIFETIME);
        while advertised.len() > MAX_ADVERTISED {
            let oldest = advertised
                .iter()
                .min_by_key(|(_, last)| **last)
                .map(|(address, _)| address.clone());
            let Some(oldest) = oldest else { break };
            advertised.remove(&oldest);
        }
        has_changed
    }

    #[cfg(test)]
    pub(super) fn with_addresses(host: &str, port: u16, seen: &[&str]) -> Self {
        let api_server = Self {
            fixed: host
                .parse()
                .ok()
                .map(|ip| SocketAddr::new(ip, port))
                .into_iter()
                .collect(),
            host: host.to_owned(),
            port,
            seen: RwLock::default(),
            advertised: RwLock::default(),
        };
        api_server.note_addresses(seen.iter().map(|text| text.parse().unwrap()));
        api_server
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_server_is_known_by_its_own_name_and_by_those_of_its_service() {
        let api_server = ApiServer::with_addresses("api.example", 6443, &[]);
        for (host, port) in [
            ("kubernetes", 443),
            ("kubernetes.default", 8443),
            ("kubernetes.default.svc", 443),
            ("kubernetes.default.svc.cluster.local", 443),
            ("kubernetes.default.svc.corp.example", 443),
            ("api.example", 6443),
        ] {
            assert!(api_server.is_named(host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("api.example", 443),
            ("kubernetes.other.svc", 443),
            ("kubernetes.default.example", 443),
            ("kubernetes.io", 443),
        ] {
            assert!(!api_server.is_named(host, port), "{host}:{port}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn advertised_addresses_count_as_api_server_besides_configured_one() {
        let api_server = ApiServer::with_addresses("192.0.2.1", 443, &[]);
        assert!(!api_server.is_named("api.example", 6443));
        let addresses = |port| api_server.known_addresses(port).unwrap();
        assert_eq!((addresses(443).len(), addresses(6443).len()), (1, 0));
        let address = |address: &str| AdvertisedAddress::Address(address.parse().unwrap());
        api_server.note_advertised([
            address("10.0.0.5:6443"),
            AdvertisedAddress::Name("api.example".to_owned(), 6443),
        ]);
        tokio::time::advance(2 * ADDRESS_LIFETIME).await;
        assert!(api_server.is_named("api.example", 6443) && !api_server.is_named("api.example", 443));
        assert_eq!(addresses(6443), ["10.0.0.5".parse::<IpAddr>().unwrap()]);
        assert_eq!(addresses(443).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn advertised_addresses_are_bounded_and_longest_unseen_is_dropped_first() {
        let api_server = ApiServer::with_addresses("192.0.2.1", 443, &[]);
        let address = |number: usize| {
            AdvertisedAddress::Address(SocketAddr::from(([10, 0, 0, u8::try_from(number).unwrap()], 6443)))
        };
        for number in 0..=MAX_ADVERTISED {
            tokio::time::advance(REFRESH_INTERVAL).await;
            api_server.note_advertised([address(0), address(number)]);
        }
        let kept = api_server.known_addresses(6443).unwrap();
        assert_eq!(kept.len(), MAX_ADVERTISED);
        assert!(kept.contains(&IpAddr::from([10, 0, 0, 0])) && !kept.contains(&IpAddr::from([10, 0, 0, 1])));
    }

    #[tokio::test(start_paused = true)]
    async fn advertised_addresses_count_for_one_day_after_they_were_advertised() {
        let api_server = ApiServer::with_addresses("192.0.2.1", 443, &[]);
        let address = |address: &str| AdvertisedAddress::Address(address.parse().unwrap());
        let known = |last: &str| {
            api_server
                .known_addresses(6443)
                .unwrap()
                .contains(&last.parse().unwrap())
        };
        api_server.note_advertised([
            address("10.0.0.5:6443"),
            AdvertisedAddress::Name("api.example".to_owned(), 6443),
        ]);
        tokio::time::advance(2 * ADVERTISED_LIFETIME).await;
        assert!(known("10.0.0.5"), "no query has succeeded since");
        assert!(!api_server.note_advertised([address("10.0.0.5:6443")]), "it is known");
        assert!(
            !api_server.is_named("api.example", 6443),
            "the name was not advertised again"
        );
        tokio::time::advance(ADVERTISED_LIFETIME - REFRESH_INTERVAL).await;
        api_server.note_advertised([address("10.0.0.6:6443")]);
        assert!(known("10.0.0.5") && known("10.0.0.6"));
        tokio::time::advance(REFRESH_INTERVAL).await;
        api_server.note_advertised([address("10.0.0.6:6443")]);
        assert!(!known("10.0.0.5") && known("10.0.0.6"));
        assert!(
            api_server.note_advertised([address("10.0.0.5:6443")]),
            "it is new again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_count_for_ten_minutes_after_name_lost_them() {
        let (first, second): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let api_server = ApiServer::with_addresses("api.example", 6443, &[]);
        assert_eq!(api_server.known_addresses(6443), None, "it could be anywhere");
        assert_eq!(api_server.known_addresses(443), Some(Vec::new()));
        api_server.note_addresses([first].into_iter());
        tokio::time::advance(ADDRESS_LIFETIME - REFRESH_INTERVAL).await;
        api_server.note_addresses([second].into_iter());
        assert_eq!(api_server.known_addresses(6443).map(|known| known.len()), Some(2));
        tokio::time::advance(REFRESH_INTERVAL).await;
        api_server.note_addresses([second].into_iter());
        assert_eq!(api_server.known_addresses(6443), Some(vec![second]));
    }
}
