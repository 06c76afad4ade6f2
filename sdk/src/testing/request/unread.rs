//! Changes what a plugin has not read of a request, and adds headers and selectors that the request does not have.

use super::{TestRequest, first_value};
use crate::testing::trace::Read;
use crate::{Traffic, Verb};

/// Headers that a request gets if it has none of this name: one that most clients send, and one that no plugin knows.
const ADDED_HEADERS: [(&str, &str); 2] = [("user-agent", "other/1.0"), ("x-unread", "other")];
/// Query parameters that a request for a collection gets if it has none of this name. A selector by `metadata.name` would also be the
/// request's name.
const ADDED_SELECTORS: [(&str, &str); 2] = [
    ("labelSelector", "unread=other"),
    ("fieldSelector", "spec.nodeName=other"),
];

impl TestRequest {
    /// Gives everything that was not read another value, adds headers and selectors, and returns what was changed. What was read as absent
    /// stays so.
    pub(in crate::testing) fn change_unread(&mut self, is_read: &dyn Fn(&Read) -> bool) -> Vec<Read> {
        // The verb of the request that the test made, which may change below.
        let is_for_collection = matches!(self.facts.verb, Verb::List | Verb::Watch | Verb::Deletecollection);
        let mut changed = Vec::new();
        let mut may_change = |read: Read| {
            let is_unread = !is_read(&read);
            if is_unread {
                changed.push(read);
            }
            is_unread
        };
        let facts = &mut self.facts;
        if may_change(Read::Traffic) {
            facts.traffic = match facts.traffic {
                Traffic::External => Traffic::Api,
                Traffic::Api | Traffic::Webhook => Traffic::External,
            };
        }
        if may_change(Read::Verb) {
            facts.verb = match facts.verb {
                Verb::Patch => Verb::Get,
                _ => Verb::Patch,
            };
        }
        let texts = [
            (Read::Group, &mut facts.group),
            (Read::Version, &mut facts.version),
            (Read::Resource, &mut facts.resource),
            (Read::Subresource, &mut facts.subresource),
            (Read::Namespace, &mut facts.namespace),
            (Read::Name, &mut facts.name),
            (Read::Method, &mut self.method),
            (Read::Path, &mut self.path),
            (Read::Host, &mut self.host),
        ];
        let headers = self.headers.iter_mut();
        let headers = headers.map(|(name, value)| (Read::header(name), value));
        let queries = self.query.iter_mut();
        let queries = queries.map(|(name, value)| (Read::query(name), value));
        for (read, text) in texts.into_iter().chain(headers).chain(queries) {
            if may_change(read) {
                text.push_str("-other");
            }
        }
        if may_change(Read::Port) {
            self.port ^= 1;
        }
        if may_change(Read::header("content-length")) {
            self.size = Some(self.size.map_or(1, |size| size ^ 1));
        }
        if may_change(Read::IsLeaderLock) {
            self.is_leader_lock = !self.is_leader_lock;
        }
        if may_change(Read::IsRecheck) {
            self.is_recheck = !self.is_recheck;
        }
        self.add_absent(is_for_collection, may_change);
        changed
    }

    fn add_absent(&mut self, is_for_collection: bool, mut may_change: impl FnMut(Read) -> bool) {
        for (name, value) in ADDED_HEADERS {
            let is_absent = first_value(&self.headers, |known| known.eq_ignore_ascii_case(name)).is_none();
            if is_absent && may_change(Read::header(name)) {
                self.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        for (name, value) in ADDED_SELECTORS {
            let is_absent = first_value(&self.query, |known| known == name).is_none();
            if is_for_collection && is_absent && may_change(Read::query(name)) {
                self.query.push((name.to_owned(), value.to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;

    fn request() -> TestRequest {
        TestRequest::get("apps", "deployments", "web")
            .header_field("X-Team", "a")
            .query_field("dryRun", "All")
            .query_field("limit", "5")
    }

    #[test]
    fn everything_is_changed_but_what_was_read() {
        let mut other = request();
        let read = [
            Read::Verb,
            Read::Name,
            Read::header("x-team"),
            Read::header("x-absent"),
            Read::query("limit"),
        ];
        let changed = other.change_unread(&|candidate| read.contains(candidate));
        assert_eq!(
            changed,
            [
                Read::Traffic,
                Read::Group,
                Read::Version,
                Read::Resource,
                Read::Subresource,
                Read::Namespace,
                Read::Method,
                Read::Path,
                Read::Host,
                Read::query("dryRun"),
                Read::Port,
                Read::header("content-length"),
                Read::IsLeaderLock,
                Read::IsRecheck,
                Read::header("user-agent"),
                Read::header("x-unread"),
            ]
        );
        for read in &changed {
            assert_ne!(read.value_in(&other), read.value_in(&request()), "{read}");
        }
        for read in &read {
            assert_eq!(read.value_in(&other), read.value_in(&request()), "{read}");
        }
    }

    #[test]
    fn absent_headers_and_selectors_are_added_unless_they_were_read() {
        let added = |request: &TestRequest, read: &[Read]| {
            let mut other = request.clone();
            let changed = other.change_unread(&|candidate| read.contains(candidate));
            let mut added = Vec::new();
            for candidate in [
                Read::header("user-agent"),
                Read::header("x-unread"),
                Read::query("labelSelector"),
                Read::query("fieldSelector"),
            ] {
                let values = (candidate.value_in(request), candidate.value_in(&other));
                let is_added = matches!(values, (None, Some(_)));
                assert_eq!(is_added, changed.contains(&candidate), "{candidate}");
                if is_added {
                    added.push(candidate.to_string());
                }
            }
            added
        };
        let headers = ["header user-agent", "header x-unread"];
        let list = TestRequest::list("", "pods");
        assert_eq!(
            added(&list, &[]),
            [
                "header user-agent",
                "header x-unread",
                "query parameter labelSelector",
                "query parameter fieldSelector"
            ]
        );
        // A plugin that saw that there was none may depend on it.
        let read = [Read::header("User-Agent"), Read::query("labelSelector")];
        assert_eq!(
            added(&list, &read),
            ["header x-unread", "query parameter fieldSelector"]
        );
        // Of these requests no API server reads a selector.
        assert_eq!(added(&TestRequest::get("", "pods", "p"), &[]), headers);
        assert_eq!(added(&TestRequest::external("GET", "example.com", "/"), &[]), headers);
    }

    #[test]
    fn header_and_selector_of_the_request_are_changed_and_not_added_again() {
        let request = TestRequest::list("", "pods")
            .header_field("User-Agent", "a")
            .query_field("labelSelector", "a=b");
        let mut other = request.clone();
        let changed = other.change_unread(&|_| false);
        for read in [Read::header("user-agent"), Read::query("labelSelector")] {
            assert_eq!(changed.iter().filter(|known| **known == read).count(), 1, "{read}");
            assert_ne!(read.value_in(&other), read.value_in(&request), "{read}");
        }
        assert_eq!((other.headers.len(), other.query.len()), (2, 2));
    }

    #[test]
    fn all_facts_differ_when_nothing_was_read() {
        for mut other in [
            request(),
            TestRequest::list("", "pods"),
            TestRequest::external("GET", "example.com", "/"),
            request().with_size(4),
        ] {
            let before = other.clone();
            let changed = other.change_unread(&|_| false);
            for read in &changed {
                assert_ne!(read.value_in(&other), read.value_in(&before), "{read}");
            }
            assert_eq!(other.note(), before.note());
        }
    }
}
