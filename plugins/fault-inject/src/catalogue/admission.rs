//! Admission: webhooks, policies, quotas, terminating namespaces. Reads are not affected.

use ctrlmesh_sdk::settings::Invalid;

use super::responses::parse_wait;
use super::{BuiltFault, Context, error_code, one_of_words};
use crate::fault::{Act, Applicability};
use crate::params::{Params, checked_millis};
use crate::reply::Reply;
use crate::reply::admission::{Denied, Quota, Webhook};

/// `timeoutSeconds` of a webhook is at most this (k8s.io/api `admissionregistration/v1`).
const LONGEST_WEBHOOK_MS: u32 = 30_000;
/// Recognizable names for logs.
const WEBHOOK: &str = "fault.ctrlmesh.dev";
const BINDING: &str = "fault-binding";
const QUOTA: &str = "fault-quota";

fn text_or(value: Option<&String>, default: &str) -> String {
    value.map_or(default, String::as_str).to_owned()
}

pub(super) fn deny(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let message = text_or(params.message.as_ref(), "denied by a rule of this test");
    let denied = match (&params.policy, &params.webhook) {
        (Some(_), Some(_)) => return Err(Invalid::new("a webhook or a policy denies, not both").field("policy")),
        (None, _) if params.binding.is_some() => return Err(Invalid::new("only with policy").field("binding")),
        (Some(_), None) if params.code.is_some() => {
            return Err(Invalid::new("only with webhook: a policy's code is 422").field("code"));
        }
        (Some(name), None) => Denied::ByPolicy {
            name: name.clone(),
            binding: text_or(params.binding.as_ref(), BINDING),
            message,
        },
        (None, webhook) => Denied::ByWebhook {
            name: text_or(webhook.as_ref(), WEBHOOK),
            message,
            code: error_code(params.code.unwrap_or(403).into(), "code")?,
        },
    };
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Denied(denied)),
        Applicability::Write,
    ))
}

pub(super) fn quota(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let name = text_or(params.quota.as_ref(), QUOTA);
    let quota = match one_of_words(params.how.as_deref(), "how", &["exceeded", "conflict"])? {
        "conflict" => Quota::Conflict { name },
        _ => Quota::Exceeded {
            name,
            requested: text_or(params.requested.as_ref(), "pods=1"),
            used: text_or(params.used.as_ref(), "pods=10"),
            limited: text_or(params.limited.as_ref(), "pods=10"),
        },
    };
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Quota(quota)),
        Applicability::Create,
    ))
}

/// Fails at once without `after`; with it, after the API server's timeout.
pub(super) fn webhook_down(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let after = checked_millis(params.after.unwrap_or_default()).map_err(|error| error.field("after"))?;
    check_webhook(after, "after")?;
    let default = "https://fault.default.svc:443/validate?timeout=10s";
    let webhook = Webhook {
        name: text_or(params.webhook.as_ref(), WEBHOOK),
        url: text_or(params.url.as_ref(), default),
        error: if after == 0 {
            "dial tcp 10.96.0.99:443: connect: connection refused"
        } else {
            "context deadline exceeded"
        },
    };
    let act = Act::Reply(after, Reply::WebhookDown(webhook));
    Ok(BuiltFault::with_action(act, Applicability::Write))
}

pub(super) fn webhook_slow(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let wait = parse_wait(params)?;
    check_webhook(wait.longest_ms(), if params.length.is_some() { "for" } else { "max" })?;
    Ok(BuiltFault::with_action(Act::Delay(wait), Applicability::Write))
}

fn check_webhook(ms: u32, field: &str) -> Result<(), Invalid> {
    if ms > LONGEST_WEBHOOK_MS {
        return Err(Invalid::new("at most 30s: the API server waits no longer for a webhook").field(field));
    }
    Ok(())
}

pub(super) fn namespace_terminating(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let act = Act::Reply(0, Reply::NamespaceTerminating);
    Ok(BuiltFault::with_action(act, Applicability::Namespaced))
}
