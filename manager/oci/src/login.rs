//! Authentication at a registry (RFC 9110 §11.6.1; distribution, "Token Authentication Specification").

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

use super::pull_secret::Credentials;

/// Maximum size of a token response; those of cloud registries have some KiB.
pub(super) const MAX_TOKEN_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    /// Get a token from `realm`.
    Bearer {
        /// URL of the token server.
        realm: String,
        service: String,
    },
}

/// The challenge of a response. Tokens are preferred, because then only the token server gets the password.
pub(super) fn challenge_of(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let found: Vec<Challenge> = texts
        .filter_map(|text| http_auth::parse_challenges(text).ok())
        .flatten()
        .filter_map(|challenge| {
            let parameter = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            match challenge.scheme.to_ascii_lowercase().as_str() {
                "bearer" => Some(Challenge::Bearer {
                    realm: parameter("realm")?,
                    service: parameter("service").unwrap_or_default(),
                }),
                "basic" => Some(Challenge::Basic),
                _ => None,
            }
        })
        .collect();
    let bearer = found
        .iter()
        .find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(found.first()).cloned()
}

/// `Authorization` with user and password.
pub(super) fn basic_header(credentials: &Credentials) -> HeaderValue {
    let pair = STANDARD.encode(format!("{}:{}", credentials.user, credentials.password));
    sensitive_header(&format!("Basic {pair}")).unwrap_or(HeaderValue::from_static(""))
}

#[derive(Deserialize)]
struct Tokens {
    token: Option<String>,
    access_token: Option<String>,
}

/// `Authorization` with the token of a token server's response.
pub(super) fn bearer_header(response: &[u8]) -> Option<HeaderValue> {
    let tokens: Tokens = serde_json::from_slice(response).ok()?;
    let token = tokens.token.or(tokens.access_token).filter(|token| !token.is_empty())?;
    sensitive_header(&format!("Bearer {token}"))
}

fn sensitive_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_challenge(texts: &[&str]) -> Option<Challenge> {
        challenge_of(
            &texts
                .iter()
                .map(|text| (WWW_AUTHENTICATE, text.parse().unwrap()))
                .collect(),
        )
    }

    #[test]
    fn token_challenge_is_preferred_to_basic() {
        let bearer = Some(Challenge::Bearer {
            realm: "https://auth.docker.io/token".to_owned(),
            service: "registry.docker.io".to_owned(),
        });
        let text =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        assert_eq!(parse_challenge(&[text]), bearer);
        assert_eq!(parse_challenge(&["Basic realm=\"x\"", text]), bearer);
        assert_eq!(parse_challenge(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        for other in ["Negotiate", "Bearer service=\"x\"", "\"", ""] {
            assert_eq!(parse_challenge(&[other]), None, "{other}");
        }
    }

    #[test]
    fn tokens_are_read_under_both_names_and_never_shown() {
        for response in [
            r#"{"token":"t"}"#,
            r#"{"access_token":"t"}"#,
            r#"{"token":"t","access_token":"t"}"#,
        ] {
            let value = bearer_header(response.as_bytes()).unwrap();
            assert_eq!(value.to_str().unwrap(), "Bearer t");
            assert_eq!(format!("{value:?}"), "Sensitive");
        }
        for response in ["{}", r#"{"token":""}"#, "[]", r#"{"token":"a\nb"}"#] {
            assert!(bearer_header(response.as_bytes()).is_none(), "{response}");
        }
    }
}
