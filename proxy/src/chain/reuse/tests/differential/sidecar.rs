//! The chain of one sidecar with two workers, and what can be seen of it.

use std::collections::BTreeMap;

use super::*;
use crate::chain::phases::Stop;
use crate::chain::{EntryId, QuarantineState};
use crate::connection::Connection;

pub(super) struct Sidecar {
    snapshot: Arc<Snapshot>,
    pub(super) states: StateStore,
    clock: Clock,
    pub(super) workers: [Rc<Instances>; 2],
    in_flight: Vec<Plugins>,
    /// Whether a plugin of an earlier chain is impure.
    was_impure: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Request {
        worker: usize,
        request: RequestSpec,
    },
    /// The response head of the request at this place among those in flight arrives.
    Head {
        place: usize,
        status: u16,
    },
    /// Ends the request at this place among those in flight.
    End {
        place: usize,
        outcome: Outcome,
    },
    /// Asks whether the request at this place among those in flight would still be let through, as for an open watch.
    Recheck {
        place: usize,
    },
    /// Advances the clock of plugins and their state.
    Advance(u64),
    /// Advances the clock of quarantines. In a runtime that is paused only.
    AdvanceQuarantines(u64),
    /// Writes a cell of all entries, as another plugin instance does.
    Write(&'static str),
    Remove(&'static str),
    /// Prepares the chain again, as a reload does.
    Reload,
    /// Brings another chain into force. Its entries have the state of earlier ones with their names; requests in flight keep their chain.
    NewChain(Vec<EntrySpec>),
}

impl Sidecar {
    pub(super) fn new(entries: &[EntrySpec], reuse: ReuseSettings) -> Self {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1_000_000));
        let states = StateStore::with_clock(clock.clone());
        let snapshot = snapshot_of(entries, &states);
        let worker = || {
            let handle = test_handle(Metrics::default());
            Rc::new(Instances::new(Arc::clone(test_engine()), handle, reuse))
        };
        let sidecar = Self {
            snapshot,
            states,
            clock,
            workers: [worker(), worker()],
            in_flight: Vec::new(),
            was_impure: false,
        };
        sidecar.reload();
        sidecar
    }

    fn reload(&self) {
        for worker in &self.workers {
            worker.prepare(&self.snapshot).unwrap();
        }
    }

    /// Carries an operation out, and returns what can be seen of it.
    pub(super) async fn apply(&mut self, operation: &Operation) -> String {
        match operation {
            Operation::Request { worker, request } => return self.decide(*worker, request).await,
            Operation::Head { place, status } => return self.respond(*place, *status).await,
            Operation::End { place, outcome } => return self.end(*place, outcome),
            Operation::Recheck { place } => return self.recheck(*place),
            Operation::Advance(ms) => self.clock.advance(Duration::from_millis(*ms)),
            Operation::AdvanceQuarantines(ms) => tokio::time::advance(Duration::from_millis(*ms)).await,
            Operation::Write(key) => {
                for (_, state) in self.states.entries() {
                    let version = state.get(key).ok().flatten().map_or(0, |cell| cell.version);
                    let _ = state.compare_and_swap(key, version, vec![1]);
                }
            }
            Operation::Remove(key) => {
                for (_, state) in self.states.entries() {
                    state.remove(key);
                }
            }
            Operation::Reload => self.reload(),
            Operation::NewChain(entries) => {
                self.was_impure = self.repeated().1;
                self.snapshot = snapshot_of(entries, &self.states);
                self.reload();
            }
        }
        String::new()
    }

    async fn decide(&mut self, worker: usize, request: &RequestSpec) -> String {
        let plugins = self.plugins(worker, Rc::new(request.view()));
        let begun = Instant::now();
        let decision = match plugins.on_request().await {
            RequestDecision::Proceed(edits) => self.edits_text(&edits),
            RequestDecision::Stop(stop) => stop_text(&stop),
        };
        let seen = format!("{decision} after {:?}: {}", begun.elapsed(), plugins.describe());
        self.in_flight.push(plugins);
        seen
    }

    async fn respond(&self, place: usize, status: u16) -> String {
        let Some(plugins) = self.in_flight_at(place) else {
            return String::new();
        };
        let response = http::Response::builder().status(status).body(()).unwrap();
        let ((mut head, ()), connection) = (response.into_parts(), Connection::default());
        let edited = match plugins.edit_response(&mut head, &connection).await {
            Ok(shapes) => format!("{shapes:?}"),
            Err(stop) => stop_text(&stop),
        };
        format!("{edited} {:?} {}", head.headers, plugins.describe())
    }

    fn end(&mut self, place: usize, outcome: &Outcome) -> String {
        if self.in_flight.is_empty() {
            return String::new();
        }
        let plugins = self.in_flight.remove(place % self.in_flight.len());
        plugins.on_complete(outcome, Instant::now());
        plugins.describe()
    }

    fn recheck(&self, place: usize) -> String {
        let Some(open) = self.in_flight_at(place) else {
            return String::new();
        };
        match self.plugins(0, Rc::clone(&open.view)).recheck() {
            Some(edits) => self.edits_text(&edits),
            None => "it would not be let through".into(),
        }
    }

    /// The plugins of the chain in force for this request.
    fn plugins(&self, worker: usize, view: Rc<RequestView>) -> Plugins {
        let matched = self
            .snapshot
            .matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        Plugins::new(
            Arc::clone(&self.snapshot),
            matched,
            view,
            Rc::clone(&self.workers[worker]),
        )
    }

    fn in_flight_at(&self, place: usize) -> Option<&Plugins> {
        self.in_flight.get(place.checked_rem(self.in_flight.len())?)
    }

    fn edits_text(&self, edits: &[(EntryId, RequestEdit)]) -> String {
        let name = |id| {
            let entry = self.snapshot.entries().iter().find(|entry| entry.id == id);
            entry.map(|entry| entry.name.as_str()).unwrap_or_default()
        };
        let edits = edits.iter().map(|(entry, edit)| format!("{} {edit:?}", name(*entry)));
        edits.collect::<Vec<_>>().join(", ")
    }

    /// State, counters, gauges, reports and log lines of all entries, and the quarantines of the chain.
    pub(super) fn state(&self) -> BTreeMap<String, String> {
        let entries = self.states.entries().into_iter().map(|(name, state)| {
            let (series, dropped) = state.series().snapshot();
            let reports = state.rendered_reports();
            let log = (state.log().recent_lines(), state.log().suppressed());
            let keys = state.dump();
            (name, format!("{keys:#?} {series:#?} {dropped} {reports:?} {log:?}"))
        });
        let now = Instant::now();
        let quarantines = self.snapshot.entries().iter().map(|entry| {
            let state = match entry.quarantine.state(now) {
                QuarantineState::Quarantined { until } => format!("quarantined for {:?}", until - now),
                other => format!("{other:?}"),
            };
            let text = format!("{state} after {} faults", entry.quarantine.faults());
            (format!("quarantine of {}", entry.name), text)
        });
        entries.chain(quarantines).collect()
    }

    /// Number of verdicts that were repeated, and whether any plugin is impure.
    pub(super) fn repeated(&self) -> (u64, bool) {
        let counts = self.workers.iter().map(|worker| worker.repeated_verdicts()).sum();
        let is_impure = self.snapshot.entries().iter().any(|entry| entry.reuse.is_impure());
        (counts, is_impure || self.was_impure)
    }
}

fn stop_text(stop: &Stop) -> String {
    match stop {
        Stop::Reply(reply) => format!("{reply:?}"),
        Stop::Answer(answer) => format!("{answer:?}"),
        Stop::Reset(reset) => format!("{reset:?}"),
        Stop::RefuseConnections(length) => format!("refused for {length:?}"),
    }
}
