//! A request that plugins want, or a watch that a new chain may want.
//!
//! Flow: call the plugins, apply their edits (`edit`, `edit_body`), check that the client's resource version fits its view (`view_check`)
//! and that the object of the request is one that entries let the client have (`required_object`), send, call the plugins for the response,
//! inflate the body and leave objects and fields out of it (`object_filter`), shape it. A list that was narrowed in the same way before is
//! not edited again (`narrowed_lists`). The delete of a collection of which entries keep only some objects is not sent; they are deleted by
//! their names (`collection_delete`). If a page of a list has nothing for the client, further ones are read first (`next_pages`).

use std::rc::Rc;

use ctrlmesh_wire::rename::Rename;
use ctrlmesh_wire::{DeleteOptionEdit, ParsedQuery, RequestInfo, Verb};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use http_body::Body as _;
use tokio::time::Instant;
use tracing::info;

use super::collection_delete;
use super::earlier_lock;
use super::early_response::{ServeResult, sidecar_response};
use super::edit::{self, Edited};
use super::edit_body::{self, RenamedExchange};
use super::exchange::{Exchange, user_agent};
use super::headers::OwnFields;
use super::narrowed_lists::{ListRequest, NarrowedList};
use super::next_pages::{self, Page, PageResponse};
use super::object_filter::{self, ObjectFilter};
use super::recheck;
use super::required_object::RequiredObject;
use super::upgrade::{self, Offered, Switched};
use super::view_check::{CheckedView, check_view};
use crate::chain::phases::{Attributed, Plugins, RequestDecision, Stop};
use crate::connection::IncomingBody;
use crate::controller_state::leader_locks::LeaderLocks;
use crate::controller_state::list_views::Position;
use crate::plugin::request_view::ClientHeaders;
use crate::plugin::verdict::RequestEdit;
use crate::respond::{Accept, Reply};
use crate::stream::body::{BoxBody, ClientBody, RequestBody};
use crate::stream::shape::ShapedBody;
use crate::stream::watch::{self, WatchBody, WatchStart, Watching};
use crate::upstream::UpstreamBody;

pub(super) struct FilteredRequest {
    plugins: Rc<Plugins>,
    watch_start: Option<WatchStart>,
    /// For a response of the sidecar's own.
    accept: Accept,
}

/// Result of the request phase, for the steps after it.
#[derive(Default)]
struct Prepared {
    /// `None` keeps the client's.
    uri: Option<Uri>,
    /// Candidates, until the request's body is read.
    renames: Vec<Rename>,
    /// Edits for the body of a DELETE.
    delete_options: Vec<DeleteOptionEdit>,
    edits: Vec<Attributed>,
    /// When a watch must compute its view again, even if the chain stays.
    again: Option<Instant>,
    position: Option<Position>,
    /// Set if the response has to be filtered object by object.
    object_filter: Option<ObjectFilter>,
    /// Set if the response has to get the controller's name of its object.
    renamed: Option<Box<RenamedExchange>>,
}

impl Prepared {
    fn edits_body(&self) -> bool {
        !(self.renames.is_empty() && self.delete_options.is_empty())
    }

    /// Whether the request deletes a collection of which an entry keeps only some objects.
    fn deletes_kept_objects(&self, info: &RequestInfo<'_>) -> bool {
        info.verb == Verb::DeleteCollection && collection_delete::keeps_objects(&self.edits)
    }

    /// Whether an entry lets the request pass only for some objects.
    fn requires_object(&self) -> bool {
        let mut edits = self.edits.iter();
        edits.any(|(_, edit)| matches!(edit, RequestEdit::RequireObjectMatch(..)))
    }

    /// Takes the filter if the request is for a page of a list and the filter can leave it empty.
    fn take_filter_of_page(&mut self, exchange: &Exchange<'_>) -> Option<ObjectFilter> {
        let sent = self.uri.as_ref().unwrap_or(exchange.uri);
        let is_plain = exchange.upgrade.is_none() && self.renamed.is_none();
        let is_of_page = is_plain && next_pages::asks_for_page(exchange, sent);
        self.object_filter
            .take_if(|filter| is_of_page && filter.leaves_objects_out())
    }
}

impl FilteredRequest {
    pub(super) fn new(plugins: Rc<Plugins>, watch_start: Option<WatchStart>) -> Self {
        let accept = Accept::from_headers(&plugins.view.headers.borrow());
        Self {
            plugins,
            watch_start,
            accept,
        }
    }

    pub(super) async fn serve(
        mut self,
        exchange: &Exchange<'_>,
        mut parts: Parts,
        incoming: IncomingBody,
    ) -> ServeResult {
        let mut body = RequestBody::new(incoming, exchange.record);
        match read_leader_lock(exchange, &self.plugins.view.headers, &mut body).await {
            // Nothing was waited for since the request arrived.
            Ok(None) => self.plugins.note_now(exchange.record.start()),
            Ok(Some(false)) => {}
            Ok(Some(true)) => self.plugins.view.is_leader_lock.set(true),
            Err(reply) => return Ok(sidecar_response(exchange.record, &self.accept, reply)),
        }
        let decision = self.plugins.on_request().await;
        let mut prepared = match self.prepare(exchange, decision) {
            Ok(prepared) => prepared,
            Err(Stop::Reply(reply)) => {
                let content_type = self.plugins.view.headers.borrow().get(CONTENT_TYPE).cloned();
                let reply = name_created_object(reply, exchange.info, content_type, body).await;
                return Ok(sidecar_response(exchange.record, &self.accept, reply));
            }
            Err(stop) => return exchange.stop(stop, &self.accept).await,
        };
        parts.headers = self.plugins.headers_to_send(&prepared.edits);
        // Looked up, because plugins edit fields.
        let own = OwnFields::look_up(&parts.headers);
        exchange.add_credentials(&mut parts.headers, own);
        if let Some(object_filter) = &prepared.object_filter {
            object_filter.edit_request(&mut parts.headers);
        }
        if prepared.edits_body() || prepared.requires_object() {
            self.plugins.forget_now();
            // Boxed, so that the future of other requests stays small.
            let edited = Box::pin(self.edit_body(exchange, &mut prepared, &mut parts.headers, body)).await;
            body = match edited {
                Ok(body) => body,
                Err(reply) => return Ok(sidecar_response(exchange.record, &self.accept, reply)),
            };
        }
        if prepared.deletes_kept_objects(exchange.info) {
            // Boxed, so that the future of other requests stays small.
            return Box::pin(self.delete_kept_objects(exchange, &prepared, &parts.headers, body)).await;
        }
        if body.is_end_stream()
            && let Some(filter) = prepared.take_filter_of_page(exchange)
        {
            // Boxed, so that the future of other requests stays small.
            return Box::pin(self.serve_pages(exchange, &mut prepared, filter, parts.headers)).await;
        }
        let uri = prepared.uri.as_ref().unwrap_or(exchange.uri);
        // A tunnel has no bodies in which an object could be renamed or left out.
        if exchange.upgrade.is_some() && prepared.renamed.is_none() && prepared.object_filter.is_none() {
            // Boxed, so that the future of other requests stays small.
            let offered = Box::pin(upgrade::send_upgrade(exchange, parts, body, uri)).await;
            return Box::pin(self.finish_offered(exchange, &mut prepared, offered)).await;
        }
        let response = match exchange.send(parts.headers, uri, body, self.plugins.now()).await {
            Ok(response) => response,
            Err(error) => return Ok(exchange.failure_response(&error, &self.accept)),
        };
        self.finish_response(exchange, &mut prepared, response).await
    }

    /// Sends a list with a limit, and answers with the first page that has an object for the client. `headers` are those to be sent.
    async fn serve_pages(
        &mut self,
        exchange: &Exchange<'_>,
        prepared: &mut Prepared,
        filter: ObjectFilter,
        headers: HeaderMap,
    ) -> ServeResult {
        let sent = prepared.uri.as_ref().unwrap_or(exchange.uri);
        let response = next_pages::read_pages(exchange, &self.plugins, &filter, headers, sent).await;
        match response {
            Ok(PageResponse::Page(page)) => self.finish_page(exchange, *page).await,
            Ok(PageResponse::Other(response)) => {
                prepared.object_filter = Some(filter);
                self.finish_response(exchange, prepared, *response).await
            }
            Err(error) => Ok(exchange.failure_response(&error, &self.accept)),
        }
    }

    /// Checks the object that entries require, and applies the edits of the body. `headers` are those to be sent.
    async fn edit_body(
        &self,
        exchange: &Exchange<'_>,
        prepared: &mut Prepared,
        headers: &mut HeaderMap,
        mut body: RequestBody,
    ) -> Result<RequestBody, Reply> {
        let mut required_uid = None;
        let sent = prepared.uri.as_ref().unwrap_or(exchange.uri);
        if let Some(required) = RequiredObject::of_edits(exchange.info, sent, &prepared.edits)? {
            if let Some(entry) = earlier_lock::refusing_entry(exchange.worker, &self.plugins, &prepared.edits) {
                return Err(required.refuse_earlier_leader(exchange, &self.plugins, entry));
            }
            (body, required_uid) = required.check(exchange, &self.plugins, headers, body).await?;
        }
        if prepared.edits_body() {
            let renames = std::mem::take(&mut prepared.renames);
            let edited = edit_body::edit_request(exchange, headers, body, &prepared.delete_options, renames);
            (body, prepared.renamed) = edited.await?;
        }
        match required_uid {
            Some(uid) => {
                let sent = prepared.uri.as_ref().unwrap_or(exchange.uri);
                uid.add_to_body(headers, body, sent).await
            }
            None => Ok(body),
        }
    }

    /// Deletes the objects of the collection that entries keep, and runs the response phase for what the client gets. `headers` are those
    /// to be sent.
    async fn delete_kept_objects(
        &self,
        exchange: &Exchange<'_>,
        prepared: &Prepared,
        headers: &HeaderMap,
        body: RequestBody,
    ) -> ServeResult {
        let (edits, sent) = (&prepared.edits, prepared.uri.as_ref().unwrap_or(exchange.uri));
        let deleting = collection_delete::delete_kept_objects(exchange, edits, sent, headers, body, &self.accept);
        let (mut head, body) = match deleting.await {
            Ok(response) => response.into_parts(),
            Err(reply) => return Ok(sidecar_response(exchange.record, &self.accept, reply)),
        };
        let shapes = match self.plugins.edit_response(&mut head, &exchange.connection).await {
            Ok(shapes) => shapes,
            Err(stop) => return exchange.stop(stop, &self.accept).await,
        };
        let mut body: BoxBody = Box::pin(ClientBody::full(body, None));
        for shape in shapes {
            body = Box::pin(ShapedBody::new(body, shape, None, Rc::clone(&exchange.connection)));
        }
        Ok(ClientBody::boxed(head, body, exchange.record))
    }

    /// Runs the response phase for a request that the client wants to upgrade.
    async fn finish_offered(
        &mut self,
        exchange: &Exchange<'_>,
        prepared: &mut Prepared,
        offered: Offered,
    ) -> ServeResult {
        match offered {
            Offered::Switched(switched) => self.finish_upgrade(exchange, prepared, switched).await,
            Offered::Ordinary(response) => self.finish_response(exchange, prepared, response).await,
            Offered::Failed(response) => Ok(response),
        }
    }

    /// Applies the edits that the plugins decided on, except those of headers, and checks the view.
    fn prepare(&self, exchange: &Exchange<'_>, decision: RequestDecision) -> Result<Prepared, Stop> {
        let mut edits = match decision {
            RequestDecision::Proceed(edits) => edits,
            RequestDecision::Stop(stop) => return Err(stop),
        };
        let again = earlier_lock::hide_objects(exchange.worker, &self.plugins, &mut edits);
        if again.is_some() {
            info!(
                resource = %exchange.info.resource,
                "the controller may still lead by the lock of its pod's earlier shard: it is shown no objects until that lock has expired"
            );
        }
        if let Some(uri) = self.narrow_again(exchange, &mut edits)? {
            return Ok(Prepared {
                uri: Some(uri),
                edits,
                again,
                ..Prepared::default()
            });
        }
        let query = ParsedQuery::new(exchange.uri.query().unwrap_or_default());
        let edited = self.plugins.apply_edits(&mut edits, |edits| {
            edit::apply(exchange.info, exchange.uri, &query, edits)
        })?;
        let shaped = edits.iter().any(|(_, edit)| edit.shapes_view());
        if shaped && exchange.info.verb == Verb::Watch && exchange.upgrade.is_some() {
            return Err(Reply::bad_request(
                "a watch over WebSocket can't be ended when its shard changes: watch over plain HTTP",
            )
            .into());
        }
        let Edited {
            path_and_query,
            renames,
            delete_options,
        } = edited;
        let uri = path_and_query.map(Uri::try_from).transpose();
        let uri = uri.map_err(|error| Reply::bad_request(format!("the edited request target is no URI: {error}")))?;
        let sent = uri.as_ref().unwrap_or(exchange.uri);
        // Before the view is noted, because it may refuse the request.
        let object_filter = match exchange.info.verb {
            // Its response has no objects of a list.
            Verb::DeleteCollection => None,
            _ => {
                let headers = self.plugins.view.headers.borrow();
                ObjectFilter::new(&edits, &exchange.info.group, &query, sent, &headers)?
            }
        };
        let CheckedView { position, noted } = check_view(exchange, &self.plugins, &query, &edits)?;
        if let (Some(uri), Some(noted)) = (&uri, noted)
            && let headers = self.plugins.view.headers.borrow()
            && let Some(list) = list_request(exchange, &headers, &edits)
        {
            let uri = uri.clone();
            let mut narrowed_lists = exchange.worker.narrowed_lists.borrow_mut();
            narrowed_lists.remember(&list, NarrowedList { uri, noted });
        }
        Ok(Prepared {
            uri,
            renames,
            delete_options,
            edits,
            again,
            position,
            object_filter,
            renamed: None,
        })
    }

    /// Narrows a repeated list as before, and notes its view again. Returns the edited target; `None` if the list is not remembered.
    fn narrow_again(&self, exchange: &Exchange<'_>, edits: &mut Vec<Attributed>) -> Result<Option<Uri>, Reply> {
        let headers = self.plugins.view.headers.borrow();
        let list = list_request(exchange, &headers, edits);
        let known = list.and_then(|list| exchange.worker.narrowed_lists.borrow().find(&list));
        let Some(NarrowedList { uri, noted }) = known else {
            return Ok(None);
        };
        // The edits of the target are known to be possible.
        self.plugins.apply_edits(edits, |_| Ok(()))?;
        let list_views = &exchange.worker.shared.list_views;
        list_views.list_again(noted, self.plugins.is_of_first_chain());
        Ok(Some(uri))
    }

    /// Runs the response phase: calls the plugins, inflates the body, restores names, leaves objects and fields out, shapes the body.
    async fn finish_response(
        &mut self,
        exchange: &Exchange<'_>,
        prepared: &mut Prepared,
        response: Response<UpstreamBody>,
    ) -> ServeResult {
        let (mut head, body) = response.into_parts();
        let object_filter = prepared.object_filter.take();
        // Of the API server's head: plugins may edit it.
        let filtered = object_filter.map(|filter| (filter, object_filter::filtered_body(&head, exchange.info.verb)));
        let shapes = match self.plugins.edit_response(&mut head, &exchange.connection).await {
            Ok(shapes) => shapes,
            Err(stop) => return exchange.stop(stop, &self.accept).await,
        };
        let filtered = match filtered {
            Some((filter, Ok(filtered))) => Some((filter, filtered)),
            Some((_, Err(reply))) => {
                exchange.worker.shared.metrics.unfilterable_responses.inc();
                return Ok(sidecar_response(exchange.record, &self.accept, reply));
            }
            None => None,
        };
        let streams = exchange.info.verb == Verb::Watch && head.status == StatusCode::OK;
        let renamed = prepared.renamed.take();
        if renamed.is_none() && !streams && shapes.is_empty() && filtered.is_none() {
            return Ok(ClientBody::upstream(Response::from_parts(head, body), exchange.record));
        }
        let mut body: BoxBody = Box::pin(body);
        if let Some((_, filtered)) = &filtered {
            body = filtered.inflate(exchange, &mut head, body);
        }
        if let Some(renamed) = renamed {
            body = match renamed.restore_names(&mut head, body, streams, exchange.record).await {
                Ok(body) => body,
                Err(reply) => return Ok(sidecar_response(exchange.record, &self.accept, reply)),
            };
        }
        if let Some((filter, filtered)) = filtered {
            body = filter.filter_body(exchange, &self.plugins, &mut head, body, filtered);
        }
        let encoding = watch::watch_encoding(&head.headers).filter(|_| streams);
        for shape in shapes {
            let connection = Rc::clone(&exchange.connection);
            body = Box::pin(ShapedBody::new(body, shape, encoding, connection));
        }
        if let Some(watching) = self.watch_reaction(exchange, prepared).filter(|_| streams) {
            body = Box::pin(WatchBody::new(body, &head.headers, watching));
        }
        Ok(ClientBody::boxed(head, body, exchange.record))
    }

    /// Runs the response phase for a page whose objects are filtered: calls the plugins, shapes the body.
    async fn finish_page(&self, exchange: &Exchange<'_>, page: Page) -> ServeResult {
        let Page { mut head, body } = page;
        let shapes = match self.plugins.edit_response(&mut head, &exchange.connection).await {
            Ok(shapes) => shapes,
            Err(stop) => return exchange.stop(stop, &self.accept).await,
        };
        object_filter::remove_body_fields(&mut head.headers);
        let mut body: BoxBody = Box::pin(body);
        for shape in shapes {
            body = Box::pin(ShapedBody::new(body, shape, None, Rc::clone(&exchange.connection)));
        }
        Ok(ClientBody::boxed(head, body, exchange.record))
    }

    /// Runs the response phase for a 101, and begins the tunnel.
    async fn finish_upgrade(
        &mut self,
        exchange: &Exchange<'_>,
        prepared: &mut Prepared,
        mut switched: Switched,
    ) -> ServeResult {
        let edited = self
            .plugins
            .edit_tunnel_response(&mut switched.head, &exchange.connection)
            .await;
        if let Err(stop) = edited {
            // The API server's end must not stay open if the client is kept waiting.
            drop(switched);
            return exchange.stop(stop, &self.accept).await;
        }
        let watching = self.watch_reaction(exchange, prepared);
        Ok(upgrade::switch_protocols(exchange, switched, watching))
    }

    /// The reaction of a watch to a new chain; `None` for other requests.
    fn watch_reaction(&mut self, exchange: &Exchange<'_>, prepared: &mut Prepared) -> Option<Watching> {
        let watch_start = self.watch_start.take()?;
        let (edits, position) = (std::mem::take(&mut prepared.edits), prepared.position.take());
        let watching = recheck::watch_reaction(exchange, &self.plugins, watch_start, edits, prepared.again, position);
        Some(watching)
    }
}

fn list_request<'a>(
    exchange: &Exchange<'a>,
    headers: &'a HeaderMap,
    edits: &'a [Attributed],
) -> Option<ListRequest<'a>> {
    ListRequest::new(exchange.info, exchange.uri, headers, user_agent(headers), edits)
}

/// Whether the body of a write shows that it is about a leader lock. A body that is small enough is read for this, and stays complete.
/// `None` if that cannot be: nothing is read and waited for then.
///
/// # Errors
/// The reply to send if the client's body breaks off.
async fn read_leader_lock(
    exchange: &Exchange<'_>,
    headers: &ClientHeaders,
    body: &mut RequestBody,
) -> Result<Option<bool>, Reply> {
    if !LeaderLocks::is_detected_from_body(exchange.info, body.size_hint().exact()) {
        return Ok(None);
    }
    let bytes = std::mem::replace(body, RequestBody::Full(None)).collect().await?;
    let leader_locks = &exchange.worker.shared.leader_locks;
    let is_lock = leader_locks.learn_from_body(exchange.info, &headers.borrow(), &bytes);
    *body = RequestBody::Full(Some(bytes));
    Ok(Some(is_lock))
}

/// Name that an API server uses for an object whose name it does not know (k8s.io/apiserver `pkg/admission/errors.go`).
const UNKNOWN_NAME: &str = "Unknown";

/// Adds the name of the object to the refusal of a create, which has the name in its body only.
async fn name_created_object(
    mut reply: Reply,
    info: &RequestInfo<'_>,
    content_type: Option<HeaderValue>,
    body: RequestBody,
) -> Reply {
    if info.verb != Verb::Create || !reply.lacks_name() {
        return reply;
    }
    let content_type = content_type.as_ref().and_then(|value| value.to_str().ok());
    let bytes = body.collect().await.unwrap_or_default();
    let name = ctrlmesh_wire::object_name(content_type.unwrap_or_default(), &bytes);
    reply.set_name(name.as_deref().unwrap_or(UNKNOWN_NAME));
    reply
}
