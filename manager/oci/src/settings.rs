//! Settings of registries and limits of pulls.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// PEM file with certificate authorities that are trusted in addition to the system's. It is read for each pull, because it is
    /// a mounted volume.
    pub ca_file: Option<PathBuf>,
    /// Registries that speak plain HTTP: `host` or `host:port`.
    pub insecure: BTreeSet<String>,
    /// Hosts that any registry may name as its token server.
    pub auth_hosts: BTreeSet<String>,
    pub proxies: Proxies,
    pub times: Times,
    /// Maximum bytes of packed components in the cache.
    pub cache_bytes: usize,
    /// Static names, as in /etc/hosts.
    pub hosts: Vec<(String, IpAddr)>,
}

/// Proxies as the environment defines them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    pub https: Option<String>,
    pub http: Option<String>,
    /// Hosts that are reached directly: names, domains and networks, separated by commas.
    pub except: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Times {
    /// Timeout of a connection attempt.
    pub connect: Duration,
    /// Longest pause between two reads of a response.
    pub read: Duration,
    /// Timeout of a pull with all its retries.
    pub pull: Duration,
    /// Pause before the first retry of a request; it doubles.
    pub pause: Duration,
    /// Longest `Retry-After` that is waited for within a pull. With a longer one the pull fails and is retried then.
    pub max_retry_after: Duration,
    /// Pause before a failed pull is retried; it doubles.
    pub again: Duration,
    /// Longest pause before a failed pull is retried.
    pub again_at_most: Duration,
    /// Interval at which the tag of a plugin with `pullPolicy: Always` is looked up.
    pub tag_refresh: Duration,
    /// A reference that nobody has asked for in this time is forgotten.
    pub idle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(15),
            // Enough for 16 MiB at 1 Mbit/s, and less than the longest pause.
            pull: Duration::from_secs(150),
            pause: Duration::from_millis(250),
            max_retry_after: Duration::from_secs(20),
            again: Duration::from_secs(5),
            // The time after which an image that was pushed again, or a corrected Secret, is noticed without another event.
            again_at_most: Duration::from_secs(300),
            // Docker Hub limits pulls by anonymous clients to 100 in 6 hours. It does not count HEAD requests.
            tag_refresh: Duration::from_secs(180),
            idle: Duration::from_secs(900),
        }
    }
}

impl Proxies {
    /// Reads `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, or the same names in lower case.
    #[must_use]
    pub fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.or_else(|| variable(&name.to_lowercase()).filter(|value| !value.is_empty()))
        };
        Self {
            https: value("HTTPS_PROXY"),
            http: value("HTTP_PROXY"),
            except: value("NO_PROXY"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_in_both_spellings_and_empty_means_none() {
        let set = [
            ("HTTPS_PROXY", "http://a:3128"),
            ("http_proxy", "http://b:3128"),
            ("NO_PROXY", ""),
            ("no_proxy", ".svc"),
        ];
        let found = Proxies::new(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let expected = Proxies {
            https: Some("http://a:3128".to_owned()),
            http: Some("http://b:3128".to_owned()),
            except: Some(".svc".to_owned()),
        };
        assert_eq!(found, expected);
        assert_eq!(Proxies::new(|_| None), Proxies::default());
    }
}
