//! Discovery of versions, groups and resources (plain and aggregated), and health. OpenAPI is answered with 404, which kubectl and
//! kube-rs take for "no schema".

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::accept::wants_aggregated_discovery;
use crate::body::{ResponseBody, full_body};
use crate::exchange::json_response;
use crate::refusal::Refusal;
use crate::resource::{KindRegistry, Resource};
use crate::shared::Shared;
use crate::upgrade;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Serves a path that names no resource.
pub(crate) fn serve_discovery(
    shared: &Shared,
    connection: usize,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response<ResponseBody>, Refusal> {
    let registry = &*shared.registry;
    let segments: Vec<_> = path.trim_matches('/').split('/').collect();
    // Trailing slashes are common; a path with a leading one is not a path of the API.
    if path.starts_with("//") {
        return Err(Refusal::no_such_resource());
    }
    let aggregated = wants_aggregated_discovery(headers);
    let body = match *segments.as_slice() {
        ["healthz" | "readyz" | "livez", ..] => return Ok(text_response(StatusCode::OK, "ok")),
        ["version"] => version_info(),
        [""] => json!({ "paths": ["/api", "/apis", "/healthz", "/livez", "/readyz", "/version"] }),
        ["api"] if aggregated => return Ok(aggregated_response(registry, &[("", vec!["v1"])])),
        ["apis"] if aggregated => return Ok(aggregated_response(registry, &registry.groups())),
        ["api"] => core_versions(advertised(shared, connection)),
        ["apis"] => {
            let groups: Vec<_> = registry
                .groups()
                .iter()
                .map(|(name, versions)| group_value(name, versions))
                .collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        ["api", version] => resource_list(registry, "", version)?,
        ["apis", name] => {
            let groups = registry.groups();
            let (name, versions) = groups
                .iter()
                .find(|(g, _)| *g == name)
                .ok_or_else(Refusal::no_such_resource)?;
            let group = group_value(name, versions);
            let mut described = json!({ "kind": "APIGroup", "apiVersion": "v1" });
            if let (Value::Object(described), Value::Object(group)) = (&mut described, group) {
                described.extend(group);
            }
            described
        }
        ["apis", group, version] => match resource_list(registry, group, version) {
            Ok(list) => list,
            // Plain text, not a Status: apiserver `pkg/endpoints` has no handlers for such a group version.
            Err(_) => return Ok(text_response(StatusCode::NOT_FOUND, "404 page not found\n")),
        },
        _ => return Err(Refusal::no_such_resource()),
    };
    Ok(json_response(StatusCode::OK, full_body(body.to_string())))
}

fn text_response(status: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn advertised(shared: &Shared, connection: usize) -> &str {
    let in_turn = connection.checked_rem(shared.advertised.len());
    let address = in_turn.and_then(|at| shared.advertised.get(at));
    address.map_or("", String::as_str)
}

fn core_versions(advertised: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": advertised }],
    })
}

/// The version of Kubernetes whose behaviour is followed, marked as not being the real server.
fn version_info() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.3+ctrlmesh-testkit",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "memory/memory",
    })
}

fn group_value(name: &str, versions: &[&str]) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|v| json!({ "groupVersion": format!("{name}/{v}"), "version": v }))
        .collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions.first() })
}

fn resources_of_version<'a>(
    registry: &'a KindRegistry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a std::sync::Arc<Resource>> {
    registry
        .iter()
        .filter(move |r| r.group == group && r.version == version)
}

/// The subresources of a kind, and the verbs of each.
fn subresources_of(resource: &Resource) -> Vec<(&'static str, &'static [&'static str])> {
    let mut found: Vec<(_, &[_])> = Vec::new();
    if resource.status {
        found.push(("status", &["get", "patch", "update"]));
    }
    let tunnels = ["attach", "exec", "portforward"].into_iter();
    let has_tunnels = resource.group.is_empty() && resource.plural == "pods";
    found.extend(
        tunnels
            .filter(|name| has_tunnels && upgrade::is_tunnel(name))
            .map(|name| (name, &["create", "get"][..])),
    );
    found
}

fn resource_list(registry: &KindRegistry, group: &str, version: &str) -> Result<Value, Refusal> {
    let mut list = Vec::new();
    for resource in resources_of_version(registry, group, version) {
        list.push(json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": VERBS,
            "shortNames": resource.short_names,
        }));
        for (subresource, verbs) in subresources_of(resource) {
            list.push(json!({
                "name": format!("{}/{subresource}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": verbs,
            }));
        }
    }
    if list.is_empty() {
        return Err(Refusal::no_such_resource());
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Ok(json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list }))
}

/// `apidiscovery.k8s.io/v2`.
fn aggregated_response(registry: &KindRegistry, groups: &[(&str, Vec<&str>)]) -> Response<ResponseBody> {
    let items: Vec<_> = groups
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<_> = versions
                .iter()
                .map(|version| aggregate_version(registry, group, version))
                .collect();
            json!({ "metadata": { "name": group, "creationTimestamp": null }, "versions": versions })
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let mut response = json_response(StatusCode::OK, full_body(list.to_string()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    response
}

fn aggregate_version(registry: &KindRegistry, group: &str, version: &str) -> Value {
    let kind =
        |resource: &Resource| json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
    let resources: Vec<_> = resources_of_version(registry, group, version)
        .map(|resource| {
            let subresources: Vec<_> = subresources_of(resource)
                .into_iter()
                .map(|(name, verbs)| json!({ "subresource": name, "responseKind": kind(resource), "verbs": verbs }))
                .collect();
            json!({
                "resource": resource.plural,
                "responseKind": kind(resource),
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": resource.singular,
                "verbs": VERBS,
                "shortNames": resource.short_names,
                "subresources": subresources,
            })
        })
        .collect();
    json!({ "version": version, "resources": resources, "freshness": "Current" })
}
