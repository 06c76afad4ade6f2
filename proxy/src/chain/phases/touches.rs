//! Derives the effect of a verdict on a request, and the rule of the entry behind it. Pure. Edits are noted when they are applied.

use std::time::Duration;

use crate::chain::touched::Effect;
use crate::plugin::request_view::{NamedRule, Part};
use crate::plugin::verdict::{RequestAction, RequestVerdict, ResponseAction, ResponseVerdict};

type Done = Vec<(String, Effect)>;

/// Whether a verdict lets the request pass without a delay, so that it has no effect but its edits.
pub(super) const fn lets_pass_at_once(verdict: &RequestVerdict) -> bool {
    verdict.delay.is_zero() && matches!(verdict.action, RequestAction::Proceed(_))
}

/// Effect of a verdict on a request.
pub(super) fn of_request(verdict: &RequestVerdict, named: Vec<NamedRule>) -> Done {
    let (effect, cause) = match &verdict.action {
        RequestAction::Proceed(_) => (None, None),
        RequestAction::Refuse(refusal) => (Some(Effect::Refused), refusal.cause.as_deref()),
        RequestAction::Answer(_) => (Some(Effect::Refused), None),
        RequestAction::Reset(_) | RequestAction::RefuseConnections(_) => (Some(Effect::Faulted), None),
    };
    done_by(verdict.delay, effect.into_iter(), cause, named)
}

/// Effect of a verdict on a response.
pub(super) fn of_response(verdict: &ResponseVerdict, named: Vec<NamedRule>) -> Done {
    let (effect, cause) = match &verdict.action {
        ResponseAction::Proceed { edits, body } => {
            let shape = body.as_ref();
            let effect_if = |has_effect: bool, effect: Effect| has_effect.then_some(effect);
            let done = [
                effect_if(!edits.is_empty(), Effect::Edited),
                effect_if(
                    shape.is_some_and(|shape| shape.pace.is_some() || shape.hold.is_some()),
                    Effect::Delayed,
                ),
                effect_if(
                    shape.is_some_and(|shape| shape.cut_after.is_some() || shape.end_after.is_some() && !shape.expired),
                    Effect::Faulted,
                ),
                effect_if(
                    shape.is_some_and(|shape| shape.end_after.is_some() && shape.expired),
                    Effect::Expired,
                ),
            ];
            return done_by(verdict.delay, done.into_iter().flatten(), None, named);
        }
        ResponseAction::Replace(refusal) => (Effect::Lost, refusal.cause.as_deref()),
        ResponseAction::Reset(_) | ResponseAction::Answer(_) => (Effect::Lost, None),
    };
    done_by(verdict.delay, std::iter::once(effect), cause, named)
}

/// `cause` is the cause that a refusal gives, used if the plugin names no rule.
fn done_by(delay: Duration, effect: impl Iterator<Item = Effect>, cause: Option<&str>, named: Vec<NamedRule>) -> Done {
    let mut effect = effect.peekable();
    if delay.is_zero() && effect.peek().is_none() {
        return Done::new();
    }
    let rules = |part: Part| -> Vec<&str> {
        let rules = named.iter().filter(|rule| rule.decides == part);
        rules.map(|rule| rule.name.as_str()).collect()
    };
    let mut done = Done::new();
    if !delay.is_zero() {
        let delaying = rules(Part::Delay);
        let nameless = delaying.is_empty().then_some("");
        done.extend(
            delaying
                .into_iter()
                .chain(nameless)
                .map(|rule| (rule.to_owned(), Effect::Delayed)),
        );
    }
    let acting = rules(Part::Action).join(", ");
    let rule = if acting.is_empty() {
        crate::plugin::request_view::rule_name(cause.unwrap_or_default())
    } else {
        acting
    };
    done.extend(effect.map(|effect| (rule.clone(), effect)));
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::verdict::{BodyShape, Phases, Refusal, Reset, ResponseEdit, Reuse};

    fn named_rule(name: &str, decides: Part) -> NamedRule {
        NamedRule {
            name: name.to_owned(),
            decides,
        }
    }

    fn refusal_by(cause: Option<&str>) -> Refusal {
        Refusal {
            code: 429,
            reason: String::new(),
            message: String::new(),
            retry_after_seconds: None,
            cause: cause.map(str::to_owned),
            details: None,
        }
    }

    fn on_request(delay_ms: u64, action: RequestAction, rules: Vec<NamedRule>) -> Vec<(String, &'static str)> {
        let delay = Duration::from_millis(delay_ms);
        let verdict = RequestVerdict {
            delay,
            action,
            reuse: Reuse::Never,
            later: Phases::ALL,
            outcomes: None,
        };
        let done = of_request(&verdict, rules);
        assert_eq!(lets_pass_at_once(&verdict), done.is_empty());
        done.into_iter().map(|(rule, effect)| (rule, effect.as_str())).collect()
    }

    #[test]
    fn each_part_of_verdict_has_its_rules() {
        let rules = vec![
            named_rule("slow", Part::Delay),
            named_rule("slower", Part::Delay),
            named_rule("conflict", Part::Action),
        ];
        let done = on_request(5, RequestAction::Refuse(refusal_by(Some("cause"))), rules);
        let expected = [("slow", "delayed"), ("slower", "delayed"), ("conflict", "refused")];
        assert_eq!(done, expected.map(|(rule, effect)| (rule.to_owned(), effect)));
    }

    #[test]
    fn refusal_without_named_rule_has_its_cause() {
        let refuse = |cause| on_request(0, RequestAction::Refuse(refusal_by(cause)), Vec::new());
        assert_eq!(refuse(Some("writes")), [("writes".to_owned(), "refused")]);
        assert_eq!(refuse(None), [(String::new(), "refused")]);
        let reset = on_request(0, RequestAction::Reset(Reset::Close), Vec::new());
        assert_eq!(reset, [(String::new(), "faulted")]);
        let proceed = |delay_ms| on_request(delay_ms, RequestAction::Proceed(Vec::new()), Vec::new());
        assert_eq!(proceed(0), []);
        assert_eq!(proceed(1), [(String::new(), "delayed")]);
    }

    #[test]
    fn responses_are_lost_or_shaped() {
        let on_response = |action| {
            let verdict = ResponseVerdict {
                delay: Duration::ZERO,
                action,
            };
            let done = of_response(&verdict, vec![named_rule("r", Part::Action)]);
            done.iter().map(|(_, effect)| effect.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(on_response(ResponseAction::Replace(refusal_by(None))), ["lost"]);
        assert_eq!(on_response(ResponseAction::Reset(Reset::Cancel)), ["lost"]);
        let shape = BodyShape {
            pace: Some(1),
            hold: None,
            cut_after: None,
            end_after: Some(Duration::ZERO),
            expired: true,
            reset: Reset::Cancel,
        };
        let proceed = |edits, body| ResponseAction::Proceed { edits, body };
        let edits = vec![ResponseEdit::CloseConnection];
        assert_eq!(
            on_response(proceed(edits, Some(shape.clone()))),
            ["edited", "delayed", "expired"]
        );
        let cut = BodyShape {
            pace: None,
            cut_after: Some(1),
            end_after: None,
            ..shape
        };
        assert_eq!(on_response(proceed(Vec::new(), Some(cut))), ["faulted"]);
        assert!(on_response(proceed(Vec::new(), None)).is_empty());
    }
}
