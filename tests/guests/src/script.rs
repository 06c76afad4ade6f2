//! The script of the guest `scripted`, as JSON: a verdict for each request. It can express every verdict and edit of the contract,
//! including invalid ones.

mod objects;
mod predicate;
mod request;
mod response;
mod subscription;

pub use objects::ObjectsText;
pub use request::{ActionText, RequestLine};
pub use response::ResponseLine;
pub use subscription::RuleLine;

use std::collections::BTreeMap;

use ctrlmesh_sdk::{Answer, Details, Field, Refusal, Request, Reset};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// Subscription. Default: everything.
    pub subscribe: Option<Vec<RuleLine>>,
    /// The first matching line wins; without one: proceed.
    #[serde(default)]
    pub on_request: Vec<RequestLine>,
    /// The first matching line wins; without one: proceed.
    #[serde(default)]
    pub on_response: Vec<ResponseLine>,
    /// Which objects are kept. Default: all.
    #[serde(default)]
    pub on_objects: ObjectsText,
    /// Counts each completed request as metric `completed` with the label `<status>`. Subscribes to the phase.
    #[serde(default)]
    pub count_completed: bool,
}

/// Conditions on a request. All that are set must hold; values are compared exactly.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct When {
    verb: Option<String>,
    group: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    method: Option<String>,
    path: Option<String>,
    host: Option<String>,
    user_agent: Option<String>,
    label_selector: Option<String>,
    field_selector: Option<String>,
    size: Option<u64>,
    leader_lock: Option<bool>,
    recheck: Option<bool>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    query: BTreeMap<String, String>,
}

impl When {
    fn matches_request(&self, req: &dyn Request) -> bool {
        let same = |expected: &Option<String>, actual: &dyn Fn() -> String| {
            expected.as_ref().is_none_or(|expected| *expected == actual())
        };
        same(&self.verb, &|| lower_case_name(&req.verb()))
            && same(&self.group, &|| req.group().to_owned())
            && same(&self.resource, &|| req.resource().to_owned())
            && same(&self.subresource, &|| req.subresource().to_owned())
            && same(&self.namespace, &|| req.namespace().to_owned())
            && same(&self.name, &|| req.name().to_owned())
            && same(&self.method, &|| req.method())
            && same(&self.path, &|| req.path())
            && same(&self.host, &|| req.host())
            && same(&self.user_agent, &|| req.user_agent())
            && same(&self.label_selector, &|| req.label_selector())
            && same(&self.field_selector, &|| req.field_selector())
            && self.size.is_none_or(|size| req.size() == Some(size))
            && self.leader_lock.is_none_or(|lock| req.is_leader_lock() == lock)
            && self.recheck.is_none_or(|recheck| req.is_recheck() == recheck)
            && self
                .headers
                .iter()
                .all(|(name, value)| req.header(name).as_ref() == Some(value))
            && self
                .query
                .iter()
                .all(|(name, value)| req.query(name).as_ref() == Some(value))
    }
}

/// The contract's name in lower case. The bindings print `Verb::List`.
fn lower_case_name(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.rsplit("::").next().unwrap_or(&text).to_lowercase()
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldText {
    name: String,
    value: String,
}

impl From<FieldText> for Field {
    fn from(field: FieldText) -> Self {
        Field::new(field.name, field.value)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RefusalText {
    code: u16,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    retry_after_seconds: Option<u32>,
    cause: Option<String>,
    details: Option<DetailsText>,
}

impl From<RefusalText> for Refusal {
    fn from(text: RefusalText) -> Self {
        let RefusalText {
            code,
            reason,
            message,
            retry_after_seconds,
            cause,
            details,
        } = text;
        Refusal {
            code,
            reason,
            message,
            retry_after_seconds,
            cause,
            details: details.map(Into::into),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DetailsText {
    #[serde(default)]
    name: String,
    #[serde(default)]
    group: String,
    kind: String,
    /// Reasons of causes; the number of repetitions is up to the test.
    #[serde(default)]
    causes: Vec<String>,
}

impl From<DetailsText> for Details {
    fn from(text: DetailsText) -> Self {
        let details = Details::new(text.group, text.kind, text.name);
        text.causes
            .into_iter()
            .fold(details, |details, reason| details.cause(reason, "message", "field"))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnswerText {
    code: u16,
    #[serde(default)]
    headers: Vec<FieldText>,
    #[serde(default)]
    body: String,
    #[serde(default)]
    close_connection: bool,
}

impl From<AnswerText> for Answer {
    fn from(text: AnswerText) -> Self {
        Answer {
            code: text.code,
            headers: text.headers.into_iter().map(Into::into).collect(),
            body: text.body.into_bytes(),
            close_connection: text.close_connection,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ResetText {
    #[default]
    Cancel,
    InternalError,
    Close,
    Hang,
    BlackHole,
}

impl From<ResetText> for Reset {
    fn from(text: ResetText) -> Self {
        match text {
            ResetText::Cancel => Reset::Cancel,
            ResetText::InternalError => Reset::InternalError,
            ResetText::Close => Reset::Close,
            ResetText::Hang => Reset::Hang,
            ResetText::BlackHole => Reset::BlackHole,
        }
    }
}
