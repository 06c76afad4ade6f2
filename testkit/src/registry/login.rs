//! Who may pull, and what others are told.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The one token that is ever given out.
const TOKEN: &str = "a-token-of-the-testkit";
/// The service that tokens are for.
const SERVICE: &str = "testkit";

/// Who may pull.
#[derive(Debug, Clone, Default)]
pub enum Login {
    /// Everybody.
    #[default]
    Nobody,
    /// Who knows user and password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// Who has a token of the token endpoint, which asks for user and password; without a user, everybody gets one.
    Bearer {
        /// The user; empty: anybody.
        user: String,
        /// The password.
        password: String,
        /// The endpoint that a challenge names; empty: `/token` of this registry.
        realm: String,
    },
}

impl Login {
    /// The challenge for a request for content, if it may not have it.
    pub(super) fn challenge(&self, authorization: &str, scheme: &str, host: &str) -> Option<String> {
        match self {
            Self::Nobody => None,
            Self::Basic { user, password } => {
                (authorization != basic(user, password)).then(|| "Basic realm=\"testkit\"".to_owned())
            }
            Self::Bearer { realm, .. } => (authorization != format!("Bearer {TOKEN}")).then(|| {
                let own = format!("{scheme}://{host}/token");
                let realm = if realm.is_empty() { &own } else { realm };
                format!("Bearer realm=\"{realm}\",service=\"{SERVICE}\",scope=\"repository:any:pull\"")
            }),
        }
    }

    /// The answer of the token endpoint; `None`: refused.
    pub(super) fn token(&self, authorization: &str, query: &str) -> Option<String> {
        let Self::Bearer { user, password, .. } = self else {
            return None;
        };
        let is_known = user.is_empty() || authorization == basic(user, password);
        let is_asked_well = query.contains(&format!("service={SERVICE}"))
            && query.contains("scope=repository%3A")
            && query.contains("%3Apull");
        (is_known && is_asked_well).then(|| serde_json::json!({ "token": TOKEN, "expires_in": 60 }).to_string())
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
