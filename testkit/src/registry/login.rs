//! Authentication for pulls, and the challenges for everyone else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The only token that is ever issued.
const TOKEN: &str = "a-token-of-the-testkit";
/// The service in challenges.
const SERVICE: &str = "testkit";

/// The authentication that pulls need.
#[derive(Debug, Clone, Default)]
pub enum Login {
    /// No authentication.
    #[default]
    Nobody,
    /// User and password (`Basic`).
    Basic { user: String, password: String },
    /// A token of the token endpoint (`Bearer`), which requires user and password; without a user, it issues tokens to everyone.
    Bearer {
        /// Empty: anyone.
        user: String,
        password: String,
        /// The endpoint that a challenge names; empty for `/token` of this registry.
        realm: String,
    },
}

impl Login {
    /// The challenge for a request that is not authenticated; `None` if it is.
    pub(super) fn challenge(&self, authorization: &str, scheme: &str, host: &str) -> Option<String> {
        match self {
            Self::Nobody => None,
            Self::Basic { user, password } => {
                (authorization != basic_auth(user, password)).then(|| "Basic realm=\"testkit\"".to_owned())
            }
            Self::Bearer { realm, .. } => (authorization != format!("Bearer {TOKEN}")).then(|| {
                let own = format!("{scheme}://{host}/token");
                let realm = if realm.is_empty() { &own } else { realm };
                format!("Bearer realm=\"{realm}\",service=\"{SERVICE}\",scope=\"repository:any:pull\"")
            }),
        }
    }

    /// The answer of the token endpoint; `None` to refuse.
    pub(super) fn token_response(&self, authorization: &str, query: &str) -> Option<String> {
        let Self::Bearer { user, password, .. } = self else {
            return None;
        };
        let is_known = user.is_empty() || authorization == basic_auth(user, password);
        let is_asked_well = query.contains(&format!("service={SERVICE}"))
            && query.contains("scope=repository%3A")
            && query.contains("%3Apull");
        (is_known && is_asked_well).then(|| serde_json::json!({ "token": TOKEN, "expires_in": 60 }).to_string())
    }
}

fn basic_auth(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
