//! A request that records what is read of it.

use std::cell::RefCell;

use crate::testing::request::TestRequest;
use crate::testing::trace::{Read, Trace};
use crate::{Facts, Request, Traffic, Verb};

pub(super) struct RecordedRequest<'a> {
    request: &'a TestRequest,
    /// Supplies the recorded values, so that [`TestRequest::take_reads`] has the plugin's reads alone.
    copy: TestRequest,
    trace: &'a RefCell<Trace>,
}

impl<'a> RecordedRequest<'a> {
    pub(super) fn new(request: &'a TestRequest, trace: &'a RefCell<Trace>) -> Self {
        let copy = request.clone();
        Self { request, copy, trace }
    }

    fn record(&self, read: Read) {
        let value = read.value_in(&self.copy);
        self.trace.borrow_mut().record_read(read, value);
    }
}

impl Request for RecordedRequest<'_> {
    fn facts(&self) -> &Facts {
        for fact in Read::FACTS {
            self.record(fact);
        }
        self.request.facts()
    }

    fn traffic(&self) -> Traffic {
        self.record(Read::Traffic);
        self.request.traffic()
    }

    fn verb(&self) -> Verb {
        self.record(Read::Verb);
        self.request.verb()
    }

    fn group(&self) -> &str {
        self.record(Read::Group);
        self.request.group()
    }

    fn version(&self) -> &str {
        self.record(Read::Version);
        self.request.version()
    }

    fn resource(&self) -> &str {
        self.record(Read::Resource);
        self.request.resource()
    }

    fn subresource(&self) -> &str {
        self.record(Read::Subresource);
        Request::subresource(self.request)
    }

    fn namespace(&self) -> &str {
        self.record(Read::Namespace);
        Request::namespace(self.request)
    }

    fn name(&self) -> &str {
        self.record(Read::Name);
        Request::name(self.request)
    }

    fn header(&self, name: &str) -> Option<String> {
        self.record(Read::header(name));
        self.request.header(name)
    }

    fn query(&self, name: &str) -> Option<String> {
        self.record(Read::query(name));
        self.request.query(name)
    }

    fn label_selector(&self) -> String {
        self.record(Read::query("labelSelector"));
        self.request.label_selector()
    }

    fn field_selector(&self) -> String {
        self.record(Read::query("fieldSelector"));
        self.request.field_selector()
    }

    fn user_agent(&self) -> String {
        self.record(Read::header("user-agent"));
        self.request.user_agent()
    }

    fn method(&self) -> String {
        self.record(Read::Method);
        self.request.method()
    }

    fn path(&self) -> String {
        self.record(Read::Path);
        self.request.path()
    }

    fn host(&self) -> String {
        self.record(Read::Host);
        self.request.host()
    }

    fn port(&self) -> u16 {
        self.record(Read::Port);
        self.request.port()
    }

    fn size(&self) -> Option<u64> {
        self.record(Read::header("content-length"));
        self.request.size()
    }

    fn is_leader_lock(&self) -> bool {
        self.record(Read::IsLeaderLock);
        self.request.is_leader_lock()
    }

    fn is_recheck(&self) -> bool {
        self.record(Read::IsRecheck);
        self.request.is_recheck()
    }

    fn note(&self) -> u64 {
        self.request.note()
    }

    fn set_note(&self, value: u64) {
        self.trace.borrow_mut().effects.note = Some(value);
        self.request.set_note(value);
    }
}
