//! Bodies of DELETE requests whose options a plugin edits: buffered (they are small) and rewritten. A body outranks the query,
//! where the edits stand as well.
//!
//! Leaves the encodings to `ctrlmesh_wire`.

use bytes::Bytes;
use ctrlmesh_wire::{DeleteOptionEdit, DeleteOptionsError, edit_delete_options};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use crate::respond::Reply;
use crate::stream::body::RequestBody;

/// Edits the options in a body; one that is empty stays so.
///
/// # Errors
/// A reply: too large, broken off, or in an encoding that can't be edited. What can't be edited is not sent: it would delete
/// what a plugin wanted to be a dry run.
pub(crate) async fn edited(
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
    let content_type = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), HeaderValue::to_str)
        .unwrap_or("unknown");
    let edited = edit_delete_options(content_type, &bytes, edits).map_err(|error| match error {
        DeleteOptionsError::Unsupported(_) => Reply::unsupported_encoding(error.to_string()),
        _ => Reply::bad_request(error.to_string()),
    })?;
    headers.insert(CONTENT_LENGTH, HeaderValue::from(edited.len()));
    Ok(RequestBody::Full(Some(Bytes::from(edited))))
}
