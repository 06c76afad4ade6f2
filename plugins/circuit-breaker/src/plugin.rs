//! The plugin itself: what a request meets on its way, and what its end says to the breakers that it passed.

use ctrlmesh_plugin_rules::{Lists, RestRule, Rules, is_long_running, match_rules};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    Admission, Host, InstanceInfo, MatchRule, Outcome, Phases, Plugin, Refusal, Request, RequestVerdict, ResponseHead,
    ResponseVerdict, Subscription, Traffic, Verb,
};

use crate::breaker::{Breaker, Policy};
use crate::cell::{Cause, Counts, State, Status};
use crate::circuit::{Circuit, Read};
use crate::intercept::{Denied, Intercept};
use crate::judgement::Judgement;
use crate::note::{MAX_RULES, Note, hash};
use crate::settings::Settings;
use crate::{recovery, snapshot};

/// Longest wait that a client is told: a person may close a breaker at any time, and sleeping clients don't see it.
const MAX_RETRY_SECONDS: u64 = 30;
/// Added at random, so that refused clients do not come back together: a fifth, at least a second.
const JITTER_PARTS: u64 = 5;
/// Sleeping windows that end while a request is looked at are rare; more than so many looks are of no use.
const MAX_LOOKS: usize = 3;

/// Opens and closes breakers.
pub(crate) struct CircuitBreaker {
    breakers: Vec<Breaker>,
    intercept: Intercept,
    /// Which settings numbered the rules, for [`Note`].
    settings: u8,
}

/// A breaker that a request meets, with its number and its state.
struct Met<'a> {
    index: usize,
    circuit: Circuit<'a>,
    read: Read,
}

impl Plugin for CircuitBreaker {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let intercepted = settings.traffic_intercept_rules.as_deref().unwrap_or_default();
        let intercept = Intercept::new(intercepted).map_err(|error| error.field("trafficInterceptRules"))?;
        let breakers = breakers(&settings, host).map_err(|error| error.field("rateLimitings"))?;
        let rules = subscription(&breakers, &intercept)?;
        if rules.is_empty() {
            host.warn("no rule can match: nothing is broken or refused");
        }
        let names: Vec<&str> = breakers.iter().map(|breaker| breaker.name.as_str()).collect();
        snapshot::keep_only(host, &names);
        for breaker in &breakers {
            restore(breaker, host);
        }
        let [settings, ..] = hash(&names.join("\n")).to_be_bytes();
        let phases = phases(&breakers, &rules);
        let plugin = Self {
            breakers,
            intercept,
            settings,
        };
        Ok((plugin, Subscription::new(phases, rules)))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let is_external = req.facts().traffic == Traffic::External;
        if is_external && let Err(denied) = self.intercept.check(req) {
            return forbidden(denied, host);
        }
        let forced = |breaker: &&Breaker| breaker.policy == Policy::ForceOpened && breaker.rules.matches(req);
        if let Some(breaker) = self.breakers.iter().find(forced) {
            return refused(
                breaker,
                "is open: its triggerPolicy is ForceOpened",
                MAX_RETRY_SECONDS,
                is_external,
                host,
            );
        }
        // The host asks again for a watch that was let in. An open breaker must not end it, or each reload would
        // add a wave of lists to what already fails.
        if req.is_recheck() {
            return RequestVerdict::proceed();
        }
        let mut met = self.met(req, host);
        if met.is_empty() {
            return RequestVerdict::proceed();
        }
        let mut epoch = 0;
        for _ in 0..MAX_LOOKS {
            // Before the states: what changes in between is then newer than this request.
            epoch = recovery::epoch(host);
            let mut has_changed = false;
            for Met { circuit, read, .. } in &mut met {
                *read = circuit.read();
                if circuit.is_due(&read.status) {
                    circuit.half_open(*read);
                    has_changed = true;
                }
            }
            if !has_changed {
                break;
            }
        }
        if let Some(opened) = met.iter().find(|met| met.read.status.state == State::Opened) {
            return opened.refuse(&opened.read.status, is_external, host);
        }
        admit(&met, Note::new(epoch, self.settings), req, host)
    }

    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        if is_long_running(req) {
            let status = res.status();
            self.settle(req, host, 0, |breaker| breaker.judge.of_status(status));
        }
        ResponseVerdict::proceed()
    }

    fn on_complete(&mut self, req: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        // A watch has said what it had to say when its answer began.
        if is_long_running(req) && outcome.upstream_status != 0 {
            return;
        }
        // Of a call that its client gave up nobody knows more than how long it waited.
        let took_us = match outcome.upstream_status {
            0 => outcome.duration_us,
            _ => outcome.upstream_us,
        };
        self.settle(req, host, took_us, |breaker| breaker.judge.of_outcome(outcome));
    }
}

impl CircuitBreaker {
    /// The breakers that a request meets, not read yet.
    fn met<'a>(&'a self, req: &dyn Request, host: &'a dyn Host) -> Vec<Met<'a>> {
        let matching = self
            .breakers
            .iter()
            .enumerate()
            .filter(|(_, breaker)| breaker.policy == Policy::Normal && breaker.rules.matches(req));
        let met = matching.map(|(index, breaker)| Met {
            index,
            circuit: Circuit::new(breaker, breaker.key.value(req), host),
            read: Read::default(),
        });
        met.collect()
    }

    /// Tells the breakers what a request has shown, if it was admitted in the state that they are in.
    fn settle(&self, req: &dyn Request, host: &dyn Host, took_us: u64, judge: impl Fn(&Breaker) -> Judgement) {
        let note = Note::unpack(req.note());
        for Met { index, circuit, .. } in self.met(req, host) {
            let read = circuit.read();
            let is_current = note.epoch >= read.status.epoch;
            let is_heard = match read.status.state {
                State::Closed => is_current,
                State::HalfOpen => is_current && note.settings == self.settings && note.is_probe(index),
                State::Opened => false,
            };
            if is_heard {
                circuit.settle(read, judge(circuit.breaker), took_us);
            }
        }
    }
}

/// All breakers that are closed give a token, and all that are half open a place, or none does.
fn admit(met: &[Met<'_>], mut note: Note, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
    let is_external = req.facts().traffic == Traffic::External;
    let (probing, closed): (Vec<&Met<'_>>, Vec<&Met<'_>>) =
        met.iter().partition(|met| met.read.status.state == State::HalfOpen);
    let limited: Vec<&&Met<'_>> = closed
        .iter()
        .filter(|met| met.circuit.breaker.bucket.is_some())
        .collect();
    let asks: Vec<_> = limited.iter().filter_map(|met| met.circuit.ask()).collect();
    let places: Vec<_> = probing.iter().map(|met| met.circuit.probe(&met.read.status)).collect();
    let admission = if asks.is_empty() && places.is_empty() {
        Ok(Admission::Granted(0))
    } else {
        host.admit(&asks, &places)
    };
    match admission {
        Ok(Admission::Short(shortage)) => {
            if let Some(met) = limited.get(shortage.ask as usize) {
                let status = met.circuit.open(met.read, Cause::OverLimit, Counts::default());
                return met.refuse(&status, is_external, host);
            }
        }
        Ok(Admission::Full(index)) => {
            if let Some(met) = probing.get(index as usize) {
                return met.refuse(&met.read.status, is_external, host);
            }
        }
        Ok(Admission::Granted(_)) => {}
        // Without room nothing is known about this key, and a breaker refuses only for what it knows.
        Err(_) => host.count("keys_exhausted", "", 1),
    }
    for met in probing {
        note.mark_probe(met.index);
    }
    for met in met {
        let name = if note.is_probe(met.index) { "probed" } else { "passed" };
        host.count(name, &met.circuit.breaker.name, 1);
    }
    req.set_note(note.pack());
    RequestVerdict::proceed()
}

impl Met<'_> {
    fn refuse(&self, status: &Status, is_external: bool, host: &dyn Host) -> RequestVerdict {
        let breaker = self.circuit.breaker;
        let reason = snapshot::reason(status);
        let (what, seconds) = match status.state {
            State::HalfOpen => (format!("waits for its probes: {reason}"), 1),
            _ if status.recovers_ms == 0 => (format!("is open until somebody closes it: {reason}"), MAX_RETRY_SECONDS),
            _ => {
                let left_ms = status.recovers_ms.saturating_sub(self.circuit.now_ms());
                (format!("is open: {reason}"), left_ms.div_ceil(1000))
            }
        };
        refused(breaker, &what, seconds, is_external, host)
    }
}

/// 429 makes client-go wait and try again; other clients know 503 from their load balancers.
fn refused(breaker: &Breaker, what: &str, seconds: u64, is_external: bool, host: &dyn Host) -> RequestVerdict {
    host.count("refused", &breaker.name, 1);
    let seconds = seconds.clamp(1, MAX_RETRY_SECONDS);
    let seconds = seconds + host.random() % (seconds / JITTER_PARTS + 2);
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    let code = if is_external { 503 } else { 429 };
    let message = format!("circuit breaker {:?} {what}; try again in {seconds} s", breaker.name);
    RequestVerdict::refuse(Refusal::new(code, message).retry_after(seconds).cause(&breaker.name))
}

fn forbidden(denied: Denied<'_>, host: &dyn Host) -> RequestVerdict {
    let (name, message) = match denied {
        Denied::By(name) => (name, format!("the traffic intercept rule {name:?} forbids this call")),
        Denied::NotAllowed => (
            "",
            "no traffic intercept rule of type Whitelist allows this call".to_owned(),
        ),
    };
    host.count("denied", name, 1);
    let refusal = Refusal::new(403, message);
    RequestVerdict::refuse(if name.is_empty() { refusal } else { refusal.cause(name) })
}

fn breakers(settings: &Settings, host: &dyn Host) -> Result<Vec<Breaker>, Invalid> {
    let rules = settings.rate_limitings.as_deref().unwrap_or_default();
    let mut breakers: Vec<Breaker> = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let Some(breaker) = Breaker::new(rule).map_err(|error| error.index(index))? else {
            host.info(&format!(
                "rule {:?} is left to rate-limit by its triggerPolicy",
                rule.name
            ));
            continue;
        };
        if breakers.iter().any(|other| other.name == breaker.name) {
            let message = format!("{:?} is there twice; each rule has its own name", breaker.name);
            return Err(Invalid::new(message).field("name").index(index));
        }
        if breaker.rules.is_empty() {
            host.warn(&format!(
                "rule {:?} can't match: it has no rules, or an empty list",
                breaker.name
            ));
        }
        breakers.push(breaker);
    }
    if breakers.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES} in one entry", breakers.len());
        return Err(Invalid::new(message));
    }
    Ok(breakers)
}

/// What the rules match; with lists of what may be called, every call to another service.
fn subscription(breakers: &[Breaker], intercept: &Intercept) -> Result<Vec<MatchRule>, Invalid> {
    let mut calls = Rules::default();
    if !intercept.is_empty() {
        calls.add_rests(&[RestRule::default()], Lists::AbsentIsAll)?;
    }
    Ok(match_rules(
        breakers.iter().map(|breaker| &breaker.rules).chain([&calls]),
    ))
}

/// Only what can be needed: each phase is a call.
fn phases(breakers: &[Breaker], rules: &[MatchRule]) -> Phases {
    let has_state = breakers.iter().any(|breaker| breaker.policy == Policy::Normal);
    let may_last = |rule: &MatchRule| {
        // A call to another service may be a tunnel.
        rule.traffic == [Traffic::External] || rule.verbs != [Verb::NonResource]
    };
    match (has_state, rules.iter().any(may_last)) {
        (false, _) => Phases::ON_REQUEST,
        (true, false) => Phases::ON_REQUEST | Phases::ON_COMPLETE,
        (true, true) => Phases::ON_REQUEST | Phases::ON_RESPONSE | Phases::ON_COMPLETE,
    }
}

/// Resets what shall be reset, and shows where the rule stands.
fn restore(breaker: &Breaker, host: &dyn Host) {
    recovery::apply(host, breaker);
    if breaker.policy == Policy::Normal {
        let circuit = Circuit::new(breaker, String::new(), host);
        circuit.show(circuit.read());
    } else {
        snapshot::show_forced(breaker, host);
    }
}
