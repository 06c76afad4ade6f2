//! The parts of a request and of a response head that a plugin sees, as traits, so that native tests can make their own
//! (`testing::TestRequest`). The real ones ask the host.

use std::cell::OnceCell;

use crate::Facts;
use crate::bindings::ctrlmesh::plugin::exchange;

/// A request, read-only. Nothing here parses; each function but [`Request::facts`] is one call to the host.
pub trait Request {
    /// The parsed essentials. Fetched from the host once per call of the plugin.
    fn facts(&self) -> &Facts;
    /// First value of a header, if it is there and is text. `authorization` and `cookie` are never shown.
    fn header(&self, name: &str) -> Option<String>;
    /// First value of a query parameter, decoded as the API server would.
    fn query(&self, name: &str) -> Option<String>;
    /// The client's own label selector, decoded; empty if there is none.
    fn label_selector(&self) -> String;
    /// The client's own field selector, decoded; empty if there is none.
    fn field_selector(&self) -> String;
    /// The `User-Agent` header; empty if there is none.
    fn user_agent(&self) -> String;
    /// Upper-case HTTP method.
    fn method(&self) -> String;
    /// Decoded path.
    fn path(&self) -> String;
    /// Host name of external traffic, in lower case and without brackets; the API server's for API traffic.
    fn host(&self) -> String;
    /// Port of external traffic; the API server's for API traffic.
    fn port(&self) -> u16;
    /// `Content-Length` in bytes, if the request has one.
    fn size(&self) -> Option<u64>;
    /// Whether this is about a leader election's lock (`wit/plugin.wit` says how the host knows).
    fn is_leader_lock(&self) -> bool;
    /// Whether the host only asks if a watch that is open would still be let through, after a new chain came into force.
    fn is_recheck(&self) -> bool;
    /// The number that this entry has noted with this request; 0 at first.
    fn note(&self) -> u64;
    /// Notes a number for this entry's later phases of this request.
    fn set_note(&self, value: u64);
}

/// The head of a response, read-only.
pub trait ResponseHead {
    /// HTTP status.
    fn status(&self) -> u16;
    /// First value of a header, if it is there and is text.
    fn header(&self, name: &str) -> Option<String>;
}

/// The request behind a handle of the host.
pub(crate) struct Live<'a> {
    handle: &'a exchange::Request,
    facts: OnceCell<Facts>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(handle: &'a exchange::Request) -> Self {
        Self {
            handle,
            facts: OnceCell::new(),
        }
    }
}

impl Request for Live<'_> {
    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| self.handle.facts())
    }

    fn header(&self, name: &str) -> Option<String> {
        self.handle.header(name)
    }

    fn query(&self, name: &str) -> Option<String> {
        self.handle.query(name)
    }

    fn label_selector(&self) -> String {
        self.handle.label_selector()
    }

    fn field_selector(&self) -> String {
        self.handle.field_selector()
    }

    fn user_agent(&self) -> String {
        self.handle.user_agent()
    }

    fn method(&self) -> String {
        self.handle.method()
    }

    fn path(&self) -> String {
        self.handle.path()
    }

    fn host(&self) -> String {
        self.handle.host()
    }

    fn port(&self) -> u16 {
        self.handle.port()
    }

    fn size(&self) -> Option<u64> {
        self.handle.size()
    }

    fn is_leader_lock(&self) -> bool {
        self.handle.is_leader_lock()
    }

    fn is_recheck(&self) -> bool {
        self.handle.is_recheck()
    }

    fn note(&self) -> u64 {
        self.handle.note()
    }

    fn set_note(&self, value: u64) {
        self.handle.set_note(value);
    }
}

/// The response head behind a handle of the host.
pub(crate) struct LiveHead<'a>(pub(crate) &'a exchange::ResponseHead);

impl ResponseHead for LiveHead<'_> {
    fn status(&self) -> u16 {
        self.0.status()
    }

    fn header(&self, name: &str) -> Option<String> {
        self.0.header(name)
    }
}
