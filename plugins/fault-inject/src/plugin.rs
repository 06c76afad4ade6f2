//! The plugin: builds the rules once, then asks those that match a request in order.
//!
//! Delays of several rules add up. The first rule that answers or resets decides; so does the first of those that act on the response.

use std::cell::{Cell, OnceCell};

use ctrlmesh_plugin_rules::match_rules;
use ctrlmesh_sdk::{
    Host, InstanceInfo, Part, Phases, Plugin, Request, RequestAction, RequestVerdict, ResponseHead, ResponseVerdict,
    Subscription,
};

use crate::catalogue::Context;
use crate::counters::{RuleCounters, sync_reports};
use crate::draw::Subject;
use crate::effective_time::ActiveTime;
use crate::fault::{Act, OnRequest};
use crate::note::Note;
use crate::rule::{Chosen, Rule};
use crate::settings::Settings;
use crate::validate::ActiveRules;

/// The host's default bound on waits (`wit/types.wit`).
const USUAL_LONGEST_WAIT_MS: u32 = 60_000;

pub(crate) struct FaultInject {
    active: ActiveRules,
}

impl Plugin for FaultInject {
    type Settings = Settings;

    fn configure(settings: Settings, about: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let context = Context {
            user: format!("system:serviceaccount:{}:default", about.pod_namespace),
        };
        let active = ActiveRules::new(&settings, &context)?;
        warn_about_rules(&active.rules, host);
        sync_reports(&active.rules, host);
        let acts_later = active.rules.iter().flat_map(Rule::all_acts).any(|act| act.is_later());
        let phases = if acts_later {
            Phases::ON_REQUEST | Phases::ON_RESPONSE
        } else {
            Phases::ON_REQUEST
        };
        let rules = match_rules(active.rules.iter().map(|rule| &rule.matches));
        let subscription = if rules.is_empty() {
            Subscription::none()
        } else {
            Subscription::new(phases, rules)
        };
        Ok((Self { active }, subscription))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        // Faults apply to requests. If a reload ended a watch, that would be a fault that is not counted.
        if req.is_recheck() {
            return RequestVerdict::proceed();
        }
        let clock = RuleClock::new(host);
        let mut decision = Decision::default();
        let mut is_repeatable = true;
        for (rule, index) in self.active.rules.iter().zip(0_u8..) {
            let has_room = |act: &Act| decision.has_room(act);
            if !rule.matches_request(req, has_room) || !rule.active_time.is_none_or(|time| clock.is_within(&time)) {
                continue;
            }
            let counters = RuleCounters::new(rule, host);
            if counters.has_noted_end() {
                continue;
            }
            let chosen = choose_acts(rule, &counters, req, self.active.seed);
            decision.add_chosen(&chosen, rule, index, &counters, req);
            counters.count_in_metrics();
            is_repeatable &= counters.is_repeatable();
        }
        let mut later = Phases::empty();
        if let Some(note) = decision.note {
            req.set_note(note.encode());
            later = Phases::ON_RESPONSE;
        }
        let action = decision.stop.unwrap_or(RequestAction::Proceed(Vec::new()));
        let verdict = RequestVerdict::from(action).after_ms(decision.delay_ms).later(later);
        if is_repeatable {
            clock.reusable(verdict)
        } else {
            verdict
        }
    }

    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        self.decide_response(req, res, host)
            .unwrap_or_else(ResponseVerdict::proceed)
    }
}

impl FaultInject {
    /// The decision made with the request, if it applies to the response.
    fn decide_response(&self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> Option<ResponseVerdict> {
        let note = Note::decode(req.note())?;
        let rule = self.active.rules.get(usize::from(note.rule))?;
        // The rules may have changed since the request.
        let act = rule.act_at(note.act).filter(|_| rule.mark == note.mark)?;
        let verdict = act.on_response(req, res, note.drawn_ms)?;
        let counters = RuleCounters::new(rule, host);
        if !counters.fire_on_response() {
            return None;
        }
        counters.count_in_metrics();
        counters.record_decision(Part::Delay);
        counters.record_decision(Part::Action);
        Some(verdict)
    }
}

/// The acts that a rule chooses for a request, after it has counted the request and checked its selection and times. A rule that is
/// exhausted counts nothing, because it cannot hit later requests.
fn choose_acts<'a>(rule: &'a Rule, counters: &RuleCounters<'_>, req: &dyn Request, seed: u64) -> Vec<Chosen<'a>> {
    if counters.is_exhausted() {
        return Vec::new();
    }
    let elapsed_ms = if rule.is_timed() { counters.elapsed_ms() } else { 0 };
    if counters.is_over(elapsed_ms) || !rule.select.selects_request(counters.count_match()) {
        return Vec::new();
    }
    rule.choose_acts(req, elapsed_ms, || counters.draw_for(seed, &Subject::from_request(req)))
}

/// The wall clock, read once, if a rule has an active time.
struct RuleClock<'a> {
    host: &'a dyn Host,
    unix_ms: OnceCell<u64>,
    /// When one of the active times may begin or end.
    may_change_at: Cell<Option<u64>>,
}

impl<'a> RuleClock<'a> {
    fn new(host: &'a dyn Host) -> Self {
        Self {
            host,
            unix_ms: OnceCell::new(),
            may_change_at: Cell::new(None),
        }
    }

    fn is_within(&self, time: &ActiveTime) -> bool {
        let now = *self.unix_ms.get_or_init(|| self.host.unix_ms());
        let change = time.may_change_at(now);
        let earlier = self.may_change_at.get().map_or(change, |known| known.min(change));
        self.may_change_at.set(Some(earlier));
        time.includes(now)
    }

    /// The verdict, reusable until one of the active times that were asked may begin or end.
    fn reusable(&self, verdict: RequestVerdict) -> RequestVerdict {
        match self.may_change_at.get() {
            Some(moment) => verdict.reusable_until(moment),
            None => verdict.reusable(),
        }
    }
}

#[derive(Default)]
struct Decision {
    delay_ms: u32,
    stop: Option<RequestAction>,
    note: Option<Note>,
}

impl Decision {
    /// Adds the acts of one rule, as far as they are still possible and within its limits.
    fn add_chosen(
        &mut self,
        chosen: &[Chosen<'_>],
        rule: &Rule,
        index: u8,
        counters: &RuleCounters<'_>,
        req: &dyn Request,
    ) {
        let mut is_paid = false;
        for chosen in chosen {
            if !self.has_room(chosen.act) {
                continue;
            }
            let is_later = chosen.act.is_later();
            let may = is_paid
                || if is_later {
                    counters.take_place()
                } else {
                    counters.fire_on_request()
                };
            if !may {
                return;
            }
            is_paid = true;
            match chosen.act.on_request(req, chosen.unit) {
                OnRequest::Delay(ms) => self.add_delay(ms, counters),
                OnRequest::Stop(ms, action) => {
                    self.add_delay(ms, counters);
                    counters.record_decision(Part::Action);
                    self.stop = Some(match action {
                        RequestAction::RefuseConnections(ms) => {
                            RequestAction::RefuseConnections(ms.min(chosen.left_ms))
                        }
                        action => action,
                    });
                }
                OnRequest::Later(drawn_ms) => {
                    self.note = Some(Note {
                        rule: index,
                        mark: rule.mark,
                        act: chosen.number,
                        drawn_ms,
                    });
                }
            }
        }
    }

    fn add_delay(&mut self, ms: u32, counters: &RuleCounters<'_>) {
        if ms > 0 {
            self.delay_ms = self.delay_ms.saturating_add(ms);
            counters.record_decision(Part::Delay);
        }
    }

    /// Whether no other rule has decided the part that this act would.
    fn has_room(&self, act: &Act) -> bool {
        let is_delay = matches!(act, Act::Delay(_));
        is_delay || self.stop.is_none() && !(act.is_later() && self.note.is_some())
    }
}

/// Warns about settings that are valid but have less effect than they seem to.
fn warn_about_rules(rules: &[Rule], host: &dyn Host) {
    if rules.is_empty() {
        host.warn("no rule is in force: nothing happens");
    }
    for rule in rules {
        if let Some(reason) = rule.never_fires_reason() {
            host.warn(&format!("{}: never fires: {reason}", rule.path));
        }
        let longest = rule
            .all_acts()
            .iter()
            .map(|act| act.longest_wait())
            .max()
            .unwrap_or_default();
        if longest > USUAL_LONGEST_WAIT_MS {
            let name = &rule.name;
            host.warn(&format!(
                "rule {name} waits up to {longest}ms; the sidecar cuts waits at 60000ms unless it is set up otherwise"
            ));
        }
    }
}
