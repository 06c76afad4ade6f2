//! Bodies of requests whose object has another name at the API server: buffered (a lock is small) and rewritten in both directions.
//!
//! Leaves the rewriting itself, for each encoding, to `ctrlmesh_wire::rename`.

use bytes::Bytes;
use ctrlmesh_wire::rename::{self, Rename};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use http_body::Body;

use crate::observe::record::Record;
use crate::respond::Reply;
use crate::stream::body::{self, RequestBody};
use crate::upstream::BoxError;

mod renamed_watch;

pub(crate) use renamed_watch::RenamedWatch;

/// Reads the request's body and sets the API server's name of its object. Returns the index of the rename whose name the body had.
///
/// # Errors
/// The reply to send if the body is too large, broken off, or in an encoding that cannot be rewritten.
pub(crate) async fn request_body(
    headers: &mut HeaderMap,
    body: RequestBody,
    renames: &[Rename],
) -> Result<(Bytes, Option<usize>), Reply> {
    let bytes = body.collect().await?;
    if bytes.is_empty() {
        return Ok((bytes, None));
    }
    if headers.contains_key(CONTENT_ENCODING) {
        return Err(Reply::unsupported_encoding(
            "a lock's body must not be compressed when the sidecar renames the lock",
        ));
    }
    for (index, rename) in renames.iter().enumerate() {
        let renamed = rename::body(content_type(headers), &bytes, rename)
            .map_err(|error| Reply::unsupported_encoding(error.to_string()))?;
        if let Some(renamed) = renamed {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(renamed.len()));
            return Ok((Bytes::from(renamed), Some(index)));
        }
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    Ok((bytes, None))
}

/// Asks for a response in an encoding that can be rewritten: not compressed, and not CBOR. Otherwise a write could be carried out and its
/// response refused afterwards.
pub(crate) fn ask_for_plain(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let sent: Vec<&str> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let kept: Vec<&str> = sent
        .iter()
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|media| !media.contains("cbor"))
        .collect();
    let kept = if kept.is_empty() {
        "application/json".to_owned()
    } else {
        kept.join(",")
    };
    if let Ok(accept) = HeaderValue::from_str(&kept) {
        headers.insert(ACCEPT, accept);
    }
}

/// Reads the response's body and sets the controller's name of its object.
///
/// # Errors
/// The reply to send if the body is too large, broken off, or in an encoding that cannot be rewritten.
pub(crate) async fn response_body<B>(
    headers: &mut HeaderMap,
    body: B,
    rename: &Rename,
    record: &Record,
) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bytes = body::collect_response(body, record).await?;
    let back = reverse_rename(rename);
    let renamed = match rename::body(content_type(headers), &bytes, &back) {
        Ok(renamed) => renamed,
        // Plain text from a failing API server has no object, so there is nothing to rename.
        Err(_)
            if headers
                .get(CONTENT_TYPE)
                .is_some_and(|value| value.as_bytes().starts_with(b"text/")) =>
        {
            None
        }
        Err(error) => return Err(Reply::unsupported_encoding(error.to_string())),
    };
    let bytes = renamed.map_or(bytes, Bytes::from);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    Ok(bytes)
}

/// The reverse: from the API server's name to the controller's.
pub(crate) fn reverse_rename(rename: &Rename) -> Rename {
    Rename {
        from: rename.to.clone(),
        to: rename.from.clone(),
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    // The API server treats a body without a type as JSON.
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("application/json")
}
