//! Converts between the types of `ctrlmesh:plugin@0.2` and the host's own; results of a guest are validated on the way.

use std::rc::Rc;

use crate::plugin::object_metadata::PluginObjectMetadata;
use crate::plugin::request_view::RequestView;
use crate::plugin::verdict::{
    self, Answer, BodyShape, Cause, CellWrite, Details, Failure, MatchRule, ObjectRefusal, Outcome, Phases, Refusal,
    RequestAction, RequestEdit, RequestVerdict, Reset, ResponseAction, ResponseEdit, ResponseVerdict, Reuse,
    Subscription, microseconds,
};
use crate::wasm::bindings::v0_2::ctrlmesh::plugin::types;
use crate::wasm::entry_config::EntryConfig;
use crate::wasm::validate::{self, TextLimit};
use ctrlmesh_wire::Verb;

pub(crate) mod outcomes;
mod predicate;

/// The sidecar that an instance runs in.
pub(crate) fn instance_info(entry: &EntryConfig, digest: &str) -> types::InstanceInfo {
    types::InstanceInfo {
        entry: entry.name.clone(),
        digest: digest.to_owned(),
        pod_namespace: entry.info.pod_namespace.clone(),
        pod_name: entry.info.pod_name.clone(),
        host_version: entry.info.host_version.clone(),
    }
}

pub(crate) fn request_traffic(request: Option<&RequestView>) -> types::Traffic {
    request.map_or(types::Traffic::Api, |request| traffic_to_wit(request.traffic))
}

pub(crate) fn request_verb(request: Option<&RequestView>) -> types::Verb {
    request.map_or(types::Verb::NonResource, |request| verb_to_wit(request.facts.verb))
}

/// How a request ended.
pub(crate) fn outcome_to_wit(outcome: &Outcome) -> types::Outcome {
    types::Outcome {
        status: outcome.status,
        upstream_status: outcome.upstream_status,
        failure: outcome.failure.map(failure_to_wit),
        duration_us: microseconds(outcome.duration),
        upstream_us: microseconds(outcome.upstream),
        request_bytes: outcome.request_bytes,
        response_bytes: outcome.response_bytes,
    }
}

/// An object of a response.
pub(crate) fn object_to_wit(object: PluginObjectMetadata) -> types::ObjectMetadata {
    types::ObjectMetadata {
        namespace: object.namespace,
        name: object.name,
        uid: object.uid,
        resource_version: object.resource_version,
        labels: object.labels,
        annotations: object.annotations,
        controller: object.controller.map(|controller| types::ObjectController {
            api_version: controller.api_version,
            kind: controller.kind,
            name: controller.name,
            uid: controller.uid,
        }),
    }
}

const fn failure_to_wit(failure: Failure) -> types::Failure {
    match failure {
        Failure::ClientGone => types::Failure::ClientGone,
        Failure::Refused => types::Failure::Refused,
        Failure::Unreachable => types::Failure::Unreachable,
        Failure::UpstreamReset => types::Failure::UpstreamReset,
        Failure::Timeout => types::Failure::Timeout,
        Failure::PluginReset => types::Failure::PluginReset,
        Failure::PluginFailed => types::Failure::PluginFailed,
    }
}

const fn traffic_to_wit(traffic: verdict::Traffic) -> types::Traffic {
    match traffic {
        verdict::Traffic::Api => types::Traffic::Api,
        verdict::Traffic::Webhook => types::Traffic::Webhook,
        verdict::Traffic::External => types::Traffic::External,
    }
}

const fn verb_to_wit(verb: Verb) -> types::Verb {
    match verb {
        Verb::Get => types::Verb::Get,
        Verb::List => types::Verb::List,
        Verb::Watch => types::Verb::Watch,
        Verb::Create => types::Verb::Create,
        Verb::Update => types::Verb::Update,
        Verb::Patch => types::Verb::Patch,
        Verb::Delete => types::Verb::Delete,
        Verb::DeleteCollection => types::Verb::Deletecollection,
        Verb::Proxy => types::Verb::Proxy,
        // The interface has no value for a resource request without a verb; the API server answers it with 405.
        Verb::NonResource | Verb::Unknown => types::Verb::NonResource,
    }
}

/// Validates the limits of a subscription.
pub(crate) fn subscription_from_wit(subscription: types::Subscription) -> Result<Subscription, String> {
    validate::rule_count(subscription.rules.len())?;
    let phases = phases_from_wit(subscription.phases);
    let mut text = TextLimit::default();
    let rules = subscription
        .rules
        .into_iter()
        .map(|rule| match_rule(rule, &mut text))
        .collect::<Result<_, _>>()?;
    Ok(Subscription { phases, rules })
}

fn phases_from_wit(phases: types::Phases) -> Phases {
    Phases {
        request: phases.contains(types::Phases::ON_REQUEST),
        response: phases.contains(types::Phases::ON_RESPONSE),
        complete: phases.contains(types::Phases::ON_COMPLETE),
    }
}

fn match_rule(rule: types::MatchRule, text: &mut TextLimit) -> Result<MatchRule, String> {
    text.count(rule.traffic.len() + rule.verbs.len())?;
    let mut list = |values: Vec<String>| {
        values
            .into_iter()
            .map(|value| text.take(value))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(MatchRule {
        traffic: rule.traffic.into_iter().map(traffic_from_wit).collect(),
        verbs: rule.verbs.into_iter().map(verb_from_wit).collect(),
        groups: list(rule.groups)?,
        resources: list(rule.resources)?,
        subresources: list(rule.subresources)?,
        namespaces: list(rule.namespaces)?,
        names: list(rule.names)?,
        paths: list(rule.paths)?,
        hosts: list(rule.hosts)?,
        user_agents: list(rule.user_agents)?,
    })
}

const fn traffic_from_wit(traffic: types::Traffic) -> verdict::Traffic {
    match traffic {
        types::Traffic::Api => verdict::Traffic::Api,
        types::Traffic::Webhook => verdict::Traffic::Webhook,
        types::Traffic::External => verdict::Traffic::External,
    }
}

const fn verb_from_wit(verb: types::Verb) -> Verb {
    match verb {
        types::Verb::Get => Verb::Get,
        types::Verb::List => Verb::List,
        types::Verb::Watch => Verb::Watch,
        types::Verb::Create => Verb::Create,
        types::Verb::Update => Verb::Update,
        types::Verb::Patch => Verb::Patch,
        types::Verb::Delete => Verb::Delete,
        types::Verb::Deletecollection => Verb::DeleteCollection,
        types::Verb::Proxy => Verb::Proxy,
        types::Verb::NonResource => Verb::NonResource,
    }
}

/// A verdict on a request, validated. `cells`: what the call has read, the last read of a cell last.
pub(crate) fn request_verdict(verdict: types::RequestVerdict, cells: &[CellWrite]) -> Result<RequestVerdict, String> {
    let mut text = TextLimit::default();
    let action = match verdict.action {
        types::RequestAction::Proceed(edits) => {
            validate::edit_count(edits.len())?;
            predicate::check_pattern_count(&edits)?;
            validate::dropped_path_count(dropped_path_count(&edits))?;
            let edits = edits
                .into_iter()
                .map(|edit| request_edit(edit, &mut text))
                .collect::<Result<Vec<_>, _>>()?;
            validate::asked_annotation_count(edits.iter().filter_map(RequestEdit::question))?;
            RequestAction::Proceed(edits)
        }
        types::RequestAction::Refuse(refused) => RequestAction::Refuse(refusal_from_wit(refused, &mut text)?),
        types::RequestAction::Reset(how) => RequestAction::Reset(reset_from_wit(how)),
        types::RequestAction::Answer(plain) => RequestAction::Answer(answer_from_wit(plain, &mut text)?),
        types::RequestAction::RefuseConnections(milliseconds) => {
            RequestAction::RefuseConnections(validate::bounded_delay(milliseconds))
        }
    };
    Ok(RequestVerdict {
        delay: validate::bounded_delay(verdict.delay_ms),
        action,
        reuse: match verdict.reuse {
            types::Reuse::Never => Reuse::Never,
            types::Reuse::WhileUnchanged => Reuse::WhileUnchanged,
            types::Reuse::UntilUnixMs(moment) => Reuse::UntilUnixMs(moment),
        },
        later: phases_from_wit(verdict.later),
        outcomes: outcome_rules(verdict.outcomes, cells, &mut text)?,
    })
}

fn outcome_rules(
    rules: Vec<types::OutcomeRule>,
    cells: &[CellWrite],
    text: &mut TextLimit,
) -> Result<Option<Rc<[verdict::OutcomeRule]>>, String> {
    if rules.is_empty() {
        return Ok(None);
    }
    validate::outcome_rule_count(rules.len())?;
    let rules: Vec<_> = rules
        .into_iter()
        .map(|rule| outcomes::outcome_rule(rule, cells, text))
        .collect::<Result<_, _>>()?;
    validate::distinct_tallies(&rules)?;
    Ok(Some(rules.into()))
}

/// The number of paths in all `drop-fields` edits.
fn dropped_path_count(edits: &[types::RequestEdit]) -> usize {
    let counts = edits.iter().map(|edit| match edit {
        types::RequestEdit::DropFields(paths) => paths.len(),
        _ => 0,
    });
    counts.sum()
}

fn request_edit(edit: types::RequestEdit, text: &mut TextLimit) -> Result<RequestEdit, String> {
    Ok(match edit {
        types::RequestEdit::AndLabelSelector(selector) => {
            RequestEdit::AndLabelSelector(validate::checked_selector(text.take(selector)?)?.into())
        }
        types::RequestEdit::AndFieldSelector(selector) => {
            RequestEdit::AndFieldSelector(validate::checked_selector(text.take(selector)?)?)
        }
        types::RequestEdit::SetQuery(field) => {
            RequestEdit::SetQuery(validate::query_name(text.take(field.name)?)?, text.take(field.value)?)
        }
        types::RequestEdit::RemoveQuery(name) => RequestEdit::RemoveQuery(validate::query_name(text.take(name)?)?),
        types::RequestEdit::SetHeader(field) => {
            let name = validate::header_name(&text.take(field.name)?)?;
            let value = validate::header_value(&name, &text.take(field.value)?)?;
            RequestEdit::SetHeader(name, value)
        }
        types::RequestEdit::RemoveHeader(name) => RequestEdit::RemoveHeader(validate::header_name(&text.take(name)?)?),
        types::RequestEdit::RenameObject(rename) => RequestEdit::RenameObject {
            from: validate::object_name(text.take(rename.from)?)?,
            to: validate::object_name(text.take(rename.to)?)?,
        },
        types::RequestEdit::KeepObjects(nodes) => RequestEdit::KeepObjects(predicate::object_predicate(nodes, text)?),
        types::RequestEdit::DropFields(paths) => {
            let paths = paths.into_iter().map(|path| text.take(path));
            RequestEdit::DropFields(validate::dropped_fields(paths.collect::<Result<_, _>>()?)?)
        }
        types::RequestEdit::AskAboutObjects(keys) => {
            let keys = keys.into_iter().map(|key| text.take(key));
            RequestEdit::AskAboutObjects(validate::object_question(keys.collect::<Result<_, _>>()?)?)
        }
        types::RequestEdit::RequireObjectMatch(requirement) => {
            let predicate = predicate::required_predicate(requirement.predicate, text)?;
            RequestEdit::RequireObjectMatch(predicate, object_refusal(requirement.refusal))
        }
    })
}

const fn object_refusal(refusal: types::ObjectRefusal) -> ObjectRefusal {
    match refusal {
        types::ObjectRefusal::Conflict => ObjectRefusal::Conflict,
        types::ObjectRefusal::NotFound => ObjectRefusal::NotFound,
        types::ObjectRefusal::Forbidden => ObjectRefusal::Forbidden,
    }
}

fn refusal_from_wit(refusal: types::Refusal, text: &mut TextLimit) -> Result<Refusal, String> {
    let refusal = Refusal {
        code: refusal.code,
        reason: refusal.reason,
        message: refusal.message,
        retry_after_seconds: refusal.retry_after_seconds,
        cause: refusal.cause,
        details: refusal.details.map(|about| details_from_wit(about, text)).transpose()?,
    };
    validate::checked_refusal(refusal, text)
}

fn details_from_wit(details: types::Details, text: &mut TextLimit) -> Result<Details, String> {
    validate::cause_count(details.causes.len())?;
    let causes = details.causes.into_iter().map(|cause| {
        Ok(Cause {
            reason: text.take(cause.reason)?,
            message: text.take(cause.message)?,
            field: text.take(cause.field)?,
        })
    });
    let causes = causes.collect::<Result<_, String>>()?;
    Ok(Details {
        name: text.take(details.name)?,
        group: text.take(details.group)?,
        kind: text.take(details.kind)?,
        causes,
    })
}

fn answer_from_wit(answer: types::Answer, text: &mut TextLimit) -> Result<Answer, String> {
    validate::edit_count(answer.headers.len())?;
    text.count(answer.body.len())?;
    let headers = answer.headers.into_iter().map(|field| {
        let name = validate::header_name(&text.take(field.name)?)?;
        let value = validate::header_value(&name, &text.take(field.value)?)?;
        Ok((name, value))
    });
    let headers = headers.collect::<Result<_, String>>()?;
    Ok(Answer {
        code: validate::answer_code(answer.code)?,
        headers,
        body: answer.body.into(),
        close_connection: answer.close_connection,
    })
}

const fn reset_from_wit(reset: types::Reset) -> Reset {
    match reset {
        types::Reset::Cancel => Reset::Cancel,
        types::Reset::InternalError => Reset::InternalError,
        types::Reset::Close => Reset::Close,
        types::Reset::Hang => Reset::Hang,
        types::Reset::BlackHole => Reset::BlackHole,
    }
}

/// A verdict on a response, validated.
pub(crate) fn response_verdict(verdict: types::ResponseVerdict) -> Result<ResponseVerdict, String> {
    let mut text = TextLimit::default();
    let action = match verdict.action {
        types::ResponseAction::Proceed(plan) => {
            validate::edit_count(plan.edits.len())?;
            let edits = plan
                .edits
                .into_iter()
                .map(|edit| response_edit(edit, &mut text))
                .collect::<Result<_, _>>()?;
            let body = plan
                .body
                .map(|shape| validate::body_shape(body_shape(shape)))
                .transpose()?;
            ResponseAction::Proceed { edits, body }
        }
        types::ResponseAction::Replace(refused) => ResponseAction::Replace(refusal_from_wit(refused, &mut text)?),
        types::ResponseAction::Reset(how) => ResponseAction::Reset(reset_from_wit(how)),
        types::ResponseAction::Answer(plain) => ResponseAction::Answer(answer_from_wit(plain, &mut text)?),
    };
    Ok(ResponseVerdict {
        delay: validate::bounded_delay(verdict.delay_ms),
        action,
    })
}

fn response_edit(edit: types::ResponseEdit, text: &mut TextLimit) -> Result<ResponseEdit, String> {
    Ok(match edit {
        types::ResponseEdit::SetHeader(field) => {
            let name = validate::response_header_name(&text.take(field.name)?)?;
            let value = validate::header_value(&name, &text.take(field.value)?)?;
            ResponseEdit::SetHeader(name, value)
        }
        types::ResponseEdit::RemoveHeader(name) => {
            ResponseEdit::RemoveHeader(validate::response_header_name(&text.take(name)?)?)
        }
        types::ResponseEdit::CloseConnection => ResponseEdit::CloseConnection,
    })
}

fn body_shape(shape: types::BodyShape) -> BodyShape {
    BodyShape {
        pace: shape.pace,
        hold: shape.hold_ms.map(validate::body_delay),
        cut_after: shape.cut_after,
        end_after: shape.end_after_ms.map(validate::body_delay),
        expired: shape.expired,
        reset: reset_from_wit(shape.reset),
    }
}
