//! Query strings as the API server reads them (Go `net/url.ParseQuery`), and edits that leave every other byte alone.
//!
//! The server takes the first value of a parameter and silently drops a pair that it can't read. A filter
//! by a parameter must read it the same way, because clients can bypass text that is appended to the raw query.

use std::borrow::Cow;

use crate::percent;

/// Longest query that is read, in bytes: far above any real one (the longest are `continue` tokens of a few KiB).
pub const MAX_QUERY_BYTES: usize = 64 * 1024;

/// Most pairs that are read. Go's `url.ParseQuery` reads none at all of a longer query, so that an added selector would
/// be ignored with the rest.
pub const MAX_QUERY_PAIRS: usize = 10_000;

/// Few requests have more pairs than this.
const USUAL_PAIRS: usize = 6;

/// The query is larger than what is read. A server answers it with 414.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query has this many bytes, more than [`MAX_QUERY_BYTES`].
    #[error("the query has {0} bytes; at most {MAX_QUERY_BYTES} are read: shorten the selectors")]
    TooLong(usize),
    /// The query has this many pairs, more than [`MAX_QUERY_PAIRS`].
    #[error("the query has {0} parameters; at most {MAX_QUERY_PAIRS} are read: drop repeated ones")]
    TooManyPairs(usize),
}

/// A raw query string, without the `?`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    raw: &'a str,
}

impl<'a> Query<'a> {
    /// Wraps the text behind the `?`; nothing is parsed yet.
    #[must_use]
    pub fn new(raw: &'a str) -> Self {
        Self { raw }
    }

    /// Refuses what a server would not read whole.
    ///
    /// # Errors
    /// When the text is longer than [`MAX_QUERY_BYTES`] or has more pairs than [`MAX_QUERY_PAIRS`].
    pub fn check(&self) -> Result<(), QueryError> {
        if self.raw.len() > MAX_QUERY_BYTES {
            return Err(QueryError::TooLong(self.raw.len()));
        }
        // Every pair needs a byte, so that a short text can't hold too many.
        if self.raw.len() < MAX_QUERY_PAIRS {
            return Ok(());
        }
        match self.raw.split('&').count() {
            pairs if pairs > MAX_QUERY_PAIRS => Err(QueryError::TooManyPairs(pairs)),
            _ => Ok(()),
        }
    }

    /// The first value of a parameter, decoded; the one that the API server uses. A key without `=` has the value "".
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Cow<'a, str>> {
        self.raw.split('&').find_map(|piece| match Pair::read(piece) {
            Some(pair) if pair.key == key => Some(pair.value),
            _ => None,
        })
    }

    /// The first pair that the API server drops: one with a raw `;` or with a bad percent escape in key or value.
    #[must_use]
    pub fn malformed_pair(&self) -> Option<&'a str> {
        self.raw
            .split('&')
            .find(|piece| !piece.is_empty() && Pair::read(piece).is_none())
    }

    /// The pairs that the API server sees, decoded, in order.
    #[must_use]
    pub fn pairs(&self) -> Pairs<'a> {
        Pairs {
            pieces: self.raw.split('&'),
        }
    }
}

/// Iterator over the decoded pairs of a [`Query`].
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    pieces: std::str::Split<'a, char>,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        self.pieces.find_map(Pair::read).map(|pair| (pair.key, pair.value))
    }
}

/// A query string whose pairs were read once, for callers that look up several parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedQuery<'a> {
    raw: &'a str,
    pairs: Vec<Pair<'a>>,
    malformed_pair: Option<&'a str>,
}

impl<'a> ParsedQuery<'a> {
    /// Reads the text behind the `?`.
    #[must_use]
    pub fn new(raw: &'a str) -> Self {
        let mut pairs = Vec::with_capacity(if raw.is_empty() { 0 } else { USUAL_PAIRS });
        let mut malformed_pair = None;
        for piece in raw.split('&').filter(|piece| !piece.is_empty()) {
            match Pair::read(piece) {
                Some(pair) => pairs.push(pair),
                None => malformed_pair = malformed_pair.or(Some(piece)),
            }
        }
        Self {
            raw,
            pairs,
            malformed_pair,
        }
    }

    /// The text that was read.
    #[must_use]
    pub const fn raw(&self) -> &'a str {
        self.raw
    }

    /// The first value of a parameter, as [`Query::get`].
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.value(key).map(|value| &**value)
    }

    /// The first value of a parameter, borrowed or decoded.
    pub(crate) fn value(&self, key: &str) -> Option<&Cow<'a, str>> {
        self.pairs.iter().find(|pair| pair.key == key).map(|pair| &pair.value)
    }

    /// As [`Query::malformed_pair`].
    #[must_use]
    pub const fn malformed_pair(&self) -> Option<&'a str> {
        self.malformed_pair
    }

    /// An editor of this query, which does not read it again.
    #[must_use]
    pub const fn edit(&self) -> QueryEditor<'_> {
        QueryEditor {
            raw: self.raw,
            text: Cow::Borrowed(self.raw),
            parsed: Some(self),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair<'a> {
    key: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> Pair<'a> {
    /// Parses one piece between two `&` as `url.ParseQuery` does; `None` when that function skips the piece.
    fn read(piece: &'a str) -> Option<Self> {
        if piece.is_empty() || piece.contains(';') {
            return None;
        }
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        Some(Self {
            key: percent::decode_query(key).ok()?,
            value: percent::decode_query(value).ok()?,
        })
    }
}

/// Edits single parameters of a query; what is not named keeps its order and its bytes.
#[derive(Debug, Clone)]
pub struct QueryEditor<'a> {
    raw: &'a str,
    text: Cow<'a, str>,
    /// The parameters of `raw`, if it was parsed already.
    parsed: Option<&'a ParsedQuery<'a>>,
}

impl<'a> QueryEditor<'a> {
    /// Starts from the text behind the `?`.
    #[must_use]
    pub fn new(raw: &'a str) -> Self {
        Self {
            raw,
            text: Cow::Borrowed(raw),
            parsed: None,
        }
    }

    /// The first value, as [`Query::get`] of the text edited so far.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        match self.unedited() {
            Some(parsed) => parsed.get(key).map(Cow::Borrowed),
            None => Query::new(&self.text).get(key),
        }
    }

    /// The parameters of the text, if it was parsed and is not edited yet.
    fn unedited(&self) -> Option<&'a ParsedQuery<'a>> {
        self.parsed.filter(|_| matches!(self.text, Cow::Borrowed(_)))
    }

    /// Puts the value in the place of the parameter's first occurrence and removes the others; appends it when absent.
    ///
    /// Pairs of this key that the API server would drop are removed too: an aggregated API server in front of which
    /// nothing drops them might read them.
    pub fn set(&mut self, key: &str, value: &str) {
        self.replace(key, Some(value));
    }

    /// Removes every occurrence of the parameter.
    pub fn remove(&mut self, key: &str) {
        self.replace(key, None);
    }

    /// Whether the text differs from the one that was given.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        matches!(&self.text, Cow::Owned(text) if text != self.raw)
    }

    /// The query after all edits, encoded.
    #[must_use]
    pub fn finish(self) -> String {
        self.text.into_owned()
    }

    fn replace(&mut self, key: &str, mut value: Option<&str>) {
        let mut edited = String::with_capacity(self.text.len() + key.len() + value.map_or(0, |v| v.len() * 3) + 2);
        let lacks_key = |parsed: &ParsedQuery<'_>| parsed.value(key).is_none() && parsed.malformed_pair.is_none();
        if self.unedited().is_some_and(lacks_key) {
            edited.push_str(&self.text);
        } else {
            self.copy_others(key, &mut value, &mut edited);
        }
        if let Some(value) = value {
            if !edited.is_empty() {
                edited.push('&');
            }
            push_pair(&mut edited, key, value);
        }
        self.text = Cow::Owned(edited);
    }

    /// Copies all pieces but those of the parameter, whose first one the value replaces.
    fn copy_others(&self, key: &str, value: &mut Option<&str>, edited: &mut String) {
        let mut separator = "";
        for piece in self.text.split('&') {
            match Pair::read(piece) {
                Some(pair) if pair.key == key => {
                    let Some(value) = value.take() else { continue };
                    edited.push_str(separator);
                    push_pair(edited, key, value);
                }
                None if mentions_key(piece, key) => continue,
                _ => {
                    edited.push_str(separator);
                    edited.push_str(piece);
                }
            }
            separator = "&";
        }
    }
}

fn push_pair(query: &mut String, key: &str, value: &str) {
    query.extend(percent::encode(key));
    query.push('=');
    query.extend(percent::encode(value));
}

/// Whether a piece that the API server drops names the key, to a reader that splits at `;` or forgives bad escapes.
fn mentions_key(piece: &str, key: &str) -> bool {
    piece.split(';').filter(|part| !part.is_empty()).any(|part| {
        let name = part.split_once('=').map_or(part, |(name, _)| name);
        percent::decode_query(name).map_or(name == key, |name| name == key)
    })
}

#[cfg(test)]
mod tests;
