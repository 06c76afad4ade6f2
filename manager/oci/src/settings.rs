//! How registries are reached, and the limits.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How registries are reached.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// PEM file with certificate authorities that are trusted beside the system's. Read again for each pull, as it is a mounted
    /// volume.
    pub ca_file: Option<PathBuf>,
    /// `host` or `host:port` of registries that speak plain HTTP.
    pub insecure: BTreeSet<String>,
    /// Hosts that any registry may send us to for tokens.
    pub auth_hosts: BTreeSet<String>,
    /// Proxies between us and registries.
    pub proxies: Proxies,
    /// How long things take.
    pub times: Times,
    /// Packed components that are held at most, bytes.
    pub cache_bytes: usize,
    /// Names that are not looked up, as in /etc/hosts.
    pub hosts: Vec<(String, IpAddr)>,
}

/// Proxies, as the environment names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For `https://`.
    pub https: Option<String>,
    /// For `http://`.
    pub http: Option<String>,
    /// Who is reached directly: names, domains and networks with commas between them.
    pub except: Option<String>,
}

/// How long things take.
#[derive(Clone, Debug)]
pub struct Times {
    /// Until a connection is open.
    pub connect: Duration,
    /// Between two reads of an answer.
    pub read: Duration,
    /// A whole pull with all its tries.
    pub pull: Duration,
    /// Pause before the second try of a request; it doubles.
    pub pause: Duration,
    /// Longest `Retry-After` that a pull waits for. After a longer one the pull fails, and comes back then.
    pub patience: Duration,
    /// Pause before a failed pull is tried again; it doubles.
    pub again: Duration,
    /// Longest such pause.
    pub again_at_most: Duration,
    /// How often the tag of a plugin with `pullPolicy: Always` is looked up.
    pub recheck: Duration,
    /// What nobody has asked for so long is forgotten.
    pub idle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(15),
            // 16 MiB at 1 Mbit/s; and less than the pause at most.
            pull: Duration::from_secs(150),
            pause: Duration::from_millis(250),
            patience: Duration::from_secs(20),
            again: Duration::from_secs(5),
            // An image that was pushed again, or a Secret that was mended, is seen after this without another event.
            again_at_most: Duration::from_secs(300),
            // Docker Hub counts lookups of anonymous clients: 100 in 6 hours. Lookups by HEAD are free there.
            recheck: Duration::from_secs(180),
            idle: Duration::from_secs(900),
        }
    }
}

impl Proxies {
    /// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, and the same in lower case.
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
    fn proxies_come_from_both_spellings_and_empty_is_none() {
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
