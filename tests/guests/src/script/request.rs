//! Verdicts on requests, as JSON.

use ctrlmesh_sdk::{Rename, Request, RequestAction, RequestEdit, RequestVerdict};
use serde::Deserialize;

use super::{FieldText, RefusalText, ResetText, When};

/// One line of the script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestLine {
    #[serde(default)]
    when: When,
    /// Milliseconds to wait first.
    #[serde(default)]
    delay_ms: u32,
    /// How often to say each edit.
    #[serde(default = "once")]
    times: usize,
    then: Then,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Then {
    Proceed(Vec<EditText>),
    Refuse(RefusalText),
    Reset(ResetText),
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
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RenameText {
    from: String,
    to: String,
}

fn once() -> usize {
    1
}

impl RequestLine {
    /// Whether this line is for that request.
    #[must_use]
    pub fn is_for(&self, req: &dyn Request) -> bool {
        self.when.holds(req)
    }

    /// The verdict that it asks for.
    #[must_use]
    pub fn verdict(&self) -> RequestVerdict {
        let action = match self.then.clone() {
            Then::Proceed(edits) => {
                let often = std::iter::repeat_n(edits, self.times).flatten();
                RequestAction::Proceed(often.map(Into::into).collect())
            }
            Then::Refuse(refusal) => RequestAction::Refuse(refusal.into()),
            Then::Reset(reset) => RequestAction::Reset(reset.into()),
        };
        RequestVerdict {
            delay_ms: self.delay_ms,
            action,
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
        }
    }
}
