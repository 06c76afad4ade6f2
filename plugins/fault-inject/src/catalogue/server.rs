//! A server that is overloaded, or misses one of its parts.

use ctrlmesh_plugin_rules::{Lists, NonResourceRule, ResourceRule, Rules};
use ctrlmesh_sdk::settings::Invalid;

use super::responses::parse_retry_after;
use super::{BuiltFault, Context, required_param};
use crate::fault::{Act, Applicability, Class};
use crate::params::Params;
use crate::reply::Reply;

pub(super) fn throttle(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let seconds = parse_retry_after(params)?.unwrap_or(1);
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Throttled(seconds)),
        Applicability::Every,
    ))
}

pub(super) fn group_down(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let group = required_param(params.group.as_ref(), "group", "metrics.k8s.io")?;
    let is_name = |text: &str| !text.is_empty() && !text.contains(['/', '*']);
    if !is_name(group) {
        let message = format!("{group:?} is not the name of an aggregated group such as metrics.k8s.io");
        return Err(Invalid::new(message).field("group"));
    }
    let (base, suits) = match params.version.as_deref() {
        Some(version) if !is_name(version) => {
            return Err(Invalid::new(format!("{version:?} is not a version such as v1beta1")).field("version"));
        }
        // An APIService is one version of a group; a rule matches only groups.
        Some(version) => (
            format!("/apis/{group}/{version}"),
            Applicability::Version(version.to_owned()),
        ),
        // The aggregator itself answers for the group (kube-aggregator `pkg/apiserver/handler_apis.go`).
        None => (String::new(), Applicability::Every),
    };
    let mut own = Rules::default();
    let paths = if base.is_empty() {
        vec![format!("/apis/{group}/*")]
    } else {
        vec![format!("{base}/*"), base]
    };
    add_paths(&mut own, paths)?;
    let rule = ResourceRule {
        api_groups: Some(vec![group.clone()]),
        ..ResourceRule::default()
    };
    own.add_resources(&[rule], Lists::AbsentIsAll)?;
    Ok(BuiltFault::with_action(Act::Reply(0, Reply::Unavailable), suits).with_rules(own))
}

pub(super) fn discovery_down(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let code = params.code.unwrap_or(503);
    let class = match code {
        500 | 503 => Class::Legal,
        // For a server without such a path.
        404 => Class::Server,
        _ => return Err(Invalid::new(format!("{code} is not known; write 503, 500 or 404")).field("code")),
    };
    let mut own = Rules::default();
    let paths = ["/api", "/api/*", "/apis", "/apis/*", "/openapi/*", "/version"];
    add_paths(&mut own, paths.map(str::to_owned).to_vec())?;
    let act = Act::Reply(0, Reply::Discovery(code));
    Ok(BuiltFault::with_action(act, Applicability::Every)
        .with_class(class)
        .with_rules(own))
}

fn add_paths(rules: &mut Rules, paths: Vec<String>) -> Result<(), Invalid> {
    let rule = NonResourceRule {
        verbs: None,
        non_resource_urls: Some(paths),
    };
    rules.add_non_resources(&[rule], Lists::AbsentIsAll)
}
