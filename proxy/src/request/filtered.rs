//! The long way: a request that plugins want, or a watch that a new chain may want.
//!
//! Flow: ask the plugins, apply their edits, see that the client's resource version fits its view (`ledger`), send, ask
//! again on the way back, shape the body. Leaves each step to its own file.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::Guard;
use ctrlmesh_wire::rename::Rename;
use ctrlmesh_wire::{DeleteOptionEdit, Query, RequestInfo, Verb};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode, Uri, response};

use crate::chain::phases::{Attributed, Plugins, RequestDecision, Stop, shaping};
use crate::chain::{EntryId, Kind, Matched, Snapshot};
use crate::client::leadership::Overheard;
use crate::client::list_views::{Known, Position, Reader, Representation};
use crate::listen::connection::IncomingBody;
use crate::observe::record::Record;
use crate::plugin::verdict::{BodyShape, RequestEdit, Traffic};
use crate::plugin::view::{Memory, RequestView};
use crate::request::delete_options;
use crate::request::edit::{self, EditError, Edited};
use crate::request::ending::{Answer, answer};
use crate::request::handler::{Exchange, user_agent};
use crate::request::upgrade::{self, Offered};
use crate::respond::{Accept, Reply};
use crate::stream::body::{BoxBody, ClientBody, RequestBody};
use crate::stream::renaming::{self, RenamedWatch};
use crate::stream::shape::ShapedBody;
use crate::stream::watch::{self, Begun, WatchBody, Watching};
use crate::upstream::UpstreamBody;

/// A request on the long way.
pub(crate) struct Guarded {
    plugins: Rc<Plugins>,
    /// Of a watch.
    begun: Option<Begun>,
}

/// What the request phase left to do.
struct Prepared {
    uri: Uri,
    rename: Option<Rename>,
    /// Of a DELETE, for its body.
    delete_options: Vec<DeleteOptionEdit>,
    edits: Vec<Attributed>,
    /// Of a watch.
    position: Option<Position>,
    /// Of an exchange that tells who leads.
    overheard: Option<Overheard>,
}

impl Guarded {
    pub(crate) fn new(
        exchange: &Exchange<'_>,
        parts: &Parts,
        snapshot: Arc<Snapshot>,
        matched: Matched,
        begun: Option<Begun>,
    ) -> Self {
        let info = &exchange.info;
        let view = RequestView {
            traffic: Traffic::Api,
            verb: info.verb,
            group: info.group.to_string(),
            version: info.version.to_string(),
            resource: info.resource.to_string(),
            subresource: info.subresource.to_string(),
            namespace: info.namespace.to_string(),
            name: info.name.to_string(),
            method: parts.method.clone(),
            uri: exchange.uri.clone(),
            host: exchange.worker.host().to_owned(),
            port: exchange.worker.port(),
            is_leader_lock: Cell::new(exchange.worker.locks.is_lock(info, user_agent(&parts.headers))),
            headers: parts.headers.clone(),
            memory: Memory::default(),
        };
        let instances = Rc::clone(&exchange.worker.instances);
        let plugins = Rc::new(Plugins::new(snapshot, matched, Rc::new(view), instances));
        exchange.record.set_plugins(Rc::clone(&plugins));
        Self { plugins, begun }
    }

    /// Serves the request.
    pub(crate) async fn serve(mut self, exchange: Exchange<'_>, mut parts: Parts, incoming: IncomingBody) -> Answer {
        let accept = Accept::of(&parts.headers);
        let mut body = RequestBody::new(incoming, &exchange.record);
        match exchange
            .worker
            .locks
            .look(&exchange.info, &parts.headers, &mut body)
            .await
        {
            Ok(false) => {}
            Ok(true) => self.plugins.view.is_leader_lock.set(true),
            Err(reply) => return Ok(answer(&exchange.record, &accept, reply)),
        }
        let mut prepared = match self.prepare(&exchange, &mut parts).await {
            Ok(prepared) => prepared,
            Err(Stop::Reply(reply)) => {
                let reply = named(reply, &exchange.info, &parts.headers, body).await;
                return Ok(answer(&exchange.record, &accept, reply));
            }
            Err(stop) => return exchange.stop(stop, &accept).await,
        };
        exchange.dress(&mut parts.headers);
        body = match edited(&exchange, &mut parts.headers, body, &mut prepared).await {
            Ok(edited) => edited,
            Err(reply) => return Ok(answer(&exchange.record, &accept, reply)),
        };
        // An object is renamed in bodies, which a tunnel has none of.
        if exchange.upgrade.is_some() && prepared.rename.is_none() {
            return match upgrade::send(&exchange, parts, body, prepared.uri.clone()).await {
                Offered::Switched(switched) => {
                    let watching = self.watching(&exchange, prepared.edits, prepared.position);
                    Ok(upgrade::switch(&exchange, switched, watching))
                }
                Offered::Ordinary(response) => self.respond(&exchange, &accept, prepared, response).await,
                Offered::Failed(response) => Ok(response),
            };
        }
        match exchange
            .send(&parts.method, parts.headers, prepared.uri.clone(), body)
            .await
        {
            Ok(response) => self.respond(&exchange, &accept, prepared, response).await,
            Err(error) => Ok(exchange.failed(&error, &accept)),
        }
    }

    /// The request phase: plugins, edits, view.
    async fn prepare(&self, exchange: &Exchange<'_>, parts: &mut Parts) -> Result<Prepared, Stop> {
        let mut edits = match self.plugins.on_request().await {
            RequestDecision::Proceed(edits) => edits,
            RequestDecision::Stop(stop) => return Err(stop),
        };
        let edited = self.plugins.settle(&mut edits, &mut parts.headers, |edits| {
            edit::apply(&exchange.info, exchange.uri, edits)
        })?;
        let shaped = edits.iter().any(|(_, edit)| edit.shapes_view());
        if shaped && exchange.info.verb == Verb::Watch && exchange.upgrade.is_some() {
            return Err(Reply::bad_request(
                "a watch over WebSocket can't be ended when its shard changes: watch over plain HTTP",
            )
            .into());
        }
        let position = self.check_view(exchange, &edits)?;
        let Edited {
            path_and_query,
            rename,
            delete_options,
        } = edited;
        let uri = match path_and_query {
            Some(target) => target
                .parse()
                .map_err(|error| Reply::bad_request(format!("the edited request target is no URI: {error}")))?,
            None => exchange.uri.clone(),
        };
        Ok(Prepared {
            uri,
            rename,
            delete_options,
            edits,
            position,
            overheard: None,
        })
    }

    /// A list notes its view; a watch, or a later page, must come from the same one.
    fn check_view(&self, exchange: &Exchange<'_>, edits: &[Attributed]) -> Result<Option<Position>, Reply> {
        let info = &exchange.info;
        if !matches!(info.verb, Verb::List | Verb::Watch) || info.resource.is_empty() {
            return Ok(None);
        }
        let query = Query::new(exchange.uri.query().unwrap_or_default());
        let labels = query.get("labelSelector").unwrap_or_default();
        let fields = query.get("fieldSelector").unwrap_or_default();
        let reader = Reader {
            user_agent: user_agent(&self.plugins.view.headers).as_bytes(),
            representation: Representation::of(&self.plugins.view.headers),
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            namespace: &info.namespace,
            label_selector: &labels,
            field_selector: &fields,
        };
        let ledger = &exchange.worker.ledger;
        let view = || edits.iter().map(|(_, edit)| edit);
        let is_right = |known| match known {
            Known::Same => true,
            Known::Other => false,
            // A watch of one object by name starts from a get, which leaves no note.
            Known::Nothing => {
                let is_unshaped = || !ledger.inherits() && view().all(|edit| !edit.shapes_view());
                !info.name.is_empty() || self.plugins.is_of_first_chain() || is_unshaped()
            }
        };
        let expired = || {
            self.plugins.expired(shaping(edits));
            Reply::expired(OTHER_VIEW)
        };
        match (info.verb, starts_anew(info, &query)) {
            (Verb::List, true) => {
                ledger.list(&reader, view(), self.plugins.is_of_first_chain());
                Ok(None)
            }
            (Verb::List, false) if is_right(ledger.page(&reader, view())) => Ok(None),
            (Verb::List, false) => Err(expired()),
            (_, true) => Ok(Some(ledger.start_anew(&reader, view()))),
            (_, false) => ledger.resume(&reader, view(), is_right).map(Some).ok_or_else(expired),
        }
    }

    /// The response phase: plugins, names, shapes.
    async fn respond(
        mut self,
        exchange: &Exchange<'_>,
        accept: &Accept,
        prepared: Prepared,
        response: Response<UpstreamBody>,
    ) -> Answer {
        let (mut head, body) = response.into_parts();
        let shapes = match self.plugins.edit_response(&mut head, &exchange.connection).await {
            Ok(shapes) => shapes,
            Err(stop) => return exchange.stop(stop, accept).await,
        };
        let streams = exchange.info.verb == Verb::Watch && head.status == StatusCode::OK;
        let mut body: BoxBody = match &prepared.rename {
            Some(rename) => {
                match named_back(&mut head, body, rename, prepared.overheard, streams, &exchange.record).await {
                    Ok(body) => body,
                    Err(reply) => return Ok(answer(&exchange.record, accept, reply)),
                }
            }
            None if !streams && shapes.is_empty() => {
                return Ok(ClientBody::upstream(Response::from_parts(head, body), &exchange.record));
            }
            None => Box::pin(body),
        };
        let encoding = watch::encoding(&head.headers).filter(|_| streams);
        for shape in shapes {
            body = shaped(body, shape, encoding, exchange);
        }
        if let Some(watching) = self
            .watching(exchange, prepared.edits, prepared.position)
            .filter(|_| streams)
        {
            body = Box::pin(WatchBody::new(body, &head.headers, watching));
        }
        Ok(ClientBody::boxed(head, body, &exchange.record))
    }

    /// What a watch hears of new chains; `None` for anything else.
    fn watching(
        &mut self,
        exchange: &Exchange<'_>,
        edits: Vec<Attributed>,
        position: Option<Position>,
    ) -> Option<Watching> {
        let begun = self.begun.take()?;
        let worker = Rc::clone(exchange.worker);
        let view = Rc::clone(&self.plugins.view);
        let plugins = Rc::clone(&self.plugins);
        let owners: Vec<EntryId> = shaping(&edits).collect();
        let before: Vec<RequestEdit> = view_of(edits);
        let recheck = Box::new(move || {
            worker.metrics.rechecks.inc();
            let (snapshot, ticket) = worker.enter(Kind::Watch);
            let snapshot = Guard::into_inner(snapshot);
            let matched = snapshot.matching(&view.query());
            let plugins = Plugins::new(snapshot, matched, Rc::clone(&view), Rc::clone(&worker.instances));
            let edits = plugins.recheck()?;
            (view_of(possible(&view, edits)) == before).then_some(ticket)
        });
        let metrics = Arc::clone(&exchange.worker.metrics);
        let on_expired = Rc::new(move || {
            metrics.watches_expired.inc();
            plugins.expired(owners.iter().copied());
        });
        Some(Watching {
            begun,
            recheck,
            on_expired,
            position,
        })
    }
}

/// The body with what was edited in it, if anything was.
async fn edited(
    exchange: &Exchange<'_>,
    headers: &mut HeaderMap,
    mut body: RequestBody,
    prepared: &mut Prepared,
) -> Result<RequestBody, Reply> {
    if !prepared.delete_options.is_empty() {
        body = delete_options::edited(headers, body, &prepared.delete_options).await?;
    }
    if let Some(rename) = &prepared.rename {
        (body, prepared.overheard) = renamed(exchange, headers, body, rename).await?;
    }
    Ok(body)
}

/// The body with the API server's name in it, and who hears what becomes of the request if it is about a lock.
async fn renamed(
    exchange: &Exchange<'_>,
    headers: &mut HeaderMap,
    body: RequestBody,
    rename: &Rename,
) -> Result<(RequestBody, Option<Overheard>), Reply> {
    renaming::ask_for_plain(headers);
    let (bytes, is_named) = renaming::request_body(headers, body, rename).await?;
    // The answer of a write is about as long, and must not be refused for want of room.
    exchange.record.spare(bytes.len());
    let query = Query::new(exchange.uri.query().unwrap_or_default());
    let (info, arrived) = (&exchange.info, exchange.record.start());
    let leadership = &exchange.worker.leadership;
    let overheard = leadership.ask(info, &query, rename, (&bytes, is_named), arrived);
    let body = RequestBody::Full(Some(bytes).filter(|bytes| !bytes.is_empty()));
    Ok((body, overheard))
}

/// The body, with the names that the client knows. `streams`: it is a watch.
async fn named_back(
    head: &mut response::Parts,
    body: UpstreamBody,
    rename: &Rename,
    overheard: Option<Overheard>,
    streams: bool,
    record: &Record,
) -> Result<BoxBody, Reply> {
    if !streams {
        let bytes = renaming::response_body(&mut head.headers, body, rename, record).await?;
        if let Some(overheard) = overheard {
            overheard.answered(head, &bytes);
        }
        return Ok(Box::pin(ClientBody::full(bytes, None)));
    }
    match watch::encoding(&head.headers) {
        Some(encoding) => Ok(Box::pin(RenamedWatch::new(
            body,
            encoding,
            renaming::back(rename),
            overheard,
        ))),
        None => Err(Reply::unsupported_encoding(
            "this watch's encoding can't be renamed: ask for JSON",
        )),
    }
}

/// Leaves out the edits of entries that ask for something impossible, as `prepare` did when the watch began.
fn possible(view: &RequestView, mut edits: Vec<Attributed>) -> Vec<Attributed> {
    let Ok(info) = RequestInfo::parse(view.method.as_str(), view.uri.path(), view.uri.query()) else {
        return edits;
    };
    while let Err(EditError::Plugin { entry, .. }) = edit::apply(&info, &view.uri, &edits) {
        edits.retain(|(owner, _)| *owner != entry);
    }
    edits
}

const OTHER_VIEW: &str = "the rules of this controller's shard have changed since this resource version: list again";

/// Whether the client starts from nothing: a first page, or a watch that begins with what is there.
fn starts_anew(info: &RequestInfo<'_>, query: &Query<'_>) -> bool {
    let text = |key: &str| query.get(key).unwrap_or_default();
    match info.verb {
        Verb::List => text("continue").is_empty(),
        _ => is_unset_or_zero(&text("resourceVersion")) || asks_for_initial_events(query),
    }
}

/// No version, or 0 in any spelling that the API server takes for a number (apiserver
/// `pkg/storage/api_object_versioner.go`, `ParseResourceVersion`).
fn is_unset_or_zero(version: &str) -> bool {
    version.bytes().all(|digit| digit == b'0')
}

/// As apimachinery reads a flag (`pkg/runtime/conversion.go`, `Convert_Slice_string_To_Pointer_bool`).
fn asks_for_initial_events(query: &Query<'_>) -> bool {
    let flag = query.get("sendInitialEvents");
    flag.is_some_and(|flag| flag != "0" && !flag.eq_ignore_ascii_case("false"))
}

fn view_of(edits: Vec<Attributed>) -> Vec<RequestEdit> {
    edits
        .into_iter()
        .map(|(_, edit)| edit)
        .filter(RequestEdit::shapes_view)
        .collect()
}

/// What an API server calls an object whose name it can't tell (k8s.io/apiserver `pkg/admission/errors.go`).
const NAMELESS: &str = "Unknown";

/// A refusal of a create says which object it is about; the name is in the body.
async fn named(mut reply: Reply, info: &RequestInfo<'_>, headers: &HeaderMap, body: RequestBody) -> Reply {
    if info.verb != Verb::Create || !reply.lacks_name() {
        return reply;
    }
    let content_type = headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let bytes = body.collect().await.unwrap_or_default();
    let name = ctrlmesh_wire::object_name(content_type.unwrap_or_default(), &bytes);
    reply.set_name(name.as_deref().unwrap_or(NAMELESS));
    reply
}

fn shaped(
    body: BoxBody,
    shape: BodyShape,
    encoding: Option<ctrlmesh_wire::WatchEncoding>,
    exchange: &Exchange<'_>,
) -> BoxBody {
    Box::pin(ShapedBody::new(body, shape, encoding, Rc::clone(&exchange.connection)))
}
