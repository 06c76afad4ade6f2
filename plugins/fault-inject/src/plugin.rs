//! The plugin itself: rules are made once; for each request those that want it are asked in their order.
//!
//! Delays of several rules add up. The first rule that answers or breaks off decides; so does, among those that act on the
//! response, the first.

use ctrlmesh_plugin_rules::match_rules;
use ctrlmesh_sdk::{
    Host, InstanceInfo, Part, Phases, Plugin, Request, RequestAction, RequestVerdict, ResponseHead, ResponseVerdict,
    Subscription,
};

use crate::catalogue::Context;
use crate::draw::Subject;
use crate::fault::{Act, OnRequest};
use crate::ledger::{Ledger, settle};
use crate::model::Model;
use crate::note::Note;
use crate::rule::{Chosen, Rule};
use crate::settings::Settings;

/// How long the host waits unless it is told otherwise (`wit/types.wit`).
const USUAL_LONGEST_WAIT_MS: u32 = 60_000;

/// Faults.
pub(crate) struct FaultInject {
    model: Model,
}

impl Plugin for FaultInject {
    type Settings = Settings;

    fn configure(settings: Settings, about: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let context = Context {
            user: format!("system:serviceaccount:{}:default", about.pod_namespace),
        };
        let model = Model::new(&settings, &context)?;
        warn(&model.rules, host);
        settle(&model.rules, host);
        let acts_later = model.rules.iter().flat_map(Rule::acts).any(|act| act.is_later());
        let phases = if acts_later {
            Phases::ON_REQUEST | Phases::ON_RESPONSE
        } else {
            Phases::ON_REQUEST
        };
        let rules = match_rules(model.rules.iter().map(|rule| &rule.matches));
        let subscription = if rules.is_empty() {
            Subscription::none()
        } else {
            Subscription::new(phases, rules)
        };
        Ok((Self { model }, subscription))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        // Faults befall requests. A watch that a reload ended would be one that nobody counts.
        if req.is_recheck() {
            return RequestVerdict::proceed();
        }
        let now = host.unix_ms();
        let mut decision = Decision::default();
        for (rule, index) in self.model.rules.iter().zip(0_u8..) {
            let has_room = |act: &Act| decision.has_room(act);
            if !rule.wants(req, now, has_room) {
                continue;
            }
            let ledger = Ledger::new(rule, host);
            let chosen = choose(rule, &ledger, req, self.model.seed);
            decision.take(&chosen, rule, index, &ledger, req);
        }
        if let Some(note) = decision.note {
            req.set_note(note.encode());
        }
        let action = decision.stop.unwrap_or(RequestAction::Proceed(Vec::new()));
        RequestVerdict::from(action).after_ms(decision.delay_ms)
    }

    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        self.response(req, res, host).unwrap_or_else(ResponseVerdict::proceed)
    }
}

impl FaultInject {
    /// What was decided with the request, if the response suits it.
    fn response(&self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> Option<ResponseVerdict> {
        let note = Note::decode(req.note())?;
        let rule = self.model.rules.get(usize::from(note.rule))?;
        // The rules may be others than when the request came.
        let act = rule.act(note.act).filter(|_| rule.mark == note.mark)?;
        let verdict = act.on_response(req, res, note.drawn_ms)?;
        let ledger = Ledger::new(rule, host);
        if !ledger.fire_on_response() {
            return None;
        }
        ledger.decides(Part::Delay);
        ledger.decides(Part::Action);
        Some(verdict)
    }
}

/// What a rule wants to do, after it has been counted and its selection and times are kept. A rule that has done enough counts nothing: no request
/// that comes later can be hit.
fn choose<'a>(rule: &'a Rule, ledger: &Ledger<'_>, req: &dyn Request, seed: u64) -> Vec<Chosen<'a>> {
    if ledger.is_exhausted() {
        return Vec::new();
    }
    let elapsed_ms = if rule.is_timed() { ledger.elapsed_ms() } else { 0 };
    if rule.is_over(elapsed_ms) || !rule.select.takes(ledger.matched()) {
        return Vec::new();
    }
    rule.choose(req, elapsed_ms, || ledger.draw(seed, &Subject::of(req)))
}

/// What becomes of a request.
#[derive(Default)]
struct Decision {
    delay_ms: u32,
    stop: Option<RequestAction>,
    note: Option<Note>,
}

impl Decision {
    /// Adds what one rule wants, if it still can and may.
    fn take(&mut self, chosen: &[Chosen<'_>], rule: &Rule, index: u8, ledger: &Ledger<'_>, req: &dyn Request) {
        let mut is_paid = false;
        for chosen in chosen {
            if !self.has_room(chosen.act) {
                continue;
            }
            let is_later = chosen.act.is_later();
            let may = is_paid
                || if is_later {
                    ledger.take_place()
                } else {
                    ledger.fire_on_request()
                };
            if !may {
                return;
            }
            is_paid = true;
            match chosen.act.on_request(req, chosen.unit) {
                OnRequest::Delay(ms) => self.delay(ms, ledger),
                OnRequest::Stop(ms, action) => {
                    self.delay(ms, ledger);
                    ledger.decides(Part::Action);
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

    fn delay(&mut self, ms: u32, ledger: &Ledger<'_>) {
        if ms > 0 {
            self.delay_ms = self.delay_ms.saturating_add(ms);
            ledger.decides(Part::Delay);
        }
    }

    /// Whether nobody else has decided what this act would.
    fn has_room(&self, act: &Act) -> bool {
        let is_delay = matches!(act, Act::Delay(_));
        is_delay || self.stop.is_none() && !(act.is_later() && self.note.is_some())
    }
}

/// Settings that are legal and do less than they say.
fn warn(rules: &[Rule], host: &dyn Host) {
    if rules.is_empty() {
        host.warn("no rule is in force: nothing happens");
    }
    for rule in rules {
        if let Some(reason) = rule.idle() {
            host.warn(&format!("{}: never fires: {reason}", rule.place));
        }
        let longest = rule
            .acts()
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
