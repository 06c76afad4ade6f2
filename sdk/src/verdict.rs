//! Constructors for verdicts and edits; those for refusals and answers are in `refusal.rs`. Their meaning is defined in `wit/types.wit`.

use crate::{
    Answer, BodyShape, Counted, Field, ObjectPredicate, ObjectRefusal, ObjectRequirement, OutcomeRule, Phases, Refusal,
    Rename, RequestAction, RequestEdit, RequestVerdict, Reset, ResponseAction, ResponseEdit, ResponsePlan,
    ResponseVerdict, Reuse,
};

impl RequestVerdict {
    /// Passes the request on unchanged.
    #[must_use]
    pub fn proceed() -> Self {
        Self::edit([])
    }

    /// Go on with these edits, applied in this order.
    pub fn edit(edits: impl IntoIterator<Item = RequestEdit>) -> Self {
        RequestAction::Proceed(edits.into_iter().collect()).into()
    }

    /// Answer with a Kubernetes `Status`; nothing reaches the API server.
    #[must_use]
    pub fn refuse(refusal: Refusal) -> Self {
        RequestAction::Refuse(refusal).into()
    }

    /// Break the client's request off; nothing reaches the API server.
    #[must_use]
    pub fn reset(reset: Reset) -> Self {
        RequestAction::Reset(reset).into()
    }

    /// Answer with these bytes, which are no Status; nothing reaches the API server.
    #[must_use]
    pub fn answer(answer: Answer) -> Self {
        RequestAction::Answer(answer).into()
    }

    /// Close the sidecar's port for so many milliseconds (at most 60 000), and every client connection.
    #[must_use]
    pub fn refuse_connections(for_ms: u32) -> Self {
        RequestAction::RefuseConnections(for_ms).into()
    }

    /// The same, after so many milliseconds. The host bounds it (default: 60 000).
    #[must_use]
    pub fn after_ms(mut self, delay_ms: u32) -> Self {
        self.delay_ms = delay_ms;
        self
    }

    /// The host may give this verdict again while everything that this call has read of the request and of cells is the
    /// same: it depends on nothing else but the settings. `wit/types.wit` (`reuse`) has the rules; never by default.
    #[must_use]
    pub fn reusable(mut self) -> Self {
        self.reuse = Reuse::WhileUnchanged;
        self
    }

    /// As [`reusable`](Self::reusable), until the wall clock ([`Host::unix_ms`](crate::Host::unix_ms)) reaches this moment.
    #[must_use]
    pub fn reusable_until(mut self, unix_ms: u64) -> Self {
        self.reuse = Reuse::UntilUnixMs(unix_ms);
        self
    }

    /// The host counts the outcome of this request by this rule, without a call. At most 24 rules, each with another tally.
    #[must_use]
    pub fn count_outcome(mut self, rule: OutcomeRule) -> Self {
        self.outcomes.push(rule);
        self
    }

    /// Only these later phases are called for this request, of those in the subscription; all by default.
    #[must_use]
    pub fn later(mut self, phases: Phases) -> Self {
        self.later = phases;
        self
    }
}

impl From<RequestAction> for RequestVerdict {
    fn from(action: RequestAction) -> Self {
        Self {
            delay_ms: 0,
            action,
            reuse: Reuse::Never,
            later: Phases::all(),
            outcomes: Vec::new(),
        }
    }
}

impl Counted {
    /// Adds `by` to the counter `ctrlmesh_plugin_<name>_total` with this label.
    pub fn new(name: impl Into<String>, label: impl Into<String>, by: u64) -> Self {
        Self {
            name: name.into(),
            label: label.into(),
            by,
        }
    }
}

impl RequestEdit {
    /// ANDs a label selector with the client's. For list, watch and deletecollection.
    pub fn and_label_selector(selector: impl Into<String>) -> Self {
        Self::AndLabelSelector(selector.into())
    }

    /// ANDs a field selector with the client's. For list, watch and deletecollection.
    pub fn and_field_selector(selector: impl Into<String>) -> Self {
        Self::AndFieldSelector(selector.into())
    }

    /// Sets a query parameter, replacing every value that it had. `labelSelector`, `fieldSelector`, `shardSelector` and
    /// `watch` are the host's: naming one is invalid. So is naming one that the API server does not read on this
    /// verb, such as `dryRun` on a list; `wit/types.wit` has them all. On a delete the options in its body are edited, too:
    /// where there is a body, the API server ignores them in the query.
    pub fn set_query(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::SetQuery(Field::new(name, value))
    }

    /// Removes a query parameter, with the same exceptions as [`set_query`](Self::set_query).
    pub fn remove_query(name: impl Into<String>) -> Self {
        Self::RemoveQuery(name.into())
    }

    /// Sets a header, replacing every value that it had.
    pub fn set_header(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::SetHeader(Field::new(name, value))
    }

    /// Removes all values of a header.
    pub fn remove_header(name: impl Into<String>) -> Self {
        Self::RemoveHeader(name.into())
    }

    /// Calls the object `from` (the controller's name for it) `to` towards the API server, and back.
    pub fn rename_object(from: impl Into<String>, to: impl Into<String>) -> Self {
        Self::RenameObject(Rename {
            from: from.into(),
            to: to.into(),
        })
    }

    /// Leaves objects that do not match out of the response, or out of the delete of a collection. For list, watch and
    /// deletecollection. Several such edits add up.
    #[must_use]
    pub fn keep_objects(predicate: ObjectPredicate) -> Self {
        Self::KeepObjects(predicate.into_nodes())
    }

    /// Leaves these fields out of the objects of the response. For list and watch. Several such edits add up.
    ///
    /// A path is `metadata.managedFields`, `spec.template` or `metadata.annotations["example.com/a"]`; at most 16 in an
    /// edit. Not for clients that write what they have read: a PUT removes all fields that were left out but
    /// `metadata.managedFields`, and server-side apply from a trimmed object (`Extract…` in client-go) gives up the fields
    /// that it owned. `wit/types.wit` (`drop-fields`) has the rules.
    pub fn drop_fields(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::DropFields(paths.into_iter().map(Into::into).collect())
    }

    /// Asks the plugin which objects of the response the client gets ([`Plugin::on_objects`](crate::Plugin::on_objects)), for what no
    /// predicate can say. Names the annotations that it needs, at most 16. For list and watch. Adds up with
    /// [`keep_objects`](Self::keep_objects): the plugin is asked about objects that match. `wit/types.wit` (`ask-about-objects`) has
    /// the rules.
    pub fn ask_about_objects(annotations: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::AskAboutObjects(annotations.into_iter().map(Into::into).collect())
    }

    /// Sends the request only if its object matches the predicate, and refuses it in this way otherwise. For requests that name one
    /// object: get, update, patch, delete, and every verb of a subresource. `wit/types.wit` (`require-object-match`) has the rules.
    #[must_use]
    pub fn require_object_match(predicate: ObjectPredicate, refusal: ObjectRefusal) -> Self {
        Self::RequireObjectMatch(ObjectRequirement {
            predicate: predicate.into_nodes(),
            refusal,
        })
    }
}

impl Field {
    /// A header or query field.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl ResponseVerdict {
    /// Hand the response on, untouched.
    #[must_use]
    pub fn proceed() -> Self {
        Self::edit(ResponsePlan::default())
    }

    /// Hand the response on, changed by this plan.
    #[must_use]
    pub fn edit(plan: ResponsePlan) -> Self {
        ResponseAction::Proceed(plan).into()
    }

    /// Send this instead; the API server's response is dropped.
    #[must_use]
    pub fn replace(refusal: Refusal) -> Self {
        ResponseAction::Replace(refusal).into()
    }

    /// Break off. The request was executed, and its response is lost.
    #[must_use]
    pub fn reset(reset: Reset) -> Self {
        ResponseAction::Reset(reset).into()
    }

    /// Send these bytes instead, which are no Status; the API server's response is dropped.
    #[must_use]
    pub fn answer(answer: Answer) -> Self {
        ResponseAction::Answer(answer).into()
    }

    /// The same, after so many milliseconds. The host bounds it (default: 60 000).
    #[must_use]
    pub fn after_ms(mut self, delay_ms: u32) -> Self {
        self.delay_ms = delay_ms;
        self
    }
}

impl From<ResponseAction> for ResponseVerdict {
    fn from(action: ResponseAction) -> Self {
        Self { delay_ms: 0, action }
    }
}

impl Default for ResponsePlan {
    /// The response passes unchanged.
    fn default() -> Self {
        Self {
            edits: Vec::new(),
            body: None,
        }
    }
}

impl ResponsePlan {
    /// Sets a response header, replacing every value that it had.
    #[must_use]
    pub fn set_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.edits.push(ResponseEdit::SetHeader(Field::new(name, value)));
        self
    }

    /// Removes a response header.
    #[must_use]
    pub fn remove_header(mut self, name: impl Into<String>) -> Self {
        self.edits.push(ResponseEdit::RemoveHeader(name.into()));
        self
    }

    /// Asks the client to take another connection from here on.
    #[must_use]
    pub fn close_connection(mut self) -> Self {
        self.edits.push(ResponseEdit::CloseConnection);
        self
    }

    /// Shapes the body while it streams.
    #[must_use]
    pub fn body(mut self, shape: BodyShape) -> Self {
        self.body = Some(shape);
        self
    }
}

impl Default for BodyShape {
    /// Leaves the body alone.
    fn default() -> Self {
        Self {
            pace: None,
            hold_ms: None,
            cut_after: None,
            end_after_ms: None,
            expired: false,
            reset: Reset::Cancel,
        }
    }
}

impl BodyShape {
    /// At most so many bytes per second.
    #[must_use]
    pub fn pace(mut self, bytes_per_second: u32) -> Self {
        self.pace = Some(bytes_per_second);
        self
    }

    /// Delay the first byte by so many milliseconds.
    #[must_use]
    pub fn hold_ms(mut self, hold_ms: u32) -> Self {
        self.hold_ms = Some(hold_ms);
        self
    }

    /// Break off in this way after so many bytes.
    #[must_use]
    pub fn cut_after(mut self, bytes: u64, reset: Reset) -> Self {
        self.cut_after = Some(bytes);
        self.reset = reset;
        self
    }

    /// End a watch cleanly after so many milliseconds.
    #[must_use]
    pub fn end_after_ms(mut self, end_after_ms: u32) -> Self {
        self.end_after_ms = Some(end_after_ms);
        self
    }

    /// End a watch after so many milliseconds with an ERROR event 410, so that a reflector lists again.
    #[must_use]
    pub fn expire_after_ms(mut self, end_after_ms: u32) -> Self {
        self.expired = true;
        self.end_after_ms(end_after_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_keep_their_order() {
        let edits = [
            RequestEdit::rename_object("a", "b"),
            RequestEdit::and_label_selector("c"),
            RequestEdit::and_field_selector("d"),
            RequestEdit::set_query("e", "f"),
            RequestEdit::remove_query("g"),
            RequestEdit::set_header("h", "i"),
            RequestEdit::remove_header("j"),
            RequestEdit::keep_objects(ObjectPredicate::labels("k")),
            RequestEdit::drop_fields(["l", "m.n"]),
            RequestEdit::ask_about_objects(["o", "p"]),
            RequestEdit::require_object_match(ObjectPredicate::labels("q"), ObjectRefusal::Conflict),
        ];
        let verdict = RequestVerdict::edit(edits.clone());
        assert_eq!(
            verdict,
            RequestVerdict {
                delay_ms: 0,
                action: RequestAction::Proceed(edits.to_vec()),
                reuse: Reuse::Never,
                later: Phases::all(),
                outcomes: Vec::new(),
            }
        );
        assert_eq!(RequestVerdict::proceed().action, RequestAction::Proceed(Vec::new()));
        let paths = vec!["l".to_owned(), "m.n".to_owned()];
        assert_eq!(RequestEdit::drop_fields(["l", "m.n"]), RequestEdit::DropFields(paths));
        let keys = vec!["o".to_owned(), "p".to_owned()];
        assert_eq!(
            RequestEdit::ask_about_objects(["o", "p"]),
            RequestEdit::AskAboutObjects(keys)
        );
        assert_eq!(
            RequestEdit::require_object_match(ObjectPredicate::labels("q"), ObjectRefusal::Conflict),
            RequestEdit::RequireObjectMatch(ObjectRequirement {
                predicate: ObjectPredicate::labels("q").into_nodes(),
                refusal: ObjectRefusal::Conflict,
            })
        );
    }

    #[test]
    fn delay_does_not_change_the_action() {
        let refusal = Refusal::too_many_requests("slow down", 3)
            .reason("TooManyRequests")
            .cause("rule-1");
        let verdict = RequestVerdict::refuse(refusal.clone()).after_ms(7);
        assert_eq!(
            verdict,
            RequestVerdict {
                delay_ms: 7,
                ..RequestAction::Refuse(refusal).into()
            }
        );
        let verdict = ResponseVerdict::reset(Reset::Hang).after_ms(8);
        assert_eq!(
            verdict,
            ResponseVerdict {
                delay_ms: 8,
                action: ResponseAction::Reset(Reset::Hang)
            }
        );
    }

    #[test]
    fn verdict_is_given_once_and_wants_all_phases_unless_it_says_so() {
        let verdict = RequestVerdict::proceed();
        assert_eq!((verdict.reuse, verdict.later), (Reuse::Never, Phases::all()));
        let verdict = verdict.reusable().later(Phases::ON_COMPLETE);
        assert_eq!(
            (verdict.reuse, verdict.later),
            (Reuse::WhileUnchanged, Phases::ON_COMPLETE)
        );
        assert_eq!(verdict.reusable_until(5).reuse, Reuse::UntilUnixMs(5));
    }

    #[test]
    fn refusal_has_only_the_given_fields() {
        let refusal = Refusal::too_many_requests("slow down", 3);
        assert_eq!((refusal.code, refusal.retry_after_seconds), (429, Some(3)));
        let refusal = Refusal::new(500, "broken");
        assert_eq!(
            (refusal.reason.as_str(), refusal.retry_after_seconds, refusal.cause),
            ("", None, None)
        );
    }

    #[test]
    fn body_shapes_say_how_they_end() {
        let cut = BodyShape::default().pace(10).hold_ms(20).cut_after(30, Reset::Close);
        assert_eq!(
            (cut.pace, cut.hold_ms, cut.cut_after, cut.reset),
            (Some(10), Some(20), Some(30), Reset::Close)
        );
        let ended = BodyShape::default().end_after_ms(5);
        let expired = BodyShape::default().expire_after_ms(5);
        assert_eq!((ended.end_after_ms, ended.expired), (Some(5), false));
        assert_eq!((expired.end_after_ms, expired.expired), (Some(5), true));
        let plan = ResponsePlan::default()
            .set_header("a", "b")
            .remove_header("c")
            .body(expired);
        assert_eq!((plan.edits.len(), plan.body), (2, Some(expired)));
    }
}
