//! Edits in bodies: options of a DELETE, and the name of an object that has another name at the API server. Such bodies are read whole
//! (they are small) and rewritten.
//!
//! Leaves the encodings to `ctrlmesh_wire`, and events of a watch to `stream::renaming`.

use bytes::Bytes;
use ctrlmesh_wire::rename::Rename;
use ctrlmesh_wire::{DeleteOptionEdit, DeleteOptionsError, Query, edit_delete_options};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, response};

use super::exchange::Exchange;
use crate::controller_state::leadership::LockExchange;
use crate::observe::record::Record;
use crate::respond::Reply;
use crate::stream::body::{BoxBody, ClientBody, RequestBody};
use crate::stream::renaming::{self, RenamedWatch};
use crate::stream::watch;

/// An exchange about an object that has another name at the API server.
pub(super) struct RenamedExchange {
    rename: Rename,
    /// Set if the exchange shows who leads.
    lock_exchange: Option<LockExchange>,
}

/// Applies the edits to the body of a request. `renames`: several if the body has to show which of them applies.
///
/// # Errors
/// The reply to send if the body is too large, broken off, or in an encoding that cannot be edited.
pub(super) async fn edit_request(
    exchange: &Exchange<'_>,
    headers: &mut HeaderMap,
    mut body: RequestBody,
    delete_options: &[DeleteOptionEdit],
    renames: Vec<Rename>,
) -> Result<(RequestBody, Option<Box<RenamedExchange>>), Reply> {
    if !delete_options.is_empty() {
        body = edit_options(headers, body, delete_options).await?;
    }
    if renames.is_empty() {
        return Ok((body, None));
    }
    rename_request(exchange, headers, body, renames).await
}

/// Edits the options of a DELETE in its body, which takes precedence over the query; the query contains the edits as well. An empty body
/// stays empty.
///
/// # Errors
/// The reply to send if the body is too large, broken off, or in an encoding that cannot be edited. Such a request is not sent, because it
/// could delete objects although a plugin wanted a dry run.
async fn edit_options(
    headers: &mut HeaderMap,
    body: RequestBody,
    edits: &[DeleteOptionEdit],
) -> Result<RequestBody, Reply> {
    let bytes = body.collect().await?;
    if bytes.is_empty() {
        return Ok(RequestBody::Full(None));
    }
    if headers.contains_key(CONTENT_ENCODING) {
        return Err(Reply::unsupported_encoding(
            "DeleteOptions must not be compressed when a plugin edits them",
        ));
    }
    let edited = edit_delete_options(content_type(headers), &bytes, edits).map_err(|error| match error {
        DeleteOptionsError::Unsupported(_) => Reply::unsupported_encoding(error.to_string()),
        _ => Reply::bad_request(error.to_string()),
    })?;
    headers.insert(CONTENT_LENGTH, HeaderValue::from(edited.len()));
    Ok(RequestBody::Full(Some(Bytes::from(edited))))
}

/// The API server treats a body without a type as JSON. A type that is no text is one that it does not know.
pub(super) fn content_type(headers: &HeaderMap) -> &str {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
    content_type.map_or("", |text| text.unwrap_or("unknown"))
}

/// Sets the API server's name of the object.
async fn rename_request(
    exchange: &Exchange<'_>,
    headers: &mut HeaderMap,
    body: RequestBody,
    mut renames: Vec<Rename>,
) -> Result<(RequestBody, Option<Box<RenamedExchange>>), Reply> {
    renaming::ask_for_plain(headers);
    let (bytes, named) = renaming::request_body(headers, body, &renames).await?;
    // If the body names none of them, the response names none either.
    let rename = renames.swap_remove(named.unwrap_or_default());
    // The response of a write is about as long, and must not be refused for lack of memory.
    exchange.record.release_for_reuse(bytes.len());
    let query = Query::new(exchange.uri.query().unwrap_or_default());
    let (info, arrived) = (exchange.info, exchange.record.start());
    let leadership = &exchange.worker.shared.leadership;
    let lock_exchange = leadership.observe_request(info, &query, &rename, (&bytes, named.is_some()), arrived);
    let body = RequestBody::of_bytes(bytes);
    // Boxed, so that requests without one do not carry its size.
    Ok((body, Some(Box::new(RenamedExchange { rename, lock_exchange }))))
}

impl RenamedExchange {
    /// Restores the name of the object that the client knows in a response. `streams`: the response is a watch.
    ///
    /// # Errors
    /// The reply to send if the body is too large, broken off, or in an encoding that cannot be rewritten.
    pub(super) async fn restore_names(
        self,
        head: &mut response::Parts,
        body: BoxBody,
        streams: bool,
        record: &Record,
    ) -> Result<BoxBody, Reply> {
        if !streams {
            let bytes = renaming::response_body(&mut head.headers, body, &self.rename, record).await?;
            if let Some(lock_exchange) = self.lock_exchange {
                lock_exchange.observe_response(head, &bytes);
            }
            return Ok(Box::pin(ClientBody::full(bytes, None)));
        }
        match watch::watch_encoding(&head.headers) {
            Some(encoding) => Ok(Box::pin(RenamedWatch::new(
                body,
                encoding,
                renaming::reverse_rename(&self.rename),
                self.lock_exchange,
            ))),
            None => Err(Reply::unsupported_encoding(
                "this watch's encoding can't be renamed: ask for JSON",
            )),
        }
    }
}
