//! The plugin: admits requests, has the host count their outcomes while breakers are closed, and judges probes.

use ctrlmesh_plugin_rules::{Lists, RestRule, Rules, is_long_running, match_rules};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    Admission, Counted, Crossing, Host, InstanceInfo, MatchRule, Outcome, Phases, Plugin, Refusal, Request,
    RequestVerdict, ResponseHead, ResponseVerdict, Subscription, Traffic, Verb,
};

use crate::breaker::{self, Breaker, VersionedState};
use crate::cell::{Cause, Counts, State, Status};
use crate::intercept::{DenialReason, Intercept};
use crate::judgement::Judgement;
use crate::keys::names_of_tally;
use crate::note::{MAX_RULES, Note, fnv1a};
use crate::rule::{BreakerRule, Policy};
use crate::settings::Settings;
use crate::{recovery, snapshot};

/// Maximum `Retry-After`: a person may close a breaker at any time, which sleeping clients do not notice.
const MAX_RETRY_SECONDS: u64 = 30;
/// Random addition to `Retry-After`, so that refused clients do not return together: a fifth, at least a second.
const JITTER_PARTS: u64 = 5;
/// The status with which a tunnel begins.
const SWITCHING_PROTOCOLS: u16 = 101;
/// Retries when a state changes during admission. Sleeping windows rarely end in that moment, so more would be of no use.
const MAX_LOOKS: usize = 3;

pub(crate) struct CircuitBreaker {
    rules: Vec<BreakerRule>,
    intercept: Intercept,
    /// Identifies the settings that numbered the rules, for [`Note`].
    settings: u8,
}

/// A breaker whose rule matches a request, with the index of the rule and the state of the breaker.
struct MatchedBreaker<'a> {
    index: usize,
    breaker: Breaker<'a>,
    read: VersionedState,
}

impl Plugin for CircuitBreaker {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let intercepted = settings.traffic_intercept_rules.as_deref().unwrap_or_default();
        let intercept = Intercept::new(intercepted).map_err(|error| error.field("trafficInterceptRules"))?;
        let rules = compile_rules(&settings, host).map_err(|error| error.field("rateLimitings"))?;
        let matches = build_subscription(&rules, &intercept)?;
        if matches.is_empty() {
            host.warn("no rule can match: nothing is broken or refused");
        }
        let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
        breaker::keep_only(host, &names);
        for rule in &rules {
            apply_recovery(rule, host);
        }
        let [settings, ..] = fnv1a(&names.join("\n")).to_be_bytes();
        let phases = required_phases(&rules, &matches);
        let plugin = Self {
            rules,
            intercept,
            settings,
        };
        Ok((plugin, Subscription::new(phases, matches)))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        if !self.intercept.is_empty()
            && is_external(req)
            && let Err(denied) = self.intercept.check(req)
        {
            return forbid_call(denied, host);
        }
        let forced = |rule: &&BreakerRule| rule.policy == Policy::ForceOpened && rule.rules.matches(req);
        if let Some(rule) = self.rules.iter().find(forced) {
            return refusal_verdict(
                rule,
                "is open: its triggerPolicy is ForceOpened",
                MAX_RETRY_SECONDS,
                req,
                host,
            );
        }
        // The host asks again about a watch that was admitted. An open breaker must not end it, or each reload would add a wave of lists to
        // a server that already fails.
        if req.is_recheck() {
            return RequestVerdict::proceed();
        }
        let mut met = self.matching_breakers(req, host);
        if met.is_empty() {
            return RequestVerdict::proceed().later(Phases::empty()).reusable();
        }
        for _ in 0..MAX_LOOKS {
            read_states(&mut met, host);
            let mut has_changed = false;
            for MatchedBreaker { breaker, read, .. } in &met {
                if breaker.is_due(&read.status) {
                    breaker.half_open(*read);
                    has_changed = true;
                } else if breaker.forget_if_old(read) {
                    has_changed = true;
                }
            }
            if !has_changed {
                break;
            }
        }
        if let Some(opened) = met.iter().find(|met| met.read.status.state == State::Opened) {
            return opened.refuse_request(&opened.read.status, req, host);
        }
        // The states were read at one moment, so that each later change has a higher number.
        let epoch = met.iter().map(|met| met.read.status.epoch).max().unwrap_or_default();
        admit_request(&met, Note::new(epoch, self.settings), req, host)
    }

    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        let status = res.status();
        if is_judged_at_head(req, status) {
            self.record_probe(req, host, 0, |rule| rule.judge.of_status(status));
        }
        ResponseVerdict::proceed()
    }

    fn on_complete(&mut self, req: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        if outcome.upstream_status != 0 && is_judged_at_head(req, outcome.upstream_status) {
            return;
        }
        // For a call that its client gave up, only the time it waited is known.
        let took_us = match outcome.upstream_status {
            0 => outcome.duration_us,
            _ => outcome.upstream_us,
        };
        self.record_probe(req, host, took_us, |rule| rule.judge.of_outcome(outcome));
    }

    fn on_crossed(&mut self, crossings: &[Crossing], host: &dyn Host) {
        for crossing in crossings {
            if let Some(breaker) = self.breaker_of_tally(&crossing.tally, host) {
                breaker.open_by(crossing);
            }
        }
    }
}

impl CircuitBreaker {
    /// The breakers that match a request, with unread states.
    fn matching_breakers<'a>(&'a self, req: &dyn Request, host: &'a dyn Host) -> Vec<MatchedBreaker<'a>> {
        let matching = self
            .rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.policy == Policy::Normal && rule.rules.matches(req));
        let met = matching.map(|(index, rule)| MatchedBreaker {
            index,
            breaker: Breaker::new(rule, rule.key.value(req), host),
            read: VersionedState::default(),
        });
        met.collect()
    }

    /// Reports the result of a probe to the breakers that are still in the half-open state in which they admitted it.
    fn record_probe(
        &self,
        req: &dyn Request,
        host: &dyn Host,
        took_us: u64,
        judge: impl Fn(&BreakerRule) -> Judgement,
    ) {
        let note = Note::unpack(req.note());
        if note.settings != self.settings {
            return;
        }
        let mut met = self.matching_breakers(req, host);
        met.retain(|met| note.is_probe(met.index));
        read_states(&mut met, host);
        for MatchedBreaker { breaker, read, .. } in met {
            if read.status.state == State::HalfOpen && note.epoch >= read.status.epoch {
                breaker.record_probe(read, judge(breaker.rule), took_us);
            }
        }
    }

    /// The breaker whose requests a tally counts; `None` if these settings have none.
    fn breaker_of_tally<'a>(&'a self, tally: &str, host: &'a dyn Host) -> Option<Breaker<'a>> {
        let (name, value) = names_of_tally(tally)?;
        let rule = self.rules.iter().find(|rule| rule.name == name)?;
        (rule.policy == Policy::Normal).then(|| Breaker::new(rule, value.to_owned(), host))
    }
}

/// Reads the states of breakers at one moment.
fn read_states(met: &mut [MatchedBreaker<'_>], host: &dyn Host) {
    if met.is_empty() {
        return;
    }
    let breakers: Vec<&Breaker<'_>> = met.iter().map(|met| &met.breaker).collect();
    let states = breaker::read_states(&breakers, host);
    for (met, read) in met.iter_mut().zip(states) {
        met.read = read;
    }
}

/// Whether a probe is judged when its response begins, with this status. The end of a watch or tunnel comes much later, and says nothing
/// about the server.
fn is_judged_at_head(req: &dyn Request, status: u16) -> bool {
    status == SWITCHING_PROTOCOLS || is_long_running(req)
}

/// Whether the request is a call to an external service, which never has a verb of Kubernetes.
fn is_external(req: &dyn Request) -> bool {
    req.verb() == Verb::NonResource && req.traffic() == Traffic::External
}

/// Takes a token from every closed breaker and a place from every half-open one, or nothing if one of them refuses.
fn admit_request(met: &[MatchedBreaker<'_>], mut note: Note, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
    let (probing, closed): (Vec<&MatchedBreaker<'_>>, Vec<&MatchedBreaker<'_>>) =
        met.iter().partition(|met| met.read.status.state == State::HalfOpen);
    let limited: Vec<&&MatchedBreaker<'_>> = closed.iter().filter(|met| met.breaker.rule.bucket.is_some()).collect();
    let asks: Vec<_> = limited.iter().filter_map(|met| met.breaker.token_request()).collect();
    let places: Vec<_> = probing
        .iter()
        .map(|met| met.breaker.probe_place(&met.read.status))
        .collect();
    let admission = if asks.is_empty() && places.is_empty() {
        Ok(Admission::Granted(0))
    } else {
        host.admit(&asks, &places)
    };
    match admission {
        Ok(Admission::Short(shortage)) => {
            if let Some(met) = limited.get(shortage.ask as usize) {
                let status = met.breaker.open(met.read, Cause::OverLimit, Counts::default());
                return met.refuse_request(&status, req, host);
            }
        }
        Ok(Admission::Full(index)) => {
            if let Some(met) = probing.get(index as usize) {
                return met.refuse_request(&met.read.status, req, host);
            }
        }
        Ok(Admission::Granted(_)) => {}
        // Without room for its state, nothing is known about this key, and a breaker refuses only for what it knows.
        Err(_) => host.count("keys_exhausted", "", 1),
    }
    for met in &probing {
        note.mark_probe(met.index);
    }
    count_admitted(met, note, host);
    let may_last = is_long_running(req);
    let verdict = count_outcomes(&closed, may_last, host);
    if probing.is_empty() {
        return reusable_while_closed(verdict.later(Phases::empty()), &closed, host);
    }
    req.set_note(note.pack());
    // The server may answer any subresource with a 101.
    let response = if may_last || !req.subresource().is_empty() {
        Phases::ON_RESPONSE
    } else {
        Phases::empty()
    };
    verdict.later(response | Phases::ON_COMPLETE)
}

/// Lets a request pass, and has the host count its outcome for the closed breakers.
fn count_outcomes(closed: &[&MatchedBreaker<'_>], may_last: bool, host: &dyn Host) -> RequestVerdict {
    let mut verdict = RequestVerdict::proceed();
    for met in closed {
        if !met.read.is_known {
            host.count("keys_exhausted", "", 1);
        } else if let Some(rule) = met.breaker.outcome_rule(may_last) {
            verdict = verdict.count_outcome(rule);
        }
    }
    verdict
}

/// The verdict holds until a breaker changes, which is a change of a cell that was read, or is forgotten.
fn reusable_while_closed(verdict: RequestVerdict, closed: &[&MatchedBreaker<'_>], host: &dyn Host) -> RequestVerdict {
    let forgotten = closed.iter().filter_map(|met| met.breaker.forgotten_at_ms(&met.read));
    match (forgotten.min(), closed.first()) {
        (Some(at_ms), Some(met)) => {
            let left_ms = at_ms.saturating_sub(met.breaker.now_ms());
            verdict.reusable_until(host.unix_ms().saturating_add(left_ms))
        }
        _ => verdict.reusable(),
    }
}

fn count_admitted(met: &[MatchedBreaker<'_>], note: Note, host: &dyn Host) {
    let metric = |met: &MatchedBreaker<'_>| if note.is_probe(met.index) { "probed" } else { "passed" };
    let counted = |met: &MatchedBreaker<'_>| Counted::new(metric(met), &met.breaker.rule.name, 1);
    match met {
        [met] => host.count(metric(met), &met.breaker.rule.name, 1),
        _ => host.count_all(&met.iter().map(counted).collect::<Vec<_>>()),
    }
}

impl MatchedBreaker<'_> {
    fn refuse_request(&self, status: &Status, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let reason = snapshot::reason_text(status);
        let (what, seconds) = match status.state {
            State::HalfOpen => (format!("waits for its probes: {reason}"), 1),
            _ if status.recovers_ms == 0 => (format!("is open until somebody closes it: {reason}"), MAX_RETRY_SECONDS),
            _ => {
                let left_ms = status.recovers_ms.saturating_sub(self.breaker.now_ms());
                (format!("is open: {reason}"), left_ms.div_ceil(1000))
            }
        };
        refusal_verdict(self.breaker.rule, &what, seconds, req, host)
    }
}

/// 429 makes client-go wait and retry; for other clients, 503 is the usual response of a load balancer. The end of a refused request says
/// nothing about a server.
fn refusal_verdict(rule: &BreakerRule, what: &str, seconds: u64, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
    host.count("refused", &rule.name, 1);
    let seconds = seconds.clamp(1, MAX_RETRY_SECONDS);
    let seconds = seconds + host.random() % (seconds / JITTER_PARTS + 2);
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    let code = if is_external(req) { 503 } else { 429 };
    let message = format!("circuit breaker {:?} {what}; try again in {seconds} s", rule.name);
    let refusal = Refusal::new(code, message).retry_after(seconds).cause(&rule.name);
    RequestVerdict::refuse(refusal).later(Phases::empty())
}

fn forbid_call(denied: DenialReason<'_>, host: &dyn Host) -> RequestVerdict {
    let (name, message) = match denied {
        DenialReason::By(name) => (name, format!("the traffic intercept rule {name:?} forbids this call")),
        DenialReason::NotAllowed => (
            "",
            "no traffic intercept rule of type Whitelist allows this call".to_owned(),
        ),
    };
    host.count("denied", name, 1);
    let refusal = Refusal::new(403, message);
    let refusal = if name.is_empty() { refusal } else { refusal.cause(name) };
    RequestVerdict::refuse(refusal).later(Phases::empty())
}

fn compile_rules(settings: &Settings, host: &dyn Host) -> Result<Vec<BreakerRule>, Invalid> {
    let written_rules = settings.rate_limitings.as_deref().unwrap_or_default();
    let mut rules: Vec<BreakerRule> = Vec::new();
    for (index, written) in written_rules.iter().enumerate() {
        let Some(rule) = BreakerRule::new(written).map_err(|error| error.index(index))? else {
            host.info(&format!(
                "rule {:?} is left to rate-limit by its triggerPolicy",
                written.name
            ));
            continue;
        };
        if rules.iter().any(|other| other.name == rule.name) {
            let message = format!("{:?} is there twice; each rule has its own name", rule.name);
            return Err(Invalid::new(message).field("name").index(index));
        }
        if rule.rules.is_empty() {
            host.warn(&format!(
                "rule {:?} can't match: it has no rules, or an empty list",
                rule.name
            ));
        }
        rules.push(rule);
    }
    if rules.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES} in one entry", rules.len());
        return Err(Invalid::new(message));
    }
    Ok(rules)
}

/// The rules' matches; with call lists, also every call to external services.
fn build_subscription(rules: &[BreakerRule], intercept: &Intercept) -> Result<Vec<MatchRule>, Invalid> {
    let mut calls = Rules::default();
    if !intercept.is_empty() {
        calls.add_rests(&[RestRule::default()], Lists::AbsentIsAll)?;
    }
    Ok(match_rules(rules.iter().map(|rule| &rule.rules).chain([&calls])))
}

/// The phases that are needed and no others, because each is a call of the plugin.
fn required_phases(rules: &[BreakerRule], matches: &[MatchRule]) -> Phases {
    let has_state = rules.iter().any(|rule| rule.policy == Policy::Normal);
    let may_last = |rule: &MatchRule| {
        // A call to an external service may be a tunnel.
        rule.traffic == [Traffic::External] || rule.verbs != [Verb::NonResource]
    };
    match (has_state, matches.iter().any(may_last)) {
        (false, _) => Phases::ON_REQUEST,
        (true, false) => Phases::ON_REQUEST | Phases::ON_COMPLETE,
        (true, true) => Phases::ON_REQUEST | Phases::ON_RESPONSE | Phases::ON_COMPLETE,
    }
}

/// Applies a reset by a person, and publishes the state of the rule.
fn apply_recovery(rule: &BreakerRule, host: &dyn Host) {
    recovery::apply_reset(host, rule);
    if rule.policy == Policy::Normal {
        let breaker = Breaker::new(rule, String::new(), host);
        breaker.publish_state(breaker.read_state());
    } else {
        snapshot::publish_forced_report(rule, host);
    }
}
