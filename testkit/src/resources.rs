//! The verbs on resources: finds the object or collection of a path, reads the options, and answers. [`crate::write`] has the rules of
//! writes, [`crate::list`] and [`crate::watch_stream`] those of reads.

use std::sync::Arc;

use ctrlmesh_wire::{Query, RequestInfo, Status, StatusDetails, Verb};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Method, Response, StatusCode, request};
use serde_json::Value;

use crate::accept::Encoding;
use crate::body::{self, ResponseBody, full_body};
use crate::delete::{self, DeleteOptions, DeleteOutcome, is_dry_run};
use crate::exchange::{Exchange, build_response, read_body};
use crate::form::Form;
use crate::list::{self, ListOptions, Page, parse_flag};
use crate::object::{Object, metadata_text};
use crate::patch::Patch;
use crate::protobuf;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::selection::Selection;
use crate::shared::Shared;
use crate::store::Store;
use crate::upgrade;
use crate::watch_stream::{Watch, WatchOptions, WatchTarget};
use crate::write::{self, Target, WriteOptions};

/// Longest field manager (apimachinery `pkg/apis/meta/v1/validation`).
const MAX_FIELD_MANAGER: usize = 128;

type ServeResult = Result<Response<ResponseBody>, Refusal>;

pub(crate) async fn serve_resource(exchange: Exchange<'_>) -> ServeResult {
    let (info, parts) = (exchange.info, &*exchange.parts);
    let resource = exchange
        .shared
        .registry
        .find(&info.group, &info.version, &info.resource);
    let resource = resource.ok_or_else(Refusal::no_such_resource)?;
    let target = resolve_target(resource, info, parts.uri.path())?;
    if parts.method == Method::HEAD || !accepts_method(info, resource.namespaced, &parts.method) {
        return Err(Refusal::method_not_allowed());
    }
    if upgrade::is_tunnel(&info.subresource) {
        read_object(exchange.shared, &target)?;
        return upgrade::serve_echo(exchange.parts, &exchange.control.tunnels);
    }
    let query = Query::new(exchange.query);
    let form = Form::negotiate_form(&parts.headers, &query, resource)?;
    let ok_response = |body| Ok(build_response(StatusCode::OK, form.content_type(), body));
    match info.verb {
        Verb::Get => {
            let object = read_object(exchange.shared, &target)?;
            ok_response(full_body(form.encode_object(&object)?))
        }
        Verb::List => {
            let selection = Selection::from_query(resource, &target.namespace, None, &query)?;
            let options = ListOptions::from_query(&query)?;
            let page = list::read_page(&exchange.shared.store, resource, &selection, &options, form)?;
            ok_response(body::page_body(page))
        }
        Verb::Watch => open_watch(&exchange, &target, &query, form),
        Verb::Create | Verb::Update | Verb::Patch => write_object(exchange, &target, &query, form).await,
        Verb::Delete => {
            let options = delete_options(parts, &query, exchange.body).await?;
            let outcome = delete::delete_object(&exchange.shared.store, &target, &options)?;
            delete_response(form, &target, &outcome)
        }
        Verb::DeleteCollection => {
            let options = delete_options(parts, &query, exchange.body).await?;
            delete_collection(&exchange.shared.store, &target, &query, &options, form)
        }
        Verb::Proxy | Verb::NonResource | Verb::Unknown => Err(Refusal::method_not_allowed()),
    }
}

fn read_object(shared: &Shared, target: &Target) -> Result<Arc<Object>, Refusal> {
    let object = shared.store.get(&target.resource.qualified_name(), &target.key());
    object.ok_or_else(|| Refusal::not_found(&target.resource, &target.name))
}

fn open_watch(exchange: &Exchange<'_>, target: &Target, query: &Query<'_>, form: Form) -> ServeResult {
    if upgrade::is_websocket(exchange.parts) {
        return Err(Refusal::not_implemented("watches over WebSocket"));
    }
    let (shared, resource) = (exchange.shared, &target.resource);
    let name = exchange.info.verb_from_prefix.then_some(target.name.as_str());
    let name = name.filter(|name| !name.is_empty());
    let subject = WatchTarget {
        store: shared.store.clone(),
        resource: Arc::clone(resource),
        selection: Selection::from_query(resource, &target.namespace, name, query)?,
        form,
        bookmark_every: shared.bookmark_every,
    };
    let options = WatchOptions::from_query(query)?;
    let watch = Watch::open(
        subject,
        &options,
        shared.signals.subscribe(),
        shared.gauges.count_watch(),
    )?;
    Ok(build_response(
        StatusCode::OK,
        form.watch_content_type(),
        body::watch_body(watch),
    ))
}

async fn write_object(exchange: Exchange<'_>, target: &Target, query: &Query<'_>, form: Form) -> ServeResult {
    let (parts, store) = (&*exchange.parts, &exchange.shared.store);
    let options = write_options(parts, query)?;
    let bytes = read_body(exchange.body).await?;
    let written = match exchange.info.verb {
        Verb::Create => write::create_object(store, target, decode_body(parts, &target.resource, &bytes)?, &options)?,
        Verb::Update => write::update_object(store, target, decode_body(parts, &target.resource, &bytes)?, &options)?,
        _ => write::patch_object(store, target, &parse_patch(parts, query, &bytes)?, &options)?,
    };
    let status = if written.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(build_response(
        status,
        form.content_type(),
        full_body(form.encode_object(&written.object)?),
    ))
}

fn delete_collection(
    store: &Store,
    target: &Target,
    query: &Query<'_>,
    options: &DeleteOptions,
    form: Form,
) -> ServeResult {
    let resource = &target.resource;
    if resource.namespaced && target.namespace.is_empty() {
        return Err(Refusal::method_not_allowed());
    }
    let selection = Selection::from_query(resource, &target.namespace, None, query)?;
    let (metadata, chosen) = list::select_page(store, resource, &selection, &ListOptions::from_query(query)?)?;
    let mut gone = Vec::new();
    for object in chosen {
        let target = Target {
            name: metadata_text(&object.value, "name").into(),
            ..target.clone()
        };
        match delete::delete_object(store, &target, options) {
            Ok(DeleteOutcome::Gone(object) | DeleteOutcome::Waiting(object)) => gone.push(object),
            // Another client deleted it first.
            Err(refusal) if refusal.0.code == 404 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let page = Page::new(resource, &metadata, gone, form)?;
    Ok(build_response(
        StatusCode::OK,
        form.content_type(),
        body::page_body(page),
    ))
}

/// The object or collection of the path, or 404.
fn resolve_target(resource: &Arc<Resource>, info: &RequestInfo<'_>, raw_path: &str) -> Result<Target, Refusal> {
    // A doubled slash is not valid, except in `namespaces//x`, which upstream takes for all namespaces.
    let is_clean = !raw_path.replacen("/namespaces//", "/namespaces/", 1).contains("//");
    let is_known = match &*info.subresource {
        "" => true,
        "status" => resource.status,
        other => resource.group.is_empty() && resource.plural == "pods" && upgrade::is_tunnel(other),
    };
    let in_scope = resource.namespaced || info.namespace.is_empty() || resource.plural == "namespaces";
    let deepest = if info.subresource.is_empty() { 2 } else { 3 };
    if !is_clean || !is_known || !in_scope || info.path_parts().filter(|part| !part.is_empty()).count() > deepest {
        return Err(Refusal::no_such_resource());
    }
    let is_single = !info.name.is_empty() && matches!(info.verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete);
    if resource.namespaced && info.namespace.is_empty() && is_single {
        return Err(Refusal::no_such_resource());
    }
    Ok(Target {
        resource: Arc::clone(resource),
        namespace: if resource.namespaced {
            info.namespace.to_string()
        } else {
            String::new()
        },
        name: info.name.to_string(),
        status: info.subresource == "status",
    })
}

/// Whether the path accepts the method: objects are created in collections, replaced by name, deleted in a namespace.
fn accepts_method(info: &RequestInfo<'_>, namespaced: bool, method: &Method) -> bool {
    match info.verb {
        Verb::Create if upgrade::is_tunnel(&info.subresource) => true,
        Verb::Create => {
            let in_namespace = !info.namespace.is_empty();
            info.name.is_empty() && (in_namespace || !namespaced)
        }
        Verb::Update | Verb::Patch => !info.name.is_empty(),
        Verb::Delete => info.subresource.is_empty(),
        Verb::Watch => *method == Method::GET,
        _ => true,
    }
}

fn write_options(parts: &request::Parts, query: &Query<'_>) -> Result<WriteOptions, Refusal> {
    let named = query.get("fieldManager").unwrap_or_default();
    if named.len() > MAX_FIELD_MANAGER {
        return Err(Refusal::bad_request(format!(
            "fieldManager: may not be longer than {MAX_FIELD_MANAGER}"
        )));
    }
    let agent = parts
        .headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or("unknown");
    let agent = agent.split('/').next().unwrap_or_default();
    let field_manager = if named.is_empty() { agent } else { &named };
    Ok(WriteOptions {
        dry_run: is_dry_run(query.get("dryRun").as_deref())?,
        field_manager: field_manager.chars().take(MAX_FIELD_MANAGER).collect(),
        force: parse_flag(query.get("force").as_deref()),
    })
}

fn media_type(parts: &request::Parts) -> &str {
    parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// The encoding of a body; JSON without a content type, as upstream does.
fn body_encoding(parts: &request::Parts, has_protobuf: bool, accepted: &str) -> Result<Encoding, Refusal> {
    let media_type = media_type(parts).split(';').next().unwrap_or_default().trim();
    match Encoding::from_media_type(media_type) {
        _ if media_type.is_empty() => Ok(Encoding::Json),
        Some(Encoding::Json) => Ok(Encoding::Json),
        Some(Encoding::Protobuf) if has_protobuf => Ok(Encoding::Protobuf),
        _ => Err(Refusal::unsupported_media_type(media_type, accepted)),
    }
}

fn decode_body(parts: &request::Parts, resource: &Resource, bytes: &[u8]) -> Result<Value, Refusal> {
    match body_encoding(parts, resource.has_protobuf(), &resource.media_types())? {
        Encoding::Json => serde_json::from_slice(bytes)
            .map_err(|error| Refusal::bad_request(format!("the body is not readable JSON: {error}"))),
        Encoding::Protobuf => protobuf::decode_object(bytes, &resource.api_version(), &resource.kind)
            .map_err(|error| Refusal::bad_request(format!("the body is not readable protobuf: {error}"))),
    }
}

/// `DeleteOptions` from body or query. Accepted in protobuf for every kind, as upstream does.
async fn delete_options(
    parts: &request::Parts,
    query: &Query<'_>,
    body: hyper::body::Incoming,
) -> Result<DeleteOptions, Refusal> {
    let bytes = read_body(body).await?;
    if bytes.is_empty() {
        return DeleteOptions::from_request(query, None);
    }
    let unreadable =
        |error: &dyn std::fmt::Display| Refusal::bad_request(format!("the DeleteOptions are not readable: {error}"));
    let accepted = "application/json, application/vnd.kubernetes.protobuf";
    let options: Value = match body_encoding(parts, true, accepted)? {
        Encoding::Json => serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?,
        Encoding::Protobuf => protobuf::decode_delete_options(&bytes).map_err(|error| unreadable(&error))?,
    };
    DeleteOptions::from_request(query, Some(&options))
}

fn parse_patch(parts: &request::Parts, query: &Query<'_>, bytes: &[u8]) -> Result<Patch, Refusal> {
    let patch = Patch::parse(media_type(parts), bytes)?;
    let is_apply = matches!(patch, Patch::Apply(_));
    let unprocessable = |message: &str| Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message));
    if is_apply && query.get("fieldManager").is_none_or(|manager| manager.is_empty()) {
        return unprocessable("PatchOptions is invalid: fieldManager: Required value: is required for apply patch");
    }
    if !is_apply && query.get("force").is_some() {
        return unprocessable("PatchOptions is invalid: force: Forbidden: may not be specified for non-apply patch");
    }
    Ok(patch)
}

/// Answers with a Status if the object is gone, or with the object if it waits for finalizers, like upstream.
fn delete_response(form: Form, target: &Target, deleted: &DeleteOutcome) -> ServeResult {
    let body = match deleted {
        DeleteOutcome::Waiting(object) => full_body(form.encode_object(object)?),
        DeleteOutcome::Gone(object) => full_body(form.encode_status(&success_status(target, object))),
    };
    Ok(build_response(StatusCode::OK, form.content_type(), body))
}

fn success_status(target: &Target, object: &Object) -> Status {
    let details = StatusDetails {
        name: target.name.clone(),
        group: target.resource.group.clone(),
        kind: target.resource.plural.clone(),
        uid: metadata_text(&object.value, "uid").into(),
        ..StatusDetails::default()
    };
    Status {
        code: 200,
        details: Some(details),
        ..Status::default()
    }
}
