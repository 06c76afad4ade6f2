//! The parts of a request and of a response head that a plugin sees, as traits, so that native tests can make their own
//! (`testing::TestRequest`). The real ones ask the host.

use std::cell::OnceCell;

use crate::bindings::ctrlmesh::plugin::exchange;
use crate::{Facts, Traffic, Verb};

/// A request, read-only. Nothing here parses; each function is one call to the host. Facts are asked for once per call of the
/// plugin, however often they are read.
///
/// Read the facts that decide first, and no others: a fact that was not read costs nothing, and a verdict that the host may
/// give again ([`RequestVerdict::reusable`](crate::RequestVerdict::reusable)) holds whatever it is.
pub trait Request {
    /// All facts, in one call to the host.
    fn facts(&self) -> &Facts;
    /// Whether the request goes to the API server or to another service.
    fn traffic(&self) -> Traffic;
    /// The Kubernetes verb of the request.
    fn verb(&self) -> Verb;
    /// API group; empty for the core group.
    fn group(&self) -> &str;
    /// Version of the API group.
    fn version(&self) -> &str;
    /// Plural resource name, lower case.
    fn resource(&self) -> &str;
    /// Subresource; empty for the resource itself.
    fn subresource(&self) -> &str;
    /// Namespace; empty for cluster-scoped resources and for lists over all namespaces.
    fn namespace(&self) -> &str;
    /// Object name; empty for lists without one, and for a create: its name is in the body.
    fn name(&self) -> &str;
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
    /// HTTP status code, such as 404.
    fn status(&self) -> u16;
    /// First value of a header, if it is there and is text.
    fn header(&self, name: &str) -> Option<String>;
}

/// The request behind a handle of the host.
pub(crate) struct Live<'a> {
    handle: &'a exchange::Request,
    facts: OnceCell<Facts>,
    traffic: OnceCell<Traffic>,
    verb: OnceCell<Verb>,
    group: OnceCell<String>,
    version: OnceCell<String>,
    resource: OnceCell<String>,
    subresource: OnceCell<String>,
    namespace: OnceCell<String>,
    name: OnceCell<String>,
}

impl<'a> Live<'a> {
    pub(crate) fn new(handle: &'a exchange::Request) -> Self {
        Self {
            handle,
            facts: OnceCell::new(),
            traffic: OnceCell::new(),
            verb: OnceCell::new(),
            group: OnceCell::new(),
            version: OnceCell::new(),
            resource: OnceCell::new(),
            subresource: OnceCell::new(),
            namespace: OnceCell::new(),
            name: OnceCell::new(),
        }
    }
}

impl Request for Live<'_> {
    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| self.handle.facts())
    }

    fn traffic(&self) -> Traffic {
        *self.traffic.get_or_init(|| self.handle.traffic())
    }

    fn verb(&self) -> Verb {
        *self.verb.get_or_init(|| self.handle.verb())
    }

    fn group(&self) -> &str {
        self.group.get_or_init(|| self.handle.group())
    }

    fn version(&self) -> &str {
        self.version.get_or_init(|| self.handle.version())
    }

    fn resource(&self) -> &str {
        self.resource.get_or_init(|| self.handle.resource())
    }

    fn subresource(&self) -> &str {
        self.subresource.get_or_init(|| self.handle.subresource())
    }

    fn namespace(&self) -> &str {
        self.namespace.get_or_init(|| self.handle.namespace())
    }

    fn name(&self) -> &str {
        self.name.get_or_init(|| self.handle.name())
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
