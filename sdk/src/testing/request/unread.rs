//! Changes what a plugin has not read of a request.

use super::TestRequest;
use crate::testing::audit::Read;
use crate::{Traffic, Verb};

impl TestRequest {
    /// Gives everything that was not read another value, and returns what was changed. What was read as absent stays so.
    pub(in crate::testing) fn change_unread(&mut self, is_read: &dyn Fn(&Read) -> bool) -> Vec<Read> {
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
        changed
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
    fn all_facts_differ_when_nothing_was_read() {
        for mut other in [
            request(),
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
