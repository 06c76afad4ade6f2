//! Paths that two servers read differently. The API server takes dot segments and empty segments as they are; gateways,
//! load balancers and other proxies in front of it resolve them first (RFC 3986 §5.2.4, nginx `merge_slashes`), so that
//! `/./api/v1/configmaps` is nothing to the one and a list of everything to the other. Such a path is refused.
//!
//! Guarantees: what passes names the same resource to every server, however it decodes and cleans paths; behind a `proxy`
//! subresource, whose paths are another program's, no reading leaves `proxy/`.

use super::{RequestInfo, Verb};
use crate::percent;

/// Why a path is not sent on. A server answers 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UncleanPath {
    /// Not absolute: `*`.
    #[error("the path does not begin with a slash")]
    Relative,
    /// `.` or `..`, encoded or not.
    #[error(
        "the path holds a dot segment (`.` or `..`), which servers resolve differently: send the path that is meant"
    )]
    DotSegment,
    /// Two slashes with nothing between them.
    #[error("the path holds an empty segment (`//`), which servers treat differently: leave it out")]
    EmptySegment,
    /// A character that no name of the API has and that some servers treat as a separator or an end.
    #[error("the path holds {0:?}, which servers treat differently and which no API path needs")]
    Character(char),
    /// A percent escape of a separator, a dot or a percent sign that is still there after decoding.
    #[error("the path is percent-encoded twice: encode it once")]
    EncodedTwice,
    /// The path behind a `proxy` subresource climbs above it.
    #[error("the path behind the proxy subresource climbs above it (`..`): send a path below it")]
    AboveProxy,
}

impl RequestInfo<'_> {
    /// Whether `raw_path`, which this was read from, means the same to every server. `namespaces//pods` is let through
    /// where [`RequestInfo::path_without_empty_namespace`] has another path for it.
    ///
    /// # Errors
    /// The first thing that servers read differently.
    pub fn check_path(&self, raw_path: &str) -> Result<(), UncleanPath> {
        if !raw_path.starts_with('/') {
            return Err(UncleanPath::Relative);
        }
        match self.split_proxied_path(raw_path) {
            Some((head, tail)) => {
                check_segments(head, false)?;
                check_below(tail)
            }
            None => check_segments(&self.path, self.has_empty_namespace()),
        }
    }

    /// The path to send instead of `namespaces//{resource}`, which the API server answers like a list or a watch over all
    /// namespaces; `None` for every other path.
    #[must_use]
    pub fn path_without_empty_namespace(&self) -> Option<String> {
        if !self.has_empty_namespace() {
            return None;
        }
        let mut path = format!("/{}", self.api_prefix);
        let watch = if self.verb_from_prefix { "watch" } else { "" };
        for segment in [&*self.group, &*self.version, watch, &*self.resource] {
            if !segment.is_empty() {
                path.push('/');
                path.extend(percent::encode(segment));
            }
        }
        Some(path)
    }

    /// A list or a watch whose namespace is given and empty. A trailing slash does not matter to the API server.
    fn has_empty_namespace(&self) -> bool {
        let behind = |text: &str| text.strip_suffix("/namespaces/").is_some();
        matches!(self.verb, Verb::List | Verb::Watch)
            && !self.resource.is_empty()
            && *self.resource == *self.rest
            && self
                .path
                .trim_end_matches('/')
                .strip_suffix(&*self.rest)
                .and_then(|head| head.strip_suffix('/'))
                .is_some_and(behind)
    }

    /// The decoded path up to a `proxy` subresource and its slash, and the raw path behind it. `None` if there is none, or if
    /// the first part has escapes that hide where its segments end.
    fn split_proxied_path<'p>(&'p self, raw_path: &'p str) -> Option<(&'p str, &'p str)> {
        if !self.is_resource_request || self.subresource != "proxy" {
            return None;
        }
        // Resource, name and subresource; the slashes at the end do not belong to `rest`.
        let own = self
            .rest
            .match_indices('/')
            .nth(2)
            .map_or(&*self.rest, |(end, _)| self.rest.get(..end).unwrap_or_default());
        let start = self.path.trim_end_matches('/').len().checked_sub(self.rest.len())?;
        let (head, _) = self.path.split_at_checked(start + own.len() + 1)?;
        let slashes = head.matches('/').count();
        let (end, _) = raw_path.match_indices('/').nth(slashes.checked_sub(1)?)?;
        let (raw_head, raw_tail) = raw_path.split_at_checked(end + 1)?;
        let is_aligned = percent::decode_path(raw_head).is_ok_and(|decoded| decoded == head);
        is_aligned.then_some((head, raw_tail))
    }
}

/// Checks a decoded path that the API server reads itself.
fn check_segments(path: &str, may_lack_namespace: bool) -> Result<(), UncleanPath> {
    if is_plain(path) {
        return Ok(());
    }
    check_unusual_segments(path, may_lack_namespace)
}

fn check_unusual_segments(path: &str, may_lack_namespace: bool) -> Result<(), UncleanPath> {
    let odd = |c: char| matches!(c, '\\' | ';' | '?' | '#' | char::REPLACEMENT_CHARACTER) || c.is_control();
    if let Some(character) = path.chars().find(|c| odd(*c)) {
        return Err(UncleanPath::Character(character));
    }
    if has_escape(path) {
        return Err(UncleanPath::EncodedTwice);
    }
    let below = path.strip_prefix('/').unwrap_or(path);
    let segments = below.strip_suffix('/').unwrap_or(below);
    if segments.is_empty() {
        return if below.is_empty() {
            Ok(())
        } else {
            Err(UncleanPath::EmptySegment)
        };
    }
    let mut before = "";
    for segment in segments.split('/') {
        match segment {
            "." | ".." => return Err(UncleanPath::DotSegment),
            "" if !(may_lack_namespace && before == "namespaces") => return Err(UncleanPath::EmptySegment),
            _ => before = segment,
        }
    }
    Ok(())
}

/// Whether one look at each byte shows that the path is clean, as it does for nearly all paths.
fn is_plain(path: &str) -> bool {
    let mut before = b'/';
    path.strip_prefix('/').is_some_and(|below| {
        below.bytes().all(|byte| {
            let is_plain = match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' => true,
                b'.' | b'/' => before != b'/',
                _ => false,
            };
            before = byte;
            is_plain
        })
    })
}

/// Whether one more decoding would bring up a separator, a dot or a further escape.
fn has_escape(decoded: &str) -> bool {
    decoded.match_indices('%').any(|(at, _)| {
        let digits = decoded.as_bytes().get(at + 1..at + 3).unwrap_or_default();
        [b"2e", b"2f", b"5c", b"25", b"3b", b"3f", b"23"]
            .iter()
            .any(|escape| digits.eq_ignore_ascii_case(*escape))
    })
}

/// Checks that a raw path never climbs above where it begins, in any reading: with `%2F`, `%252F` and `\` as separators or as
/// letters, empty segments merged, parameters behind `;` cut off.
fn check_below(raw_tail: &str) -> Result<(), UncleanPath> {
    if !raw_tail.contains('%') && !raw_tail.contains("..") {
        return Ok(());
    }
    let raw: Vec<Byte> = raw_tail.bytes().map(|value| Byte { value, decoded: 0 }).collect();
    let bytes = decode_once_more(&decode_once_more(&raw, 1), 2);
    for slashes in 0..=2 {
        for backslashes in [None, Some(0), Some(1), Some(2)] {
            let is_separator = |byte: &Byte| match byte.value {
                b'/' => byte.decoded <= slashes,
                b'\\' => backslashes.is_some_and(|most| byte.decoded <= most),
                _ => false,
            };
            check_depth(bytes.split(is_separator))?;
        }
    }
    Ok(())
}

/// A byte of a path, and how often it was decoded until it appeared.
#[derive(Clone, Copy)]
struct Byte {
    value: u8,
    decoded: u8,
}

fn check_depth<'b>(segments: impl Iterator<Item = &'b [Byte]>) -> Result<(), UncleanPath> {
    let mut depth = 0_usize;
    for segment in segments {
        // Some servers take `..;a=b` for `..`.
        let mut name = segment.iter().map(|byte| byte.value).take_while(|byte| *byte != b';');
        match [name.next(), name.next(), name.next()] {
            [None, ..] | [Some(b'.'), None, _] => {}
            [Some(b'.'), Some(b'.'), None] => depth = depth.checked_sub(1).ok_or(UncleanPath::AboveProxy)?,
            _ => depth += 1,
        }
    }
    Ok(())
}

/// Decodes the escapes; what is none stays, because behind a proxy the second decoding is a guess.
fn decode_once_more(bytes: &[Byte], decoded: u8) -> Vec<Byte> {
    let digit = |byte: &Byte| {
        char::from(byte.value)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut rest = bytes;
    let mut out = Vec::with_capacity(bytes.len());
    while let [first, behind @ ..] = rest {
        let escape = match behind {
            [high, low, after @ ..] if first.value == b'%' => digit(high).zip(digit(low)).zip(Some(after)),
            _ => None,
        };
        if let Some(((high, low), after)) = escape {
            out.push(Byte {
                value: high << 4 | low,
                decoded,
            });
            rest = after;
        } else {
            out.push(*first);
            rest = behind;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn plain_path_is_clean(path in "/?(/|\\.|%2e|[aZ0_:;-]|\u{e9}){0,8}") {
            if is_plain(&path) {
                prop_assert_eq!(check_unusual_segments(&path, false), Ok(()));
            }
        }
    }

    #[test]
    fn usual_paths_are_plain() {
        for path in ["/", "/api/v1/namespaces/a/pods/b.c-d", "/apis/g.io/v1/x:y/", "/healthz"] {
            assert!(is_plain(path), "{path}");
        }
        for path in ["", "*", "//", "/a/../b", "/a//b", "/.a", "/a%2fb", "/a;b", "/\u{e9}"] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
