//! Remembers request targets, so that a target that a controller repeats is not read again: it is not parsed, its path is not checked, its
//! facts are not copied for plugins, and the entries that want it are not searched for.
//!
//! Guarantees: a target is found only by the same method, path and query. These are compared in full, never by their hashes, and what is
//! read of a target depends on nothing else. The entries that want a request depend on the chain and the user agent as well, so they are
//! used again only under the same chain and for the same user agent. No other header field is kept. The texts are copies: those of a
//! request share memory with its head, which has the client's credentials.
//!
//! Bounded: a thread remembers [`MAX_TARGETS`] targets of [`MAX_TARGET_BYTES`]. With all that was read of it, a target takes up to 3 KiB,
//! and usually less than one: 768 KiB at most for a thread. A target is remembered when it comes for the second time without another in
//! between that has the same slot. So a controller that reads thousands of objects one by one neither pays for copies nor fills the memory.
//!
//! Leaves to `handler`: targets that are refused, and those that are sent with another path. Never remembered: paths with percent escapes,
//! methods without a verb, and long-running requests, which last so long that reading them does not count, and whose queries may hold
//! the commands of an exec.

use std::borrow::Cow;
use std::cell::RefCell;
use std::hash::BuildHasher as _;
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, RequestInfoError, UncleanPath};
use http::Uri;

use crate::chain::Matched;
use crate::plugin::request_view::Facts;

/// Maximum number of targets that a thread remembers. Few controllers repeat more; a slot without a target takes 16 bytes.
const MAX_TARGETS: usize = 256;

/// Maximum length of a target's path and query. Longer ones are rare, and each byte is kept up to four times: in the path or the query, in
/// the parsed request, and in the facts.
const MAX_TARGET_BYTES: usize = 512;

/// Maximum length of a user agent that is kept. client-go's are shorter.
const MAX_USER_AGENT_BYTES: usize = 256;

/// A target whose path need not be checked again, because it passes as it is.
pub(super) struct ParsedTarget {
    /// Method and path are in here.
    info: RequestInfo<'static>,
    query: Option<Box<str>>,
    facts: Rc<Facts>,
    last_match: RefCell<Option<LastMatch>>,
}

/// The entries that wanted the last request for a target.
struct LastMatch {
    /// Identity of the chain.
    snapshot: u64,
    user_agent: Box<str>,
    matched: Matched,
}

impl ParsedTarget {
    /// Returns `None` if the target must not be remembered.
    fn new(new: &NewTarget<'_>) -> Option<Self> {
        let NewTarget { info, path, query, .. } = new;
        // Otherwise the decoded path would be found, which another path may be sent as.
        let is_sent_as_read = matches!(info.path, Cow::Borrowed(_)) && info.path == *path;
        if !is_sent_as_read || info.is_long_running() {
            return None;
        }
        Some(Self {
            info: info.to_static()?,
            query: query.map(Box::from),
            facts: Rc::new(Facts::new(info)),
            last_match: RefCell::default(),
        })
    }

    pub(super) fn facts(&self) -> &Rc<Facts> {
        &self.facts
    }

    /// The entries that want a request for this target. `find` is called if the last one came under another chain or with another user
    /// agent. It must depend on nothing else.
    pub(super) fn matching_entries(&self, snapshot: u64, user_agent: &str, find: impl FnOnce() -> Matched) -> Matched {
        if let Some(last) = &*self.last_match.borrow()
            && last.snapshot == snapshot
            && *last.user_agent == *user_agent
        {
            return last.matched;
        }
        let matched = find();
        if user_agent.len() <= MAX_USER_AGENT_BYTES {
            *self.last_match.borrow_mut() = Some(LastMatch {
                snapshot,
                user_agent: user_agent.into(),
                matched,
            });
        }
        matched
    }
}

/// The target of a request.
#[expect(
    clippy::large_enum_variant,
    reason = "a target that is not remembered is read without allocating"
)]
pub(super) enum Target<'a> {
    Remembered(Rc<ParsedTarget>),
    New(NewTarget<'a>),
}

/// A target that was read just now.
pub(super) struct NewTarget<'a> {
    info: RequestInfo<'a>,
    /// Path and query as the client sent them.
    path: &'a str,
    query: Option<&'a str>,
    /// `None` if the target is too long to be remembered.
    hash: Option<u64>,
}

impl<'a> Target<'a> {
    pub(super) fn info(&self) -> &RequestInfo<'a> {
        match self {
            Self::Remembered(target) => &target.info,
            Self::New(target) => &target.info,
        }
    }

    pub(super) fn remembered(&self) -> Option<&ParsedTarget> {
        match self {
            Self::Remembered(target) => Some(target),
            Self::New(_) => None,
        }
    }

    /// Checks that the path means the same to every server. Returns the path to send instead, if there is one.
    ///
    /// # Errors
    /// As [`RequestInfo::check_path`].
    pub(super) fn check_path(&self) -> Result<Option<String>, UncleanPath> {
        match self {
            Self::Remembered(_) => Ok(None),
            Self::New(target) => {
                target.info.check_path(target.path)?;
                Ok(target.info.path_without_empty_namespace())
            }
        }
    }
}

/// The targets that one thread remembers.
#[derive(Default)]
pub(super) struct ParsedTargets {
    /// By the hash of a target. Empty until the first target is to be remembered.
    slots: Vec<Slot>,
    /// With a random seed, because clients choose the targets.
    hashes: foldhash::fast::RandomState,
}

#[derive(Default)]
struct Slot {
    /// Hash of the last target that was not remembered.
    missed: u64,
    target: Option<Rc<ParsedTarget>>,
}

impl ParsedTargets {
    /// Reads the target of a request, unless it is remembered.
    ///
    /// # Errors
    /// As [`RequestInfo::parse`].
    pub(super) fn read<'a>(&self, method: &'a str, uri: &'a Uri) -> Result<Target<'a>, RequestInfoError> {
        let (path, query) = (uri.path(), uri.query());
        let bytes = path.len() + query.map_or(0, str::len);
        let hash = (bytes <= MAX_TARGET_BYTES).then(|| self.hashes.hash_one((method, path, query)));
        if let Some(target) = hash.and_then(|hash| self.find(hash, method, path, query)) {
            return Ok(Target::Remembered(target));
        }
        let info = RequestInfo::parse(method, path, query)?;
        Ok(Target::New(NewTarget {
            info,
            path,
            query,
            hash,
        }))
    }

    fn find(&self, hash: u64, method: &str, path: &str, query: Option<&str>) -> Option<Rc<ParsedTarget>> {
        let target = self.slots.get(slot_of(hash))?.target.as_ref()?;
        let is_same = target.info.method == method && target.info.path == path && target.query.as_deref() == query;
        is_same.then(|| Rc::clone(target))
    }

    /// Remembers a target that comes for the second time. The caller has checked its path, and sends it as it is.
    pub(super) fn remember(&mut self, target: &Target<'_>) {
        let Target::New(new @ NewTarget { hash: Some(hash), .. }) = target else {
            return;
        };
        if self.slots.is_empty() {
            self.slots.resize_with(MAX_TARGETS, Slot::default);
        }
        let Some(slot) = self.slots.get_mut(slot_of(*hash)) else {
            return;
        };
        if slot.missed != *hash {
            slot.missed = *hash;
        } else if let Some(parsed) = ParsedTarget::new(new) {
            slot.target = Some(Rc::new(parsed));
        }
    }
}

fn slot_of(hash: u64) -> usize {
    hash as usize % MAX_TARGETS
}

#[cfg(test)]
mod tests;
