//! Lists with a limit of which objects are left out: reads further pages until one has an object for the client, or is the last.
//!
//! Clients take an empty page for an empty list, above all if they ask for one object to see whether there is any. The limit stays the
//! client's, because a page may not have more objects than it asked for, and a token says only where a whole page ends.
//!
//! Guarantees: each page is asked for like the client's own, with its identity and its options, and the token pins the resource version;
//! all pages together take at most a minute, and then the client gets the last one that was read, with its token; if the client goes away,
//! no further page is asked for. Errors of further pages are the client's: after a 410 it has to list again.

use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_wire::{Query, QueryEditor, Verb};
use http::{HeaderMap, Method, Response, StatusCode, Uri, response};
use tokio::time::{Instant, timeout_at};

use super::exchange::Exchange;
use super::object_filter::{self, ObjectFilter};
use crate::chain::phases::Plugins;
use crate::stream::body::{BoxBody, RequestBody};
use crate::stream::held_page::HeldPage;
use crate::upstream::{SendError, UpstreamBody};

/// Maximum time for all pages: the API server's own limit for a request.
const MAX_TIME: Duration = Duration::from_mins(1);

/// The response to a request for a page.
pub(super) enum PageResponse {
    Page(Box<Page>),
    /// An error, or a response that cannot be filtered. Nothing is done with it yet.
    Other(Box<Response<UpstreamBody>>),
}

/// A page without the objects that the client does not get.
pub(super) struct Page {
    pub(super) head: response::Parts,
    pub(super) body: HeldPage<BoxBody>,
}

/// Whether the client asks for a page of a list. `sent` is the target that is sent. A limit of 0 is none.
pub(super) fn asks_for_page(exchange: &Exchange<'_>, sent: &Uri) -> bool {
    let limit = Query::new(sent.query().unwrap_or_default()).get("limit");
    let is_limited = limit.is_some_and(|limit| limit.parse::<i64>().is_ok_and(|limit| limit > 0));
    is_limited && exchange.info.verb == Verb::List && *exchange.record.method() == Method::GET
}

/// Sends the client's request, and goes on with the next page while a page has nothing for the client.
///
/// # Errors
/// The API server did not answer the request for one of the pages.
pub(super) async fn read_pages(
    exchange: &Exchange<'_>,
    plugins: &Rc<Plugins>,
    filter: &ObjectFilter,
    headers: HeaderMap,
    sent: &Uri,
) -> Result<PageResponse, SendError> {
    let deadline = Instant::now() + MAX_TIME;
    let ask = async |target: Uri| -> Result<PageResponse, SendError> {
        let body = RequestBody::Full(None);
        let response = exchange.send(headers.clone(), &target, body, Instant::now()).await?;
        Ok(open_page(exchange, plugins, filter, response))
    };
    let response = ask(sent.clone()).await?;
    match response {
        PageResponse::Page(first) => find_object(first, sent, deadline, ask).await,
        other => Ok(other),
    }
}

fn open_page(
    exchange: &Exchange<'_>,
    plugins: &Rc<Plugins>,
    filter: &ObjectFilter,
    response: Response<UpstreamBody>,
) -> PageResponse {
    let (mut head, body) = response.into_parts();
    let filtered = object_filter::filtered_body(&head, Verb::List).ok();
    let filtered = filtered.filter(|_| head.status == StatusCode::OK);
    let Some((filtered, encoding)) = filtered.and_then(|filtered| Some((filtered, filtered.list_encoding()?))) else {
        return PageResponse::Other(Box::new(Response::from_parts(head, body)));
    };
    let body = filtered.inflate(exchange, &mut head, Box::pin(body));
    let body = HeldPage::new(filter.clone().filter_list(exchange, plugins, body, encoding));
    PageResponse::Page(Box::new(Page { head, body }))
}

/// Gives the first page that has an object for the client; at the deadline, or if there is none, the last page that was read. `ask` sends
/// the request for a page.
async fn find_object(
    mut page: Box<Page>,
    sent: &Uri,
    deadline: Instant,
    ask: impl AsyncFn(Uri) -> Result<PageResponse, SendError>,
) -> Result<PageResponse, SendError> {
    // At the deadline, the page passes as far as it has come, and the rest follows.
    let mut token = timeout_at(deadline, page.body.next_token()).await.unwrap_or_default();
    while let Some(target) = token.and_then(|token| next_target(sent, &token)) {
        let reading = async {
            let mut response = ask(target).await?;
            let token = match &mut response {
                PageResponse::Page(page) => page.body.next_token().await,
                PageResponse::Other(_) => None,
            };
            Ok::<_, SendError>((response, token))
        };
        let Ok(read) = timeout_at(deadline, reading).await else {
            break;
        };
        match read? {
            (PageResponse::Page(next), next_token) => (page, token) = (next, next_token),
            (other, _) => return Ok(other),
        }
    }
    Ok(PageResponse::Page(page))
}

/// The target of the page with this token. API servers refuse a version beside a token, as `pager` of client-go knows. `None` if the token
/// is too long for a target.
fn next_target(sent: &Uri, token: &str) -> Option<Uri> {
    let mut query = QueryEditor::new(sent.query().unwrap_or_default());
    query.remove("resourceVersion");
    query.remove("resourceVersionMatch");
    query.set("continue", token);
    Uri::try_from([sent.path(), "?", &query.finish()].concat()).ok()
}

#[cfg(test)]
mod tests;
