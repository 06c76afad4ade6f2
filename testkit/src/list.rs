//! Lists: the state to read (resource version, continue token), pages, and the body. [`crate::selection`] selects the objects,
//! [`crate::form`] encodes them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use ctrlmesh_wire::Query;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::form::Form;
use crate::object::{Key, Object};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::selection::Selection;
use crate::store::{Compacted, Listing, Store};

/// Approximate size of the chunks of a list, so that a large one is not copied as a whole.
const CHUNK: usize = 64 * 1024;

/// `resourceVersionMatch`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Unset,
    NotOlderThan,
    Exact,
}

/// The options of a list, without selectors.
#[derive(Debug, Clone)]
pub(crate) struct ListOptions {
    pub(crate) limit: usize,
    token: Option<ContinueToken>,
    /// `None` if absent or empty.
    pub(crate) resource_version: Option<u64>,
    pub(crate) version_match: VersionMatch,
}

/// A continue token with the fields and the encoding of apiserver `pkg/storage/continue.go`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    rv: u64,
    start: String,
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

impl ContinueToken {
    fn encode(resource_version: u64, last: &Key) -> String {
        let token = json!({ "v": TOKEN_VERSION, "rv": resource_version, "start": format!("{}/{}\0", last.namespace, last.name) });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(text: &str) -> Option<Self> {
        let token: Self = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?).ok()?;
        (token.v == TOKEN_VERSION).then_some(token)
    }

    /// The last key of the previous page.
    fn last_key(&self) -> Option<Key> {
        let (namespace, name) = self.start.strip_suffix('\0')?.split_once('/')?;
        Some(Key::new(namespace, name))
    }
}

/// A boolean as apimachinery reads it: present means true, unless the value is `0` or `false`.
pub(crate) fn parse_flag(value: Option<&str>) -> bool {
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// An unsigned number from the query; `None` if absent or empty.
pub(crate) fn parse_number(query: &Query<'_>, key: &str) -> Result<Option<u64>, Refusal> {
    match query.get(key).as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| Refusal::bad_request(format!("{key}: invalid value \"{text}\""))),
    }
}

pub(crate) fn parse_version_match(query: &Query<'_>) -> Result<VersionMatch, Refusal> {
    match query.get("resourceVersionMatch").as_deref() {
        None | Some("") => Ok(VersionMatch::Unset),
        Some("NotOlderThan") => Ok(VersionMatch::NotOlderThan),
        Some("Exact") => Ok(VersionMatch::Exact),
        Some(other) => Err(Refusal::bad_request(format!(
            "resourceVersionMatch: Unsupported value: \"{other}\": supported values: \"Exact\", \"NotOlderThan\""
        ))),
    }
}

impl ListOptions {
    /// Reads and validates the options like apimachinery `pkg/apis/meta/internalversion/validation`.
    pub(crate) fn from_query(query: &Query<'_>) -> Result<Self, Refusal> {
        let limit = parse_number(query, "limit")?.unwrap_or(0);
        let resource_version = parse_number(query, "resourceVersion")?;
        let version_match = parse_version_match(query)?;
        let token = match query.get("continue").as_deref() {
            None | Some("") => None,
            Some(text) => {
                Some(ContinueToken::decode(text).ok_or_else(|| Refusal::bad_request("continue key is not valid"))?)
            }
        };
        let forbidden = |problem: &str| {
            Err(Refusal::bad_request(format!(
                "resourceVersionMatch: Forbidden: {problem}"
            )))
        };
        match (version_match, resource_version) {
            (VersionMatch::NotOlderThan | VersionMatch::Exact, _) if token.is_some() => {
                return forbidden("resourceVersionMatch is forbidden when continue is provided");
            }
            (VersionMatch::NotOlderThan | VersionMatch::Exact, None) => {
                return forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            (VersionMatch::Exact, Some(0)) => {
                return forbidden("resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"");
            }
            _ => {}
        }
        if token.is_some() && resource_version.is_some_and(|version| version != 0) {
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        if query.get("sendInitialEvents").is_some() {
            return Err(Refusal::bad_request(
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
            ));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(Self {
            limit,
            token,
            resource_version,
            version_match,
        })
    }

    /// The state from which the list is read.
    fn read_state(&self, store: &Store, collection: &str, namespace: &str) -> Result<Listing, Refusal> {
        let too_old = |compacted: Compacted, asked: u64| {
            Refusal::expired(format!(
                "The resourceVersion for the provided list is too old: {asked} ({})",
                compacted.oldest
            ))
        };
        let current = store.resource_version();
        if let Some(token) = &self.token {
            if token.rv > current {
                return Err(Refusal::resource_version_too_large(token.rv, current));
            }
            let expired = |_: Compacted| {
                Refusal::expired(
                    "The provided continue parameter is too old to display a consistent list result. You must start a \
                     new list without the continue parameter.",
                )
            };
            return store.list_at(collection, namespace, token.rv).map_err(expired);
        }
        match (self.resource_version, self.version_match) {
            (Some(asked), _) if asked > current => Err(Refusal::resource_version_too_large(asked, current)),
            // Upstream's legacy rule: with a limit, a version without a match means `Exact`.
            (Some(asked), VersionMatch::Exact) => store
                .list_at(collection, namespace, asked)
                .map_err(|c| too_old(c, asked)),
            (Some(asked), VersionMatch::Unset) if asked > 0 && self.limit > 0 => store
                .list_at(collection, namespace, asked)
                .map_err(|c| too_old(c, asked)),
            (Some(asked), _) => Ok(store.list_cached(collection, namespace, asked)),
            (None, _) => Ok(store.list(collection, namespace)),
        }
    }
}

/// One page, ready to be sent.
#[derive(Debug)]
pub(crate) struct Page {
    /// The complete body, in an encoding that can't be written item by item; the other fields are then unused.
    whole: Option<Bytes>,
    head: Bytes,
    objects: std::vec::IntoIter<Arc<Object>>,
    form: Form,
    is_first: bool,
    is_done: bool,
}

pub(crate) fn read_page(
    store: &Store,
    resource: &Resource,
    selection: &Selection,
    options: &ListOptions,
    form: Form,
) -> Result<Page, Refusal> {
    let (metadata, objects) = select_page(store, resource, selection, options)?;
    Page::new(resource, &metadata, objects, form)
}

/// The objects of one page, and the metadata of the list.
pub(crate) fn select_page(
    store: &Store,
    resource: &Resource,
    selection: &Selection,
    options: &ListOptions,
) -> Result<(Value, Vec<Arc<Object>>), Refusal> {
    let state = options.read_state(store, &resource.qualified_name(), &selection.namespace)?;
    let version = state.resource_version;
    let mut objects = state.objects;
    if let Some(after) = options.token.as_ref().map(ContinueToken::last_key) {
        let after = after.ok_or_else(|| Refusal::bad_request("continue key is not valid"))?;
        objects.retain(|object| Key::of_object(&object.value) > after);
    }
    objects.retain(|object| selection.contains_object(&object.value));
    let mut metadata = Map::from_iter([("resourceVersion".to_owned(), version.to_string().into())]);
    if options.limit > 0 && objects.len() > options.limit {
        let remaining = objects.split_off(options.limit);
        let token = objects
            .last()
            .map(|last| ContinueToken::encode(version, &Key::of_object(&last.value)));
        metadata.insert("continue".into(), token.unwrap_or_default().into());
        if !selection.has_selectors() {
            metadata.insert("remainingItemCount".into(), remaining.len().into());
        }
    }
    Ok((Value::Object(metadata), objects))
}

impl Page {
    pub(crate) fn new(
        resource: &Resource,
        metadata: &Value,
        objects: Vec<Arc<Object>>,
        form: Form,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            whole: form.whole_list(resource, metadata, &objects)?,
            head: form.list_head(resource, metadata).into(),
            objects: objects.into_iter(),
            form,
            is_first: true,
            is_done: false,
        })
    }
}

/// Yields the body in chunks.
impl Iterator for Page {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        if let Some(whole) = self.whole.take() {
            self.is_done = true;
            return Some(whole);
        }
        let mut chunk = BytesMut::from(std::mem::take(&mut self.head));
        while chunk.len() < CHUNK {
            let Some(object) = self.objects.next() else {
                chunk.extend_from_slice(b"]}");
                self.is_done = true;
                break;
            };
            if !std::mem::replace(&mut self.is_first, false) {
                chunk.extend_from_slice(b",");
            }
            chunk.extend_from_slice(&self.form.list_item(&object));
        }
        Some(chunk.freeze())
    }
}
