//! Verdicts on responses, as JSON.

use ctrlmesh_sdk::{BodyShape, Request, ResponseAction, ResponseEdit, ResponseHead, ResponsePlan, ResponseVerdict};
use serde::Deserialize;

use super::{AnswerText, FieldText, RefusalText, ResetText, When, lower_case_name};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseLine {
    #[serde(default)]
    when: When,
    /// Only responses with this status.
    status: Option<u16>,
    /// Milliseconds to wait first.
    #[serde(default)]
    delay_ms: u32,
    /// Adds headers `x-seen-…` with everything that the plugin sees of the request, and the response header of this name.
    echo: Option<String>,
    /// How often to repeat each edit.
    #[serde(default = "default_times")]
    times: usize,
    then: Then,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Then {
    Proceed(PlanText),
    Replace(RefusalText),
    Reset(ResetText),
    Answer(AnswerText),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlanText {
    #[serde(default)]
    edits: Vec<EditText>,
    body: Option<ShapeText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum EditText {
    SetHeader(FieldText),
    RemoveHeader(String),
    CloseConnection,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShapeText {
    pace: Option<u32>,
    hold_ms: Option<u32>,
    cut_after: Option<u64>,
    end_after_ms: Option<u32>,
    #[serde(default)]
    expired: bool,
    #[serde(default)]
    reset: ResetText,
}

fn default_times() -> usize {
    1
}

impl ResponseLine {
    /// Whether this line matches the response.
    #[must_use]
    pub fn is_for(&self, req: &dyn Request, res: &dyn ResponseHead) -> bool {
        self.when.matches_request(req) && self.status.is_none_or(|status| status == res.status())
    }

    #[must_use]
    pub fn verdict(&self, req: &dyn Request, res: &dyn ResponseHead) -> ResponseVerdict {
        let action = match self.then.clone() {
            Then::Proceed(plan) => {
                let often = std::iter::repeat_n(plan.edits, self.times).flatten();
                let mut edits: Vec<ResponseEdit> = often.map(Into::into).collect();
                edits.extend(self.echo.iter().flat_map(|header| echo_edits(header, req, res)));
                ResponseAction::Proceed(ResponsePlan {
                    edits,
                    body: plan.body.map(Into::into),
                })
            }
            Then::Replace(refusal) => ResponseAction::Replace(refusal.into()),
            Then::Reset(reset) => ResponseAction::Reset(reset.into()),
            Then::Answer(answer) => ResponseAction::Answer(answer.into()),
        };
        ResponseVerdict {
            delay_ms: self.delay_ms,
            action,
        }
    }
}

/// Everything that a plugin can see of a request.
fn echo_edits(header: &str, req: &dyn Request, res: &dyn ResponseHead) -> Vec<ResponseEdit> {
    let seen = [
        ("traffic", lower_case_name(&req.traffic())),
        ("verb", lower_case_name(&req.verb())),
        ("group", req.group().to_owned()),
        ("version", req.version().to_owned()),
        ("resource", req.resource().to_owned()),
        ("subresource", req.subresource().to_owned()),
        ("namespace", req.namespace().to_owned()),
        ("name", req.name().to_owned()),
        ("facts", format!("{:?}", req.facts())),
        ("method", req.method()),
        ("path", req.path()),
        ("host", req.host()),
        ("port", req.port().to_string()),
        ("leader-lock", req.is_leader_lock().to_string()),
        ("note", req.note().to_string()),
        ("user-agent", req.user_agent()),
        ("label-selector", req.label_selector()),
        ("field-selector", req.field_selector()),
        (
            "size",
            req.size().map_or_else(|| "none".to_owned(), |size| size.to_string()),
        ),
        (
            "authorization",
            req.header("authorization").unwrap_or_else(|| "none".to_owned()),
        ),
        (
            "request-header",
            req.header(header).unwrap_or_else(|| "none".to_owned()),
        ),
        ("query", req.query(header).unwrap_or_else(|| "none".to_owned())),
        ("status", res.status().to_string()),
        (
            "response-header",
            res.header(header).unwrap_or_else(|| "none".to_owned()),
        ),
    ];
    let edit = |(name, value)| ResponseEdit::SetHeader(ctrlmesh_sdk::Field::new(format!("x-seen-{name}"), value));
    seen.into_iter().map(edit).collect()
}

impl From<EditText> for ResponseEdit {
    fn from(edit: EditText) -> Self {
        match edit {
            EditText::SetHeader(field) => ResponseEdit::SetHeader(field.into()),
            EditText::RemoveHeader(name) => ResponseEdit::RemoveHeader(name),
            EditText::CloseConnection => ResponseEdit::CloseConnection,
        }
    }
}

impl From<ShapeText> for BodyShape {
    fn from(text: ShapeText) -> Self {
        let ShapeText {
            pace,
            hold_ms,
            cut_after,
            end_after_ms,
            expired,
            reset,
        } = text;
        BodyShape {
            pace,
            hold_ms,
            cut_after,
            end_after_ms,
            expired,
            reset: reset.into(),
        }
    }
}
