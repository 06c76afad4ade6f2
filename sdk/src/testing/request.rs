//! Requests and responses made by hand.

mod unread;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::kept_verdict::KeptVerdict;
use crate::{Facts, Request, ResponseHead, Traffic, Verb};

/// A request for tests. Start from a verb, add what matters.
#[derive(Clone, Debug, PartialEq)]
pub struct TestRequest {
    facts: Facts,
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    method: String,
    path: String,
    host: String,
    port: u16,
    size: Option<u64>,
    is_leader_lock: bool,
    is_recheck: bool,
    note: Cell<u64>,
    read: RefCell<BTreeSet<&'static str>>,
    verdict: RefCell<Option<KeptVerdict>>,
}

impl TestRequest {
    /// A request to the Kubernetes API with this verb, for version `v1` of a group (`""`: core).
    #[must_use]
    pub fn api(verb: Verb, group: &str, resource: &str) -> Self {
        let method = match verb {
            Verb::Create => "POST",
            Verb::Update => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete | Verb::Deletecollection => "DELETE",
            Verb::Get | Verb::List | Verb::Watch | Verb::Proxy | Verb::NonResource => "GET",
        };
        Self {
            facts: Facts {
                traffic: Traffic::Api,
                verb,
                group: group.to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                subresource: String::new(),
                namespace: String::new(),
                name: String::new(),
            },
            headers: Vec::new(),
            query: Vec::new(),
            method: method.to_owned(),
            path: String::new(),
            host: "kubernetes.default.svc".to_owned(),
            port: 443,
            size: None,
            is_leader_lock: group == "coordination.k8s.io" && resource == "leases",
            is_recheck: false,
            note: Cell::new(0),
            read: RefCell::default(),
            verdict: RefCell::default(),
        }
    }

    /// A list of a collection in all namespaces.
    #[must_use]
    pub fn list(group: &str, resource: &str) -> Self {
        Self::api(Verb::List, group, resource)
    }

    /// A watch of a collection in all namespaces.
    #[must_use]
    pub fn watch(group: &str, resource: &str) -> Self {
        Self::api(Verb::Watch, group, resource)
    }

    /// A get by name.
    #[must_use]
    pub fn get(group: &str, resource: &str, name: &str) -> Self {
        Self::api(Verb::Get, group, resource).name(name)
    }

    /// A request that is not about the Kubernetes API, to port 443.
    #[must_use]
    pub fn external(method: &str, host: &str, path: &str) -> Self {
        let mut req = Self::api(Verb::NonResource, "", "");
        req.facts.traffic = Traffic::External;
        req.facts.version = String::new();
        Self {
            method: method.to_owned(),
            host: host.to_owned(),
            path: path.to_owned(),
            ..req
        }
    }

    /// Restricts the request to a namespace. Default: none, as for cluster-wide requests.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.facts.namespace = namespace.to_owned();
        self
    }

    /// Names the object of the request.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.facts.name = name.to_owned();
        self
    }

    /// Sends the request to a subresource, such as `status` or `scale`.
    #[must_use]
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.facts.subresource = subresource.to_owned();
        self
    }

    /// Adds this header (names are case-insensitive).
    #[must_use]
    pub fn header_field(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Names the client: the value of the header `User-Agent`.
    #[must_use]
    pub fn agent(self, user_agent: &str) -> Self {
        self.header_field("user-agent", user_agent)
    }

    /// Adds this query parameter, decoded.
    #[must_use]
    pub fn query_field(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the path, decoded.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    /// Port of the target of an external request. Default: 443.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Asked again while it is open.
    #[must_use]
    pub fn recheck(mut self) -> Self {
        self.is_recheck = true;
        self
    }

    /// About the lock of a leader election that is no Lease.
    #[must_use]
    pub fn leader_lock(mut self) -> Self {
        self.is_leader_lock = true;
        self
    }

    /// The functions by which the plugin has read the request since this was last asked, each once, in alphabetical order: what is
    /// not read costs nothing, and does not narrow a verdict that may be given again.
    #[must_use]
    pub fn take_reads(&self) -> Vec<&'static str> {
        self.read.take().into_iter().collect()
    }

    /// Keeps what the last verdict says about the rest of the request.
    pub(super) fn keep_verdict(&self, verdict: Option<KeptVerdict>) {
        self.verdict.replace(verdict);
    }

    pub(super) fn kept_verdict(&self) -> Option<KeptVerdict> {
        self.verdict.borrow().clone()
    }

    fn note_read(&self, function: &'static str) {
        self.read.borrow_mut().insert(function);
    }

    /// Sets the size of the body in bytes.
    #[must_use]
    pub fn with_size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }
}

fn first_value(fields: &[(String, String)], is_name: impl Fn(&str) -> bool) -> Option<String> {
    fields
        .iter()
        .find(|(name, _)| is_name(name))
        .map(|(_, value)| value.clone())
}

impl Request for TestRequest {
    fn facts(&self) -> &Facts {
        self.note_read("facts");
        &self.facts
    }

    fn traffic(&self) -> Traffic {
        self.note_read("traffic");
        self.facts.traffic
    }

    fn verb(&self) -> Verb {
        self.note_read("verb");
        self.facts.verb
    }

    fn group(&self) -> &str {
        self.note_read("group");
        &self.facts.group
    }

    fn version(&self) -> &str {
        self.note_read("version");
        &self.facts.version
    }

    fn resource(&self) -> &str {
        self.note_read("resource");
        &self.facts.resource
    }

    fn subresource(&self) -> &str {
        self.note_read("subresource");
        &self.facts.subresource
    }

    fn namespace(&self) -> &str {
        self.note_read("namespace");
        &self.facts.namespace
    }

    fn name(&self) -> &str {
        self.note_read("name");
        &self.facts.name
    }

    fn header(&self, name: &str) -> Option<String> {
        self.note_read("header");
        if ["authorization", "cookie"]
            .iter()
            .any(|secret| name.eq_ignore_ascii_case(secret))
        {
            return None;
        }
        first_value(&self.headers, |candidate| candidate.eq_ignore_ascii_case(name))
    }

    fn query(&self, name: &str) -> Option<String> {
        self.note_read("query");
        first_value(&self.query, |candidate| candidate == name)
    }

    fn label_selector(&self) -> String {
        self.note_read("label_selector");
        self.query("labelSelector").unwrap_or_default()
    }

    fn field_selector(&self) -> String {
        self.note_read("field_selector");
        self.query("fieldSelector").unwrap_or_default()
    }

    fn user_agent(&self) -> String {
        self.note_read("user_agent");
        self.header("user-agent").unwrap_or_default()
    }

    fn method(&self) -> String {
        self.note_read("method");
        self.method.clone()
    }

    fn path(&self) -> String {
        self.note_read("path");
        self.path.clone()
    }

    fn host(&self) -> String {
        self.note_read("host");
        self.host.clone()
    }

    fn port(&self) -> u16 {
        self.note_read("port");
        self.port
    }

    fn size(&self) -> Option<u64> {
        self.note_read("size");
        self.size
    }

    fn is_leader_lock(&self) -> bool {
        self.note_read("is_leader_lock");
        self.is_leader_lock
    }

    fn is_recheck(&self) -> bool {
        self.note_read("is_recheck");
        self.is_recheck
    }

    fn note(&self) -> u64 {
        self.note_read("note");
        self.note.get()
    }

    fn set_note(&self, value: u64) {
        self.note.set(value);
    }
}

/// A response head for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct TestResponse {
    status: u16,
    headers: Vec<(String, String)>,
}

impl TestResponse {
    /// A response with this HTTP status.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
        }
    }

    /// Adds a response header (names are case-insensitive).
    #[must_use]
    pub fn header_field(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl TestResponse {
    pub(super) fn status_code(&self) -> u16 {
        self.status
    }
}

impl ResponseHead for TestResponse {
    fn status(&self) -> u16 {
        self.status
    }

    fn header(&self, name: &str) -> Option<String> {
        first_value(&self.headers, |candidate| candidate.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_noted_once_each() {
        let req = TestRequest::get("", "pods", "p");
        assert_eq!(
            (Request::name(&req), req.verb(), req.verb()),
            ("p", Verb::Get, Verb::Get)
        );
        assert_eq!(req.take_reads(), ["name", "verb"]);
        assert_eq!(req.take_reads(), [""; 0]);
    }

    #[test]
    fn first_value_is_shown_and_credentials_never() {
        let req = TestRequest::list("", "pods")
            .header_field("X-Team", "a")
            .header_field("x-team", "b")
            .header_field("Authorization", "Bearer secret")
            .header_field("Cookie", "secret")
            .query_field("labelSelector", "a=1")
            .query_field("labelSelector", "a=2")
            .query_field("LABELSELECTOR", "a=3")
            .with_size(7);
        assert_eq!(req.header("x-TEAM").as_deref(), Some("a"));
        assert_eq!((req.header("authorization"), req.header("cookie")), (None, None));
        assert_eq!(
            (req.label_selector(), req.field_selector()),
            ("a=1".to_owned(), String::new())
        );
        assert_eq!((req.method(), req.size()), ("GET".to_owned(), Some(7)));
        let res = TestResponse::new(200).header_field("ETag", "x");
        assert_eq!((res.status(), res.header("etag").as_deref()), (200, Some("x")));
    }
}
