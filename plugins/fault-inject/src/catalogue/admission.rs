//! Admission: webhooks, policies, quotas, namespaces on their way out. Reads pass by.

use ctrlmesh_sdk::settings::Invalid;

use super::answers::wait;
use super::{Built, Context, error_code, word};
use crate::fault::{Act, Suits};
use crate::params::{Params, milliseconds};
use crate::reply::Reply;
use crate::reply::admission::{Denied, Quota, Webhook};

/// `timeoutSeconds` of a webhook is at most this (k8s.io/api `admissionregistration/v1`).
const LONGEST_WEBHOOK_MS: u32 = 30_000;
/// Names that a person recognises in a log.
const WEBHOOK: &str = "fault.ctrlmesh.dev";
const BINDING: &str = "fault-binding";
const QUOTA: &str = "fault-quota";

fn text(value: Option<&String>, default: &str) -> String {
    value.map_or(default, String::as_str).to_owned()
}

pub(super) fn deny(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let message = text(params.message.as_ref(), "denied by a rule of this test");
    let denied = match (&params.policy, &params.webhook) {
        (Some(_), Some(_)) => return Err(Invalid::new("a webhook or a policy denies, not both").field("policy")),
        (None, _) if params.binding.is_some() => return Err(Invalid::new("only with policy").field("binding")),
        (Some(_), None) if params.code.is_some() => {
            return Err(Invalid::new("only with webhook: a policy's code is 422").field("code"));
        }
        (Some(name), None) => Denied::ByPolicy {
            name: name.clone(),
            binding: text(params.binding.as_ref(), BINDING),
            message,
        },
        (None, webhook) => Denied::ByWebhook {
            name: text(webhook.as_ref(), WEBHOOK),
            message,
            code: error_code(params.code.unwrap_or(403).into(), "code")?,
        },
    };
    Ok(Built::legal(Act::Reply(0, Reply::Denied(denied)), Suits::Write))
}

pub(super) fn quota(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let name = text(params.quota.as_ref(), QUOTA);
    let quota = match word(params.how.as_deref(), "how", &["exceeded", "conflict"])? {
        "conflict" => Quota::Conflict { name },
        _ => Quota::Exceeded {
            name,
            requested: text(params.requested.as_ref(), "pods=1"),
            used: text(params.used.as_ref(), "pods=10"),
            limited: text(params.limited.as_ref(), "pods=10"),
        },
    };
    Ok(Built::legal(Act::Reply(0, Reply::Quota(quota)), Suits::Create))
}

/// Refused at once without `after`; with it, the API server's patience ends.
pub(super) fn webhook_down(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let after = milliseconds(params.after.unwrap_or_default()).map_err(|error| error.field("after"))?;
    check_webhook(after, "after")?;
    let default = "https://fault.default.svc:443/validate?timeout=10s";
    let webhook = Webhook {
        name: text(params.webhook.as_ref(), WEBHOOK),
        url: text(params.url.as_ref(), default),
        error: if after == 0 {
            "dial tcp 10.96.0.99:443: connect: connection refused"
        } else {
            "context deadline exceeded"
        },
    };
    let act = Act::Reply(after, Reply::WebhookDown(webhook));
    Ok(Built::legal(act, Suits::Write))
}

pub(super) fn webhook_slow(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let wait = wait(params)?;
    check_webhook(wait.longest(), if params.length.is_some() { "for" } else { "max" })?;
    Ok(Built::legal(Act::Delay(wait), Suits::Write))
}

fn check_webhook(ms: u32, field: &str) -> Result<(), Invalid> {
    if ms > LONGEST_WEBHOOK_MS {
        return Err(Invalid::new("at most 30s: the API server waits no longer for a webhook").field(field));
    }
    Ok(())
}

pub(super) fn namespace_terminating(_: &Params, _: &Context) -> Result<Built, Invalid> {
    let act = Act::Reply(0, Reply::NamespaceTerminating);
    Ok(Built::legal(act, Suits::Namespaced))
}
