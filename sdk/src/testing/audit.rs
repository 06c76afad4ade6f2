//! Audits verdicts that a plugin marks as reusable, as a host does with some of them: the plugin is asked again, and must decide and do
//! the same.
//!
//! | file | holds |
//! |---|---|
//! | `host`, `request` | a host and a request that record what a call reads and does |

mod host;
mod request;

use std::cell::RefCell;

use host::RecordedHost;
use request::RecordedRequest;

use super::host::FakeHost;
use super::request::TestRequest;
use super::trace::{Read, Trace, cell_text};
use crate::{Host, Plugin, RequestVerdict, Reuse};

/// Maximum number of calls that later ones are compared with.
const MAX_EARLIER: usize = 128;

/// Reusable verdicts of a plugin, each with the reads on which it depends.
#[derive(Default)]
pub(super) struct Audits {
    earlier: Vec<Call>,
}

struct Call {
    verdict: RequestVerdict,
    trace: Trace,
}

impl Audits {
    /// Calls the plugin. A second call, if there is one, works on copies of the request and of the host.
    ///
    /// # Errors
    ///
    /// How the plugin contradicts a verdict that it marked as reusable.
    pub(super) fn call<P: Plugin>(
        &mut self,
        plugin: &mut P,
        request: &TestRequest,
        host: &FakeHost,
    ) -> Result<RequestVerdict, String> {
        // As they are before the call.
        let (request_before, host_before) = (request.clone(), host.copy());
        let call = Call::record(plugin, request, host);
        let earlier = self
            .earlier
            .iter()
            .find(|earlier| earlier.reads_the_same(&request_before, &host_before));
        if let Some(earlier) = earlier.filter(|_| !call.trace.met_obstacle) {
            earlier.compare(
                &call,
                "an earlier call that read the same values decided or did something else",
            )?;
        }
        if !call.trace.is_repeatable(&call.verdict, host_before.unix_ms()) {
            return Ok(call.verdict);
        }
        let is_known = earlier.is_some();
        let changed = call.change_unread(request_before, host_before);
        let second = Call::record(plugin, &changed.request, &changed.host);
        call.compare(
            &second,
            &format!(
                "a second call, before which other things were changed, decided or did something else\n  changed: {}",
                changed.what.join(", ")
            ),
        )?;
        let verdict = call.verdict.clone();
        if verdict.reuse == Reuse::WhileUnchanged && !is_known && self.earlier.len() < MAX_EARLIER {
            self.earlier.push(call);
        }
        Ok(verdict)
    }
}

/// A request and a host that look the same to the plugin, and what is different about them.
struct Changed {
    request: TestRequest,
    host: FakeHost,
    what: Vec<String>,
}

impl Call {
    fn record<P: Plugin>(plugin: &mut P, request: &TestRequest, host: &FakeHost) -> Self {
        let trace = RefCell::default();
        let verdict = plugin.on_request(&RecordedRequest::new(request, &trace), &RecordedHost::new(host, &trace));
        let trace = trace.into_inner();
        Self { verdict, trace }
    }

    /// Whether each read of the call gives the same value now.
    fn reads_the_same(&self, request: &TestRequest, host: &FakeHost) -> bool {
        self.trace.reads.iter().all(|(read, value)| match read {
            Read::Cell(key) => host.get(key).is_ok_and(|cell| cell.as_ref().map(cell_text) == *value),
            read => read.value_in(request) == *value,
        })
    }

    fn has_read(&self, candidate: &Read) -> bool {
        self.trace.reads.iter().any(|(read, _)| read == candidate)
    }

    /// Changes everything that the call did not read, and moves the clock to the last moment at which its verdict holds.
    fn change_unread(&self, mut request: TestRequest, host: FakeHost) -> Changed {
        let changed = request.change_unread(&|read| self.has_read(read));
        let cells = host.change_unread_cells(&|key| self.has_read(&Read::Cell(key.to_owned())));
        let changed = changed.into_iter().chain(cells.into_iter().map(Read::Cell));
        let mut what: Vec<String> = changed.map(|read| read.to_string()).collect();
        if let Reuse::UntilUnixMs(until) = self.verdict.reuse {
            host.advance_ms(until.saturating_sub(1).saturating_sub(host.unix_ms()));
            what.push("the time".to_owned());
        }
        Changed { request, host, what }
    }

    /// Compares a call with this one, whose verdict is reusable. The other call must not do anything that a host leaves out when it repeats
    /// a verdict, such as writing, and must not withdraw the mark. Only if the verdict holds until a moment, the mark may end before it,
    /// and the plugin may ask something else.
    fn compare(&self, other: &Self, what: &str) -> Result<(), String> {
        let (one, two) = (&self.verdict, &other.verdict);
        let same_verdict = (one.delay_ms, one.later) == (two.delay_ms, two.later)
            && one.action == two.action
            && one.outcomes == two.outcomes;
        let (own, others) = (&self.trace.effects, &other.trace.effects);
        let is_timed = matches!(one.reuse, Reuse::UntilUnixMs(_));
        let (reads, other_reads) = (self.trace.read_names(), other.trace.read_names());
        let same_reads = is_timed || reads == other_reads;
        let used_once = other.trace.used_once();
        let is_unmarked = !is_timed && two.reuse == Reuse::Never;
        if same_verdict && own == others && same_reads && used_once.is_none() && !is_unmarked {
            return Ok(());
        }
        let mut text = format!(
            "the plugin marked a verdict as reusable, but {what}\n  read: {}\n  first verdict: {one:?}\n  second verdict: {two:?}",
            reads.join(", ")
        );
        if own != others {
            text.push_str(&format!("\n  first effects: {own:?}\n  second effects: {others:?}"));
        }
        if let Some(function) = used_once {
            text.push_str(&format!(
                "\n  the second call used {function}, which a host does not do again with a verdict"
            ));
        }
        if is_unmarked {
            text.push_str("\n  the second verdict is not marked as reusable");
        }
        if !same_reads {
            text.push_str(&format!("\n  read by the second call: {}", other_reads.join(", ")));
        }
        Err(text)
    }
}

#[cfg(test)]
mod tests;
