//! Records the reads and the effects of one call of a plugin. The verdict depends on the reads; the effects are
//! repeated with it.

use std::fmt;

use crate::{Ask, Cell, Counted, Part, Place, Request, RequestVerdict, Reuse};

/// A read by a plugin, of the request or of a cell of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Traffic,
    Verb,
    Group,
    Version,
    Resource,
    Subresource,
    Namespace,
    Name,
    Method,
    Path,
    Host,
    Port,
    IsLeaderLock,
    IsRecheck,
    /// A header, by its name in lower case.
    Header(String),
    /// A query parameter.
    Query(String),
    /// A cell, by its key.
    Cell(String),
}

/// Effects of a call that a host repeats with the verdict.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Effects {
    pub(super) asks: Vec<Ask>,
    pub(super) places: Vec<Place>,
    pub(super) counts: Vec<Counted>,
    /// Keys of counters in the state, with amounts.
    pub(super) increments: Vec<(String, u64)>,
    pub(super) note: Option<u64>,
    pub(super) rules: Vec<(String, Part)>,
}

/// The reads and effects of one call, in its order.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Each read once, with its value; `None` if there was no value.
    pub(super) reads: Vec<(Read, Option<String>)>,
    pub(super) effects: Effects,
    /// Whether tokens or places were not there at once, or a cell could not be read or was written during the call.
    pub(super) met_obstacle: bool,
    read_clock: bool,
    has_admitted: bool,
    /// The first call of a host function that a host does not repeat with a verdict.
    used_once: Option<&'static str>,
}

impl Read {
    /// The facts that a call of `facts` counts as read.
    pub(super) const FACTS: [Self; 8] = [
        Self::Traffic,
        Self::Verb,
        Self::Group,
        Self::Version,
        Self::Resource,
        Self::Subresource,
        Self::Namespace,
        Self::Name,
    ];

    pub(super) fn header(name: &str) -> Self {
        Self::Header(name.to_ascii_lowercase())
    }

    pub(super) fn query(name: &str) -> Self {
        Self::Query(name.to_owned())
    }

    /// The value that this request has; `None` for a cell, which is no part of it.
    pub(super) fn value_in(&self, request: &dyn Request) -> Option<String> {
        match self {
            Self::Traffic => Some(format!("{:?}", request.traffic())),
            Self::Verb => Some(format!("{:?}", request.verb())),
            Self::Group => Some(request.group().to_owned()),
            Self::Version => Some(request.version().to_owned()),
            Self::Resource => Some(request.resource().to_owned()),
            Self::Subresource => Some(request.subresource().to_owned()),
            Self::Namespace => Some(request.namespace().to_owned()),
            Self::Name => Some(request.name().to_owned()),
            Self::Method => Some(request.method()),
            Self::Path => Some(request.path()),
            Self::Host => Some(request.host()),
            Self::Port => Some(request.port().to_string()),
            Self::IsLeaderLock => Some(request.is_leader_lock().to_string()),
            Self::IsRecheck => Some(request.is_recheck().to_string()),
            Self::Header(name) if name == "content-length" => request.size().map(|size| size.to_string()),
            Self::Header(name) => request.header(name),
            Self::Query(name) => request.query(name),
            Self::Cell(_) => None,
        }
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fact = match self {
            Self::Traffic => "traffic",
            Self::Verb => "verb",
            Self::Group => "group",
            Self::Version => "version",
            Self::Resource => "resource",
            Self::Subresource => "subresource",
            Self::Namespace => "namespace",
            Self::Name => "name",
            Self::Method => "method",
            Self::Path => "path",
            Self::Host => "host",
            Self::Port => "port",
            Self::IsLeaderLock => "is_leader_lock",
            Self::IsRecheck => "is_recheck",
            Self::Header(name) => return write!(f, "header {name}"),
            Self::Query(name) => return write!(f, "query parameter {name}"),
            Self::Cell(key) => return write!(f, "cell {key}"),
        };
        f.write_str(fact)
    }
}

/// A cell as the value of a read.
pub(super) fn cell_text(cell: &Cell) -> String {
    format!("version {} {:?}", cell.version, String::from_utf8_lossy(&cell.value))
}

impl Trace {
    /// Records a read, once. If its value has changed during the call, somebody wrote in between.
    pub(super) fn record_read(&mut self, read: Read, value: Option<String>) {
        match self.reads.iter().find(|(known, _)| *known == read) {
            Some((_, known)) => self.met_obstacle |= *known != value,
            None => self.reads.push((read, value)),
        }
    }

    pub(super) fn read_names(&self) -> Vec<String> {
        self.reads.iter().map(|(read, _)| read.to_string()).collect()
    }

    pub(super) fn record_clock(&mut self) {
        self.read_clock = true;
    }

    /// Records tokens and places that were there at once. A call that asks twice is not repeated.
    pub(super) fn record_grant(&mut self, asks: &[Ask], places: &[Place]) {
        if std::mem::replace(&mut self.has_admitted, true) {
            self.use_once("admit twice");
        }
        self.effects.asks = asks.to_vec();
        self.effects.places = places.to_vec();
    }

    pub(super) fn record_obstacle(&mut self) {
        self.met_obstacle = true;
    }

    /// Records a function whose effect or result a host does not repeat.
    pub(super) fn use_once(&mut self, function: &'static str) {
        self.used_once.get_or_insert(function);
    }

    pub(super) const fn used_once(&self) -> Option<&'static str> {
        self.used_once
    }

    /// Whether a host may give the verdict of this call again after this time (`reuse` in `wit/types.wit`).
    pub(super) fn is_repeatable(&self, verdict: &RequestVerdict, unix_ms: u64) -> bool {
        let is_marked = match verdict.reuse {
            Reuse::Never => false,
            Reuse::WhileUnchanged => !self.read_clock,
            Reuse::UntilUnixMs(until) => unix_ms < until,
        };
        is_marked && self.used_once.is_none() && !self.met_obstacle
    }
}
