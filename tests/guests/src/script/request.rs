//! Verdicts on requests, as JSON.

use ctrlmesh_sdk::{
    Admission, Host, ObjectRefusal, OutcomeRule, Phases, Place, Refusal, Rename, Request, RequestAction, RequestEdit,
    RequestVerdict, Reuse,
};
use serde::Deserialize;

use super::predicate::PredicateText;
use super::{AnswerText, FieldText, RefusalText, ResetText, When};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestLine {
    #[serde(default)]
    when: When,
    /// Milliseconds to wait first.
    #[serde(default)]
    delay_ms: u32,
    /// How often to repeat each edit.
    #[serde(default = "default_times")]
    times: usize,
    #[serde(default)]
    reuse: ReuseText,
    /// Stored with the request.
    note: Option<u64>,
    /// Shown in `/status`.
    report: Option<ReportText>,
    /// The later phases that are wanted. Default: all.
    later: Option<Vec<PhaseText>>,
    /// How the outcome is counted. The cells are read for it.
    #[serde(default)]
    outcomes: Vec<OutcomeText>,
    /// Held while the request is in flight; without a free place it is refused with 429.
    place: Option<PlaceText>,
    then: Then,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportText {
    key: String,
    /// JSON, or an invalid text.
    json: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PhaseText {
    OnResponse,
    OnComplete,
}

/// How often the verdict may be given.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ReuseText {
    #[default]
    Never,
    WhileUnchanged,
    UntilUnixMs(u64),
}

/// Failures in a row that are counted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OutcomeText {
    tally: String,
    #[serde(default)]
    cells: Vec<String>,
    #[serde(default)]
    at_head: bool,
    failures: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceText {
    key: String,
    max: u32,
}

/// An action for the settings of another guest, in the same grammar.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct ActionText(Then);

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Then {
    Proceed(Vec<EditText>),
    Refuse(RefusalText),
    Reset(ResetText),
    Answer(AnswerText),
    RefuseConnections(u32),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum EditText {
    AndLabelSelector(String),
    AndFieldSelector(String),
    SetQuery(FieldText),
    RemoveQuery(String),
    SetHeader(FieldText),
    RemoveHeader(String),
    RenameObject(RenameText),
    KeepObjects(Box<PredicateText>),
    DropFields(Vec<String>),
    AskAboutObjects(Vec<String>),
    RequireObjectMatch(Box<RequirementText>),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequirementText {
    predicate: PredicateText,
    refusal: ObjectRefusalText,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ObjectRefusalText {
    Conflict,
    NotFound,
    Forbidden,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenameText {
    from: String,
    to: String,
}

fn default_times() -> usize {
    1
}

impl RequestLine {
    /// Whether this line matches the request.
    #[must_use]
    pub fn is_for(&self, req: &dyn Request) -> bool {
        self.when.matches_request(req)
    }

    /// Applies notes, reports and places, and returns the verdict.
    #[must_use]
    pub fn verdict(&self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        if let Some(note) = self.note {
            req.set_note(note);
        }
        if let Some(report) = &self.report {
            host.put_report(&report.key, &report.json);
        }
        if let Some(PlaceText { key, max }) = &self.place {
            let place = Place {
                key: key.clone(),
                max: *max,
            };
            match host.admit(&[], &[place]) {
                Ok(Admission::Granted(_)) => {}
                other => return RequestVerdict::refuse(Refusal::new(429, format!("{other:?}"))),
            }
        }
        for key in self.outcomes.iter().flat_map(|outcome| &outcome.cells) {
            let _ = host.get(key);
        }
        RequestVerdict {
            delay_ms: self.delay_ms,
            action: self.then.action(self.times),
            reuse: self.reuse.into(),
            later: self
                .later
                .as_ref()
                .map_or(Phases::all(), |later| later.iter().copied().map(Phases::from).collect()),
            outcomes: self.outcomes.iter().map(OutcomeText::rule).collect(),
        }
    }
}

impl ActionText {
    /// The action with each edit once.
    #[must_use]
    pub fn action(&self) -> RequestAction {
        self.0.action(1)
    }
}

impl Then {
    /// The action with each edit so many times.
    fn action(&self, times: usize) -> RequestAction {
        match self.clone() {
            Self::Proceed(edits) => {
                let often = std::iter::repeat_n(edits, times).flatten();
                RequestAction::Proceed(often.map(Into::into).collect())
            }
            Self::Refuse(refusal) => RequestAction::Refuse(refusal.into()),
            Self::Reset(reset) => RequestAction::Reset(reset.into()),
            Self::Answer(answer) => RequestAction::Answer(answer.into()),
            Self::RefuseConnections(length) => RequestAction::RefuseConnections(length),
        }
    }
}

impl OutcomeText {
    fn rule(&self) -> OutcomeRule {
        let rule = OutcomeRule::new(&self.tally).at_head(self.at_head);
        let rule = self.cells.iter().fold(rule, OutcomeRule::cell);
        rule.consecutive_failures(self.failures)
    }
}

impl From<PhaseText> for Phases {
    fn from(text: PhaseText) -> Self {
        match text {
            PhaseText::OnResponse => Phases::ON_RESPONSE,
            PhaseText::OnComplete => Phases::ON_COMPLETE,
        }
    }
}

impl From<ReuseText> for Reuse {
    fn from(text: ReuseText) -> Self {
        match text {
            ReuseText::Never => Reuse::Never,
            ReuseText::WhileUnchanged => Reuse::WhileUnchanged,
            ReuseText::UntilUnixMs(moment) => Reuse::UntilUnixMs(moment),
        }
    }
}

impl From<EditText> for RequestEdit {
    fn from(edit: EditText) -> Self {
        match edit {
            EditText::AndLabelSelector(selector) => RequestEdit::AndLabelSelector(selector),
            EditText::AndFieldSelector(selector) => RequestEdit::AndFieldSelector(selector),
            EditText::SetQuery(field) => RequestEdit::SetQuery(field.into()),
            EditText::RemoveQuery(name) => RequestEdit::RemoveQuery(name),
            EditText::SetHeader(field) => RequestEdit::SetHeader(field.into()),
            EditText::RemoveHeader(name) => RequestEdit::RemoveHeader(name),
            EditText::RenameObject(RenameText { from, to }) => RequestEdit::RenameObject(Rename { from, to }),
            EditText::KeepObjects(predicate) => RequestEdit::keep_objects((*predicate).into()),
            EditText::DropFields(paths) => RequestEdit::DropFields(paths),
            EditText::AskAboutObjects(annotations) => RequestEdit::AskAboutObjects(annotations),
            EditText::RequireObjectMatch(requirement) => {
                let RequirementText { predicate, refusal } = *requirement;
                RequestEdit::require_object_match(predicate.into(), refusal.into())
            }
        }
    }
}

impl From<ObjectRefusalText> for ObjectRefusal {
    fn from(text: ObjectRefusalText) -> Self {
        match text {
            ObjectRefusalText::Conflict => Self::Conflict,
            ObjectRefusalText::NotFound => Self::NotFound,
            ObjectRefusalText::Forbidden => Self::Forbidden,
        }
    }
}
