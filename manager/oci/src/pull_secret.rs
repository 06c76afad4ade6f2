//! Credentials in Secrets, chosen as kubelet does (`pkg/credentialprovider/keyring.go`).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_manager_api::status::response_text;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde::Deserialize;

use super::failure::{Failure, FailureReason};
use super::reference::Image;

/// Maximum number of a Secret's registries that a message names.
const MAX_NAMED: usize = 5;

/// User and password for a registry. `Debug` shows the user only.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Reads a Secret, and selects its credentials for an image.
pub(super) async fn read_credentials(
    client: &Client,
    namespace: &str,
    name: &str,
    image: &Image,
) -> Result<Credentials, Failure> {
    let wrong = |problem: String| {
        Failure::new(
            FailureReason::PullSecret,
            format!("Secret {namespace}/{name} {problem}"),
        )
    };
    let found = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(name).await;
    let secret = match found {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            return Err(wrong(format!(
                "is not there; make it with `kubectl -n {namespace} create secret docker-registry {name}`, or correct pullSecret"
            )));
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            return Err(wrong(
                "may not be read by the manager; allow `get` of secrets to its ServiceAccount".to_owned(),
            ));
        }
        Err(error) => {
            let problem = match &error {
                kube::Error::Api(status) => response_text(status),
                _ => error.to_string(),
            };
            return Err(Failure::temporary(
                FailureReason::PullSecret,
                format!("can't read Secret {namespace}/{name}: {problem}"),
            ));
        }
    };
    credentials_in(&secret, image).map_err(wrong)
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
}

/// Selects a Secret's credentials for an image.
fn credentials_in(secret: &Secret, image: &Image) -> Result<Credentials, String> {
    let auths = parse_auths(secret)?;
    let mut fitting: Vec<(&String, &Auth)> = auths.iter().filter(|(key, _)| matches_image(key, image)).collect();
    // The most specific one: the longest path, then the fewest wildcards.
    fitting.sort_by_key(|(key, _)| {
        let (host, path) = split_key(key);
        (std::cmp::Reverse(path.len()), host.matches('*').count(), (*key).clone())
    });
    let Some((key, auth)) = fitting.first() else {
        let known: Vec<&str> = auths.keys().map(String::as_str).take(MAX_NAMED).collect();
        return Err(format!(
            "has no credentials for {}; it has some for: {}",
            image.host,
            if known.is_empty() {
                "nothing".to_owned()
            } else {
                known.join(", ")
            }
        ));
    };
    auth.read().map_err(|problem| format!("has {problem} for {key}"))
}

/// The registries of a Secret of either type that Kubernetes defines.
fn parse_auths(secret: &Secret) -> Result<BTreeMap<String, Auth>, String> {
    let data = |key: &str| {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|bytes| bytes.0.as_slice())
    };
    // The parser's message could quote credentials.
    let unreadable =
        |key: &str| format!("has no JSON of Docker in {key}; make it with `kubectl create secret docker-registry`");
    if let Some(bytes) = data(".dockerconfigjson") {
        let config: DockerConfig = serde_json::from_slice(bytes).map_err(|_| unreadable(".dockerconfigjson"))?;
        return Ok(config.auths);
    }
    if let Some(bytes) = data(".dockercfg") {
        return serde_json::from_slice(bytes).map_err(|_| unreadable(".dockercfg"));
    }
    Err(format!(
        "is of type {} and has neither .dockerconfigjson nor .dockercfg; make it with `kubectl create secret docker-registry`",
        secret.type_.as_deref().unwrap_or("Opaque")
    ))
}

impl Auth {
    fn read(&self) -> Result<Credentials, &'static str> {
        if !self.auth.is_empty() {
            let decoded = STANDARD.decode(self.auth.trim()).ok();
            let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = text
                .as_deref()
                .and_then(|text| text.trim_end_matches('\0').split_once(':'));
            let (user, password) = pair.ok_or("an `auth` that is not the base64 of user:password")?;
            return Ok(Credentials {
                user: user.to_owned(),
                password: password.to_owned(),
            });
        }
        match (self.username.is_empty(), self.identitytoken.is_empty()) {
            (false, _) => Ok(Credentials {
                user: self.username.clone(),
                password: self.password.clone(),
            }),
            (true, false) => {
                Err("an identity token, which is not supported (use user and password, or a token as password)")
            }
            (true, true) => Err("neither user nor password"),
        }
    }
}

/// Whether a key of `auths` is for an image: all labels of the host match, the port is the same, and the path is a prefix.
fn matches_image(key: &str, image: &Image) -> bool {
    let (host, path) = split_key(key);
    let is_hub = image.registry == "index.docker.io";
    if is_hub && ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&host) {
        // Docker writes https://index.docker.io/v1/ for Docker Hub.
        return path.is_empty() || image.repository.starts_with(path.trim_start_matches('/'));
    }
    host_fits(host, &image.host) && format!("/{}", image.repository).starts_with(path)
}

/// Splits `https://host:port/v2/path/` into `host:port` and `/path`.
fn split_key(key: &str) -> (&str, &str) {
    let key = key
        .strip_prefix("https://")
        .or(key.strip_prefix("http://"))
        .unwrap_or(key);
    let (host, path) = key.split_at(key.find('/').unwrap_or(key.len()));
    let path = match path.strip_prefix("/v1").or(path.strip_prefix("/v2")) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    };
    (host, path.trim_end_matches('/'))
}

fn host_fits(pattern: &str, host: &str) -> bool {
    let (pattern, pattern_port) = pattern.split_once(':').unwrap_or((pattern, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let labels = (pattern.split('.').count(), host.split('.').count());
    pattern_port == port
        && labels.0 == labels.1
        && pattern
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, label)| label_fits(pattern, label))
}

/// Whether a label matches; `*` stands for any part of it.
fn label_fits(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(label),
        Some((start, rest)) => label.strip_prefix(start).is_some_and(|label| {
            let ends = (0..=label.len()).filter(|end| label.is_char_boundary(*end));
            ends.into_iter()
                .any(|end| label.get(end..).is_some_and(|label| label_fits(rest, label)))
        }),
    }
}

#[cfg(test)]
mod tests;
