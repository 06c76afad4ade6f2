//! The plugin: asks all matching rules in one call, so that a refusal costs none of them anything.

use ctrlmesh_plugin_rules::{TriggerPolicy, match_rules};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    Admission, Ask, Counted, Host, InstanceInfo, Part, Phases, Place, Plugin, Refusal, Request, RequestVerdict,
    StateError, Subscription,
};

use crate::limiter::{Limiter, Share};
use crate::settings::Settings;

/// The host's maximum of claims in one call (`wit/host.wit`); all rules can match one request.
const MAX_RULES: usize = 64;
/// Seconds to wait for a place, because the end of a request cannot be predicted.
const PLACE_RETRY_SECONDS: u64 = 1;
/// Random addition to a wait, so that refused clients do not return together: a fifth of it, at least a second.
const JITTER_PARTS: u64 = 5;

pub(crate) struct RateLimit {
    limiters: Vec<Limiter>,
}

/// The claims of the matching rules. Each vector has its rules beside it.
#[derive(Default)]
struct ClaimSet<'a> {
    asks: Vec<Ask>,
    askers: Vec<&'a Limiter>,
    places: Vec<Place>,
    placers: Vec<&'a Limiter>,
}

impl Plugin for RateLimit {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let limiters = compile_limiters(&settings, host).map_err(|error| error.field("rateLimitings"))?;
        let rules = match_rules(limiters.iter().map(|limiter| &limiter.rules));
        if rules.is_empty() {
            host.warn("no rule can match: nothing is limited");
        }
        Ok((Self { limiters }, Subscription::new(Phases::ON_REQUEST, rules)))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let matching: Vec<&Limiter> = self
            .limiters
            .iter()
            .filter(|limiter| limiter.rules.matches(req))
            .collect();
        if matching.is_empty() {
            return RequestVerdict::proceed().reusable();
        }
        let own = ClaimSet::for_request(&matching, req, Share::Own);
        match host.admit(&own.asks, &own.places) {
            Ok(admission) => own.verdict_for(&matching, &admission, host),
            Err(StateError::TooManyKeys) => {
                host.count("keys_exhausted", "", 1);
                let shared = ClaimSet::for_request(&matching, req, Share::Overflow);
                match host.admit(&shared.asks, &shared.places) {
                    Ok(admission) => shared.verdict_for(&matching, &admission, host),
                    Err(error) => no_room_verdict(&matching, error, host),
                }
            }
            Err(error) => no_room_verdict(&matching, error, host),
        }
    }
}

impl<'a> ClaimSet<'a> {
    fn for_request(matching: &[&'a Limiter], req: &dyn Request, share: Share) -> Self {
        let mut requested = Self::default();
        for limiter in matching {
            if let Some(ask) = limiter.token_request(req, share) {
                requested.asks.push(ask);
                requested.askers.push(limiter);
            }
            if let Some(place) = limiter.in_flight_place(req, share) {
                requested.places.push(place);
                requested.placers.push(limiter);
            }
        }
        requested
    }

    fn verdict_for(&self, matching: &[&Limiter], admission: &Admission, host: &dyn Host) -> RequestVerdict {
        let (limiter, wait_seconds, why) = match admission {
            Admission::Granted(wait_ms) => return grant_verdict(matching, *wait_ms, host),
            Admission::Short(shortage) => {
                let limiter = self.askers.get(shortage.ask as usize);
                (limiter, shortage.wait_ms.div_ceil(1000), "is used up".to_owned())
            }
            Admission::Full(index) => {
                let limiter = self.placers.get(*index as usize);
                let max = limiter.map_or(0, |limiter| limiter.max_in_flight());
                (limiter, PLACE_RETRY_SECONDS, format!("allows {max} requests at a time"))
            }
        };
        let name = limiter.map_or("", |limiter| limiter.name.as_str());
        refusal_verdict(name, wait_seconds, &why, host)
    }
}

fn grant_verdict(matching: &[&Limiter], wait_ms: u32, host: &dyn Host) -> RequestVerdict {
    let has_waited = |limiter: &Limiter| wait_ms > 0 && limiter.has_queue();
    let metric = |limiter: &Limiter| if has_waited(limiter) { "queued" } else { "granted" };
    match matching {
        [limiter] => host.count(metric(limiter), &limiter.name, 1),
        _ => {
            let counted = matching
                .iter()
                .map(|limiter| Counted::new(metric(limiter), &limiter.name, 1));
            host.count_all(&counted.collect::<Vec<_>>());
        }
    }
    for limiter in matching.iter().filter(|limiter| has_waited(limiter)) {
        host.name_rule(&limiter.name, Part::Delay);
    }
    let verdict = RequestVerdict::proceed();
    if wait_ms == 0 {
        // The same rules ask for the same tokens and places, which are taken each time.
        verdict.reusable()
    } else {
        verdict.after_ms(wait_ms)
    }
}

fn refusal_verdict(name: &str, wait_seconds: u64, why: &str, host: &dyn Host) -> RequestVerdict {
    host.count("refused", name, 1);
    let seconds = wait_seconds.max(1);
    let jitter = host.random() % (seconds / JITTER_PARTS).saturating_add(2);
    let seconds = u32::try_from(seconds.saturating_add(jitter)).unwrap_or(u32::MAX);
    let message = format!("rate limit {name:?} {why}; try again in {seconds} s");
    RequestVerdict::refuse(Refusal::too_many_requests(message, seconds).cause(name))
}

/// Without room in the state nothing can be counted: the first rule refuses, because letting all requests through would be no limit.
fn no_room_verdict(matching: &[&Limiter], error: StateError, host: &dyn Host) -> RequestVerdict {
    host.error(&format!("the host's state refused what the rules asked for: {error:?}"));
    let name = matching.first().map_or("", |limiter| limiter.name.as_str());
    refusal_verdict(
        name,
        PLACE_RETRY_SECONDS,
        "has more keys than the sidecar can count",
        host,
    )
}

fn compile_limiters(settings: &Settings, host: &dyn Host) -> Result<Vec<Limiter>, Invalid> {
    let rules = settings.rate_limitings.as_deref().unwrap_or_default();
    let mut limiters: Vec<Limiter> = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if rule
            .trigger_policy
            .is_some_and(|policy| policy != TriggerPolicy::LimiterOnly)
        {
            host.info(&format!(
                "rule {:?} is left to circuit-breaker by its triggerPolicy",
                rule.name
            ));
            continue;
        }
        let limiter = Limiter::new(rule).map_err(|error| error.index(index))?;
        if limiters.iter().any(|other| other.name == limiter.name) {
            let message = format!("{:?} is there twice; each rule has its own name", limiter.name);
            return Err(Invalid::new(message).field("name").index(index));
        }
        if limiter.rules.is_empty() {
            host.warn(&format!(
                "rule {:?} can't match: it has no rules, or an empty list",
                limiter.name
            ));
        }
        limiters.push(limiter);
    }
    if limiters.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES} can be asked together", limiters.len());
        return Err(Invalid::new(message));
    }
    Ok(limiters)
}
