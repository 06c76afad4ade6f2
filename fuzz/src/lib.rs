//! Properties that hold for every input, as plain functions that panic when they do not. The fuzz targets call them with bytes from
//! libFuzzer; the tests here call them with random ones, on any compiler.

mod chain_document;
mod destination;
mod filter_input;
mod filtered_list;
mod filtered_watch;
mod object_uid;
mod query_rewrite;
mod rename;
mod request_info;
mod selector;

pub use chain_document::chain_document;
pub use destination::destination;
pub use filtered_list::filtered_list;
pub use filtered_watch::filtered_watch;
pub use object_uid::object_uid;
pub use query_rewrite::query_rewrite;
pub use rename::rename;
pub use request_info::request_info;
pub use selector::selector;

/// The parts of the sidecar that the parser of destinations uses.
mod request {
    pub(crate) const MAX_URI: usize = 32 << 10;
}

/// The forms of proxy requests, for the parser of destinations.
mod observe {
    pub(crate) use super::class::ProxyForm;
}

#[allow(dead_code, reason = "the sidecar's metrics and logs use the rest")]
#[path = "../../proxy/src/observe/class.rs"]
mod class;

/// The input up to the first line feed, and the rest.
fn split_line(data: &[u8]) -> (&[u8], &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (line, rest) = data.split_at(end);
    (line, rest.get(1..).unwrap_or_default())
}

/// Whether the text, which is not empty, occurs in the body.
fn contains_text(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests;
