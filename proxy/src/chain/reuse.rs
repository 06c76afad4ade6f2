//! Repeats verdicts on requests: a plugin decides once for a kind of request, and the decision is repeated without a call while everything
//! that it depended on is unchanged.
//!
//! Each instance has its own memory ([`RememberedCalls`]). A verdict is remembered if the plugin marks it as reusable and the call did
//! nothing that must not be repeated (`wasm/reads.rs`). A repetition takes the same tokens and places, adds to the same metrics and to the
//! same counters of the state, and leaves the same note. One in N repetitions is audited: the plugin is asked after all, the request gets
//! that verdict alone, and a call that decides or does something else than the remembered one is a fault of the plugin. See
//! docs/adr/0050-reusable-verdicts.md.

mod table;

use std::borrow::Cow;
use std::cell::{Cell, LazyCell, OnceCell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::rand;
use ctrlmesh_wire::ParsedQuery;
use tokio::time::Instant;

use crate::plugin::request_view::RequestView;
use crate::plugin::verdict::{Answer, Cause, OutcomeRule, Refusal, RequestAction, RequestEdit, RequestVerdict, Reuse};
use crate::wasm::{Ask, CounterHandle, Effects, EntryState, Seen, SeriesSet, Step, Trace, visible_header};

use table::{Known, Table};

/// After this many calls in a row without a reusable verdict …
const UNMARKED_CALLS: u32 = 64;
/// … only one in this many calls is recorded, because recording costs a little.
const RECORDED_UNMARKED: u32 = 64;
/// After this many verdicts were remembered, fewer than one in a hundred of which was repeated or audited, remembering pauses …
const INSERTS_BEFORE_PAUSE: u32 = 4096;
/// … for this time. Such a plugin reads what differs for each request, a name for example.
const PAUSE: Duration = Duration::from_secs(10);
/// Estimated bytes of a remembered verdict besides its texts.
const VERDICT_BYTES: usize = 256;

/// How a plugin contradicts a verdict by its reads.
const OTHER_READS: &str = "it asked the host for something else although it had read the same values";

/// Whether verdicts are repeated, and how often repetitions are audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReuseSettings {
    pub is_on: bool,
    /// One in this many repetitions is audited.
    pub audited_one_in: NonZeroU64,
}

/// Whether verdicts of an entry may be repeated. Shared by all threads, and kept by later chains with the same entry.
#[derive(Debug, Default)]
pub struct ReuseState {
    first_contradiction: OnceLock<String>,
}

impl ReuseState {
    /// Whether the plugin has contradicted one of its reusable verdicts.
    pub(crate) fn is_impure(&self) -> bool {
        self.first_contradiction.get().is_some()
    }

    /// Notes that the plugin has contradicted a reusable verdict. Returns whether it is the first time.
    pub(super) fn set_impure(&self, contradiction: &str) -> bool {
        self.first_contradiction.set(contradiction.to_owned()).is_ok()
    }

    /// How the plugin contradicted its reusable verdict first.
    pub(super) fn first_contradiction(&self) -> Option<&str> {
        self.first_contradiction.get().map(String::as_str)
    }
}

/// Random numbers that decide which repetitions are audited. Periodic traffic must not meet a periodic choice, and nothing else depends on
/// them, so they are fast instead of unpredictable (xorshift64*).
#[derive(Debug)]
pub(super) struct AuditDraw {
    state: Cell<u64>,
    one_in: NonZeroU64,
}

impl AuditDraw {
    pub(super) fn new(one_in: NonZeroU64) -> Self {
        let mut seed = [0; 8];
        // Any other number than 0 is a good seed.
        let _ = rand::fill(&mut seed);
        Self {
            state: Cell::new(u64::from_ne_bytes(seed) | 1),
            one_in,
        }
    }

    fn next(&self) -> bool {
        let mut state = self.state.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.state.set(state);
        let drawn = state.wrapping_mul(0x2545_F491_4F6C_DD1D);
        // True for one in `one_in` numbers, and needs no division.
        u128::from(drawn) * u128::from(self.one_in.get()) < 1 << 64
    }
}

/// The calls of one instance that are remembered.
#[derive(Debug, Default)]
pub(super) struct RememberedCalls {
    table: Table<Rc<RememberedCall>>,
    /// Calls since the last one with a reusable verdict.
    unmarked: u32,
    /// Verdicts remembered, and repeated or audited, since the last check.
    inserts: u32,
    repeats: u32,
    paused_until: Option<Instant>,
}

/// A verdict with what belongs to it.
#[derive(Debug)]
pub(super) struct RememberedCall {
    /// Shared with the requests that get it, so that a repetition copies nothing.
    verdict: Rc<RequestVerdict>,
    effects: Effects,
    /// The counters of `effects.counts`, in their order; each is empty until a repetition has found it.
    counters: Box<[OnceCell<CounterHandle>]>,
    /// Milliseconds since 1970 at the call, and until when the verdict holds.
    holds: Option<(u64, u64)>,
    /// Whether an audit has ended the repetitions before that time.
    is_withdrawn: Cell<bool>,
}

/// Result of a look-up.
#[derive(Debug)]
pub(super) enum LookUp {
    /// This verdict was repeated, with all effects that belong to it.
    Repeated(Rc<RequestVerdict>),
    /// The plugin is to be called, and its verdict compared with this one.
    Audit(Rc<RememberedCall>),
    /// The plugin is to be called.
    Unknown,
}

/// The plugin decided or did something else although nothing that it read has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impure {
    pub(super) contradiction: String,
}

impl RememberedCalls {
    /// Forgets all verdicts.
    pub(super) fn clear(&mut self) {
        self.table.clear();
    }

    /// Looks for a verdict to repeat, and repeats what belongs to it. Cells are compared on the way to the verdict, and stay locked until
    /// its tokens and places are taken and its counters of the state incremented.
    /// `now` is the current time, if the caller has just read it.
    pub(super) fn look_up(
        &mut self,
        request: &RequestView,
        state: &Arc<EntryState>,
        draw: &AuditDraw,
        now: Option<Instant>,
    ) -> LookUp {
        let repetition = RefCell::new(state.repetition(now));
        // The state may be locked while parameters are read, so a long query is parsed once for all of them.
        let query = LazyCell::new(|| ParsedQuery::new(request.uri.query().unwrap_or_default()));
        let headers = request.headers.borrow();
        let answer = |step: Step<&str>| match step {
            Step::Cell(key) => {
                let write = repetition.borrow_mut().write_of(key);
                write.map_or(Seen::Absent, Seen::Number)
            }
            step => step.evaluate_with(
                request,
                false,
                |name| visible_header(&headers, name).map(Cow::Borrowed),
                |name| query.get(name).map(Cow::Borrowed),
            ),
        };
        let Some(known) = self.table.find(answer, || repetition.borrow_mut().changes()) else {
            return LookUp::Unknown;
        };
        if !known.holds_at(|| unix_ms(state)) {
            return LookUp::Unknown;
        }
        if draw.next() {
            // It could have been repeated, and its audit remembers a verdict again.
            self.repeats = self.repeats.saturating_add(1);
            return LookUp::Audit(Rc::clone(known));
        }
        let Effects {
            asks,
            places,
            increments,
            ..
        } = &known.effects;
        let Some(held) = repetition.into_inner().take(asks, places, increments) else {
            return LookUp::Unknown;
        };
        if !held.is_empty() {
            request.state.hold(held);
        }
        known.repeat_other_effects(request, state);
        let verdict = Rc::clone(&known.verdict);
        self.repeats = self.repeats.saturating_add(1);
        LookUp::Repeated(verdict)
    }

    pub(super) fn records_next_call(&mut self) -> bool {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.paused_until = None;
        let is_recorded = self.unmarked < UNMARKED_CALLS || self.unmarked.is_multiple_of(RECORDED_UNMARKED);
        if !is_recorded {
            self.count_unmarked();
        }
        is_recorded
    }

    fn count_unmarked(&mut self) {
        self.unmarked = self.unmarked.checked_add(1).unwrap_or(UNMARKED_CALLS);
    }

    /// Compares a call with the one that it audits, and remembers it if its verdict is reusable. `called_ms`: when the call began, in
    /// milliseconds since 1970.
    ///
    /// A call that met a change is not compared: a cell that was written meanwhile, or tokens or places that it did not get at once. So what
    /// a plugin writes for such a reason is no contradiction.
    ///
    /// # Errors
    /// The call contradicts what is remembered. Nothing is remembered then.
    pub(super) fn learn(
        &mut self,
        trace: Trace,
        verdict: &Rc<RequestVerdict>,
        audited: Option<&RememberedCall>,
        called_ms: u64,
        state: &EntryState,
    ) -> Result<(), Impure> {
        let until = match verdict.reuse {
            Reuse::UntilUnixMs(until) => Some(until),
            Reuse::WhileUnchanged | Reuse::Never => None,
        };
        let obstacle = trace.reason_to_forget(until.is_some());
        let (is_comparable, withdrawal) = (trace.is_comparable(), withdrawal_of(&trace, verdict.reuse));
        let (reads, effects) = trace.into_parts();
        // The time of the remembered verdict may have passed before the plugin read the clock.
        if let Some(audited) = audited.filter(|audited| audited.holds_at(|| unix_ms(state))) {
            match self.table.look_up(&reads) {
                Known::Leaf(known) if is_comparable && std::ptr::eq(Rc::as_ptr(known), audited) => {
                    audited.compare(verdict, &effects)?;
                    if let Some(contradiction) = withdrawal {
                        audited.withdraw(contradiction)?;
                    }
                }
                Known::Contradiction if is_comparable => audited.withdraw(OTHER_READS)?,
                Known::Leaf(_) | Known::Contradiction | Known::Unknown => {}
            }
        }
        if verdict.reuse == Reuse::Never || obstacle.is_some() {
            self.count_unmarked();
            return Ok(());
        }
        self.unmarked = 0;
        let holds = until.map(|until| (called_ms, until));
        let call = RememberedCall::new(Rc::clone(verdict), effects, holds);
        let bytes = call.bytes();
        let is_timed = |call: &Rc<RememberedCall>| call.holds.is_some();
        self.table
            .insert(reads, Rc::new(call), bytes, is_timed)
            .map_err(|table::Contradiction| Impure::new(OTHER_READS))?;
        self.pause_if_useless();
        Ok(())
    }

    fn pause_if_useless(&mut self) {
        self.inserts += 1;
        if self.inserts < INSERTS_BEFORE_PAUSE {
            return;
        }
        if self.repeats < self.inserts / 100 {
            self.paused_until = Some(Instant::now() + PAUSE);
            self.table.clear();
        }
        (self.inserts, self.repeats) = (0, 0);
    }
}

impl RememberedCall {
    fn new(verdict: Rc<RequestVerdict>, effects: Effects, holds: Option<(u64, u64)>) -> Self {
        Self {
            verdict,
            counters: effects.counts.iter().map(|_| OnceCell::new()).collect(),
            effects,
            holds,
            is_withdrawn: Cell::new(false),
        }
    }

    fn holds_at(&self, now_ms: impl FnOnce() -> u64) -> bool {
        // A clock that was set back says nothing about a verdict from before.
        let is_its_time = self.holds.is_none_or(|(called_ms, until)| {
            let now_ms = now_ms();
            called_ms <= now_ms && now_ms < until
        });
        is_its_time && !self.is_withdrawn.get()
    }

    /// Ends the repetitions of this call, because a later call that read the same differs from it; `contradiction` says how.
    ///
    /// # Errors
    /// The verdict has no time, so the plugin contradicts it. Otherwise time may be the reason: the plugin may go by another clock.
    fn withdraw(&self, contradiction: &str) -> Result<(), Impure> {
        if self.holds.is_none() {
            return Err(Impure::new(contradiction));
        }
        self.is_withdrawn.set(true);
        Ok(())
    }

    /// Repeats the call's effects other than those on keys of the state.
    fn repeat_other_effects(&self, request: &RequestView, state: &Arc<EntryState>) {
        let Effects { note, rules, .. } = &self.effects;
        self.repeat_counts(state.series());
        if let Some(note) = note {
            request.state.set_note(Arc::as_ptr(state).addr(), *note);
        }
        for rule in rules {
            request.state.name_rule(&rule.name, rule.decides);
        }
    }

    /// Adds to the metrics that the call added to.
    fn repeat_counts(&self, series: &SeriesSet) {
        for ((name, label, by), counter) in self.effects.counts.iter().zip(self.counters.iter()) {
            if counter.get().is_none()
                && let Some(found) = series.counter(name, label)
            {
                let _ = counter.set(found);
            }
            match counter.get() {
                Some(counter) => counter.add(*by),
                // The update is dropped and counted, as it was in the call.
                None => series.count(name, label, *by),
            }
        }
    }

    fn compare(&self, verdict: &RequestVerdict, effects: &Effects) -> Result<(), Impure> {
        let known = &self.verdict;
        if known.delay != verdict.delay || known.action != verdict.action || known.later != verdict.later {
            return Err(Impure {
                contradiction: format!(
                    "it decided {} before and {} now",
                    action_name(&self.verdict.action),
                    action_name(&verdict.action)
                ),
            });
        }
        if known.outcomes != verdict.outcomes {
            return Err(Impure::new("it returned other outcome rules"));
        }
        if self.effects != *effects {
            return Err(Impure::new("it took, counted, noted or named something else"));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let action = match &self.verdict.action {
            RequestAction::Proceed(edits) => edits.iter().map(edit_bytes).sum(),
            RequestAction::Refuse(refusal) => refusal_bytes(refusal),
            RequestAction::Answer(answer) => answer_bytes(answer),
            RequestAction::Reset(_) | RequestAction::RefuseConnections(_) => 0,
        };
        let Effects {
            asks,
            places,
            counts,
            increments,
            rules,
            ..
        } = &self.effects;
        let texts: usize = (asks.iter().map(|ask| ask.claim.key.len()))
            .chain(places.iter().map(|place| place.key.len()))
            .chain(counts.iter().map(|(name, label, _)| name.len() + label.len()))
            .chain(increments.iter().map(|each| each.key.len()))
            .chain(rules.iter().map(|rule| rule.name.len()))
            .map(|bytes| bytes + size_of::<Ask>())
            .sum();
        let outcomes = self.verdict.outcomes.iter().flat_map(|rules| rules.iter());
        VERDICT_BYTES + action + texts + outcomes.map(outcome_rule_bytes).sum::<usize>()
    }
}

impl Impure {
    fn new(contradiction: &str) -> Self {
        Self {
            contradiction: contradiction.to_owned(),
        }
    }
}

/// The reason why a call that read the same as a remembered one must not be repeated; `None` if it may be.
fn withdrawal_of(trace: &Trace, reuse: Reuse) -> Option<&'static str> {
    if trace.wrote_or_drew() {
        Some("it wrote, logged or drew a random number, which it had not done before")
    } else if reuse == Reuse::Never {
        Some("it does not let its verdict be repeated any more")
    } else {
        None
    }
}

/// The kind of an action, for a message: texts of an action may hold what clients sent.
const fn action_name(action: &RequestAction) -> &'static str {
    match action {
        RequestAction::Proceed(edits) if edits.is_empty() => "to let the request pass",
        RequestAction::Proceed(_) => "on edits",
        RequestAction::Refuse(_) => "on a refusal",
        RequestAction::Reset(_) => "on a reset",
        RequestAction::Answer(_) => "on an answer of its own",
        RequestAction::RefuseConnections(_) => "to refuse connections",
    }
}

fn refusal_bytes(refusal: &Refusal) -> usize {
    let Refusal {
        reason,
        message,
        cause,
        details,
        ..
    } = refusal;
    let details = details.as_ref().map_or(0, |details| {
        let causes = details.causes.iter();
        let causes =
            causes.map(|cause| size_of::<Cause>() + cause.reason.len() + cause.message.len() + cause.field.len());
        details.name.len() + details.group.len() + details.kind.len() + causes.sum::<usize>()
    });
    reason.len() + message.len() + cause.as_ref().map_or(0, String::len) + details
}

fn answer_bytes(answer: &Answer) -> usize {
    let headers = answer.headers.iter();
    let headers = headers.map(|header| size_of_val(header) + header.0.as_str().len() + header.1.len());
    answer.body.len() + headers.sum::<usize>()
}

fn outcome_rule_bytes(rule: &OutcomeRule) -> usize {
    let cells = rule.cells.iter().map(|cell| size_of_val(cell) + cell.key.len());
    size_of_val(rule) + rule.tally.len() + size_of_val(rule.counting.failing_statuses.as_slice()) + cells.sum::<usize>()
}

fn edit_bytes(edit: &RequestEdit) -> usize {
    let texts = match edit {
        RequestEdit::AndLabelSelector(selector) => selector.bytes(),
        RequestEdit::AndFieldSelector(text) | RequestEdit::RemoveQuery(text) => text.len(),
        RequestEdit::SetQuery(name, value) | RequestEdit::RenameObject { from: name, to: value } => {
            name.len() + value.len()
        }
        RequestEdit::SetHeader(name, value) => name.as_str().len() + value.len(),
        RequestEdit::RemoveHeader(name) => name.as_str().len(),
        RequestEdit::KeepObjects(predicate) | RequestEdit::RequireObjectMatch(predicate, _) => predicate.bytes(),
        RequestEdit::DropFields(dropped) => dropped.bytes(),
        RequestEdit::AskAboutObjects(question) => question.bytes(),
    };
    texts + size_of::<RequestEdit>()
}

pub(super) fn unix_ms(state: &EntryState) -> u64 {
    u64::try_from(state.clock().since_epoch().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
