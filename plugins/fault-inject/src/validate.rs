//! Validates the settings: checks every rule, compiles every pattern, and unifies both shapes of settings.

use ctrlmesh_plugin_rules::{Lists, Rules};
use ctrlmesh_sdk::settings::Invalid;

use crate::catalogue::{self, BuiltFault, Context, Steps, check_reason, error_code};
use crate::draw::rule_mark;
use crate::effective_time::ActiveTime;
use crate::fault::{Act, Applicability, Class};
use crate::params::DelayParam;
use crate::reply::Reply;
use crate::reply::generic::CustomRefusal;
use crate::rule::{Choice, Limits, Rule, RulePlan, Select};
use crate::settings::{Abort, Delay, FaultRule, Match, Percent, Settings};

/// Bounded so that the counters of all rules fit into the host's 1 024 keys, see [`crate::counters`]. Metrics (two series for each rule)
/// and reports would allow more.
pub(crate) const MAX_RULES: usize = 30;
/// The host's bound for a report's key.
const MAX_NAME: usize = 64;

/// All active rules, in order of evaluation.
#[derive(Debug)]
pub(crate) struct ActiveRules {
    pub(crate) seed: u64,
    pub(crate) rules: Vec<Rule>,
}

impl ActiveRules {
    /// Validates everything, including disabled rules.
    ///
    /// # Errors
    ///
    /// If a setting is invalid; names the field.
    pub(crate) fn new(settings: &Settings, context: &Context) -> Result<Self, Invalid> {
        let class = settings.class.unwrap_or_default();
        let mut rules: Vec<Rule> = Vec::new();
        let lists = [("faults", &settings.faults), ("httpFault", &settings.http_fault)];
        let mut names: Vec<String> = Vec::new();
        for (list, written) in lists {
            for (index, written) in written.iter().flatten().enumerate() {
                let at = |error: Invalid| error.index(index).field(list);
                let name = rule_name(written, list, index).map_err(at)?;
                if names.contains(&name) {
                    let message = format!("{name:?} is the name of another rule too; counts and limits go by name");
                    return Err(at(Invalid::new(message).field("name")));
                }
                names.push(name.clone());
                let path = format!("{list}[{index}]");
                let rule = Rule::new(written, (name, path), class, context).map_err(at)?;
                if written.disabled != Some(true) && settings.disabled != Some(true) {
                    rules.push(rule);
                }
            }
        }
        if rules.len() > MAX_RULES {
            let message = format!(
                "{} rules, at most {MAX_RULES}; write the others into another entry",
                rules.len()
            );
            return Err(Invalid::new(message).field("faults"));
        }
        let seed = settings.seed.unwrap_or_default();
        Ok(Self { seed, rules })
    }
}

fn rule_name(written: &FaultRule, list: &str, index: usize) -> Result<String, Invalid> {
    let name = match written.name.as_deref() {
        None | Some("") => format!("{list}[{index}]"),
        Some(name) => name.to_owned(),
    };
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(Invalid::new(format!("at most {MAX_NAME} bytes of text")).field("name"));
    }
    Ok(name)
}

impl Rule {
    fn new(
        written: &FaultRule,
        (name, path): (String, String),
        class: Class,
        context: &Context,
    ) -> Result<Self, Invalid> {
        let (plan, own) = build_plan(written, class, context)?;
        let active_time = written.effective_time.as_ref().map(ActiveTime::new).transpose();
        Ok(Self {
            mark: rule_mark(&name),
            name,
            path,
            matches: build_rules(written.matching.as_ref(), own).map_err(|error| error.field("match"))?,
            active_time: active_time.map_err(|error| error.field("effectiveTime"))?,
            select: build_select(written)?,
            limits: build_limits(written)?,
            plan,
        })
    }
}

fn build_plan(written: &FaultRule, class: Class, context: &Context) -> Result<(RulePlan, Option<Rules>), Invalid> {
    let Some(fault) = &written.fault else {
        return Ok((RulePlan::Together(build_delay_and_abort(written, context)?), None));
    };
    for (field, is_written) in [("delay", written.delay.is_some()), ("abort", written.abort.is_some())] {
        if is_written {
            return Err(Invalid::new("not beside do; write a rule of its own for it").field(field));
        }
    }
    let BuiltFault { steps, class: is, own } =
        catalogue::build_fault(fault, context).map_err(|error| error.field("do"))?;
    if is > class {
        let (name, needs, has) = (&fault.fault, is.as_str(), class.as_str());
        let message = format!(
            "{name} so written is of the class {needs}, and these settings want {has}; write class: {needs} beside \
             faults if you mean it"
        );
        return Err(Invalid::new(message).field("do"));
    }
    let percent = percent_of(written.percent);
    let plan = match steps {
        Steps::Always(act, suits) => RulePlan::Together(vec![Choice {
            act,
            suits,
            percent,
            purpose: "fault",
        }]),
        Steps::Stages { .. } if written.percent.is_some() => {
            return Err(Invalid::new("a preset has its own shares").field("percent"));
        }
        Steps::Stages { stages, again_ms } => RulePlan::Stages { stages, again_ms },
    };
    Ok((plan, own))
}

/// `delay` and `abort` of the CRD: drawn one by one from one source.
fn build_delay_and_abort(written: &FaultRule, context: &Context) -> Result<Vec<Choice>, Invalid> {
    if written.delay.is_none() && written.abort.is_none() {
        return Err(Invalid::new("nothing happens in this rule; write delay, abort or do"));
    }
    if written.percent.is_some() {
        return Err(Invalid::new("only beside do; delay and abort have their own").field("percent"));
    }
    let mut choices = Vec::new();
    if let Some(delay) = &written.delay {
        choices.push(Choice {
            act: Act::Delay(build_wait(delay).map_err(|error| error.field("delay"))?),
            suits: Applicability::Every,
            percent: percent_of(delay.percent),
            purpose: "delay",
        });
    }
    if let Some(abort) = &written.abort {
        choices.push(Choice {
            act: build_refusal(abort, context).map_err(|error| error.field("abort"))?,
            suits: Applicability::Every,
            percent: percent_of(abort.percent),
            purpose: "abort",
        });
    }
    Ok(choices)
}

fn percent_of(written: Option<Percent>) -> f64 {
    written.map_or(100.0, |percent| percent.0)
}

fn build_wait(delay: &Delay) -> Result<DelayParam, Invalid> {
    DelayParam::new(("fixedDelay", delay.fixed_delay), delay.min, delay.mean, delay.max)
}

fn build_refusal(abort: &Abort, context: &Context) -> Result<Act, Invalid> {
    let Some(status) = abort.http_status else {
        return Err(Invalid::new("missing; write 400 to 599").field("httpStatus"));
    };
    check_reason(abort.reason.as_deref())?;
    Ok(Act::Reply(
        0,
        Reply::Plain(CustomRefusal {
            code: error_code(status, "httpStatus")?,
            reason: abort.reason.clone(),
            message: abort.message.clone(),
            retry_after: abort.retry_after,
            user: context.user.clone(),
        }),
    ))
}

fn build_rules(written: Option<&Match>, own: Option<Rules>) -> Result<Rules, Invalid> {
    match (written, own) {
        (None, Some(own)) => Ok(own),
        (Some(_), Some(_)) => Err(Invalid::new("this fault knows by itself what it matches; leave it out")),
        (None, None) => Err(Invalid::new(
            "missing: say which requests, with resources, nonResources or httpMatch",
        )),
        (Some(written), None) => {
            let mut rules = Rules::default();
            let all = Lists::AbsentIsAll;
            let resources = written.resources.as_deref().unwrap_or_default();
            rules
                .add_resources(resources, all)
                .map_err(|error| error.field("resources"))?;
            let non_resources = written.non_resources.as_deref().unwrap_or_default();
            rules
                .add_non_resources(non_resources, all)
                .map_err(|error| error.field("nonResources"))?;
            let rests = written.http_match.as_deref().unwrap_or_default();
            rules.add_rests(rests, all).map_err(|error| error.field("httpMatch"))?;
            if rules.is_empty() {
                return Err(Invalid::new(
                    "nothing matches it; name resources, nonResources or httpMatch",
                ));
            }
            Ok(rules)
        }
    }
}

fn build_select(written: &FaultRule) -> Result<Select, Invalid> {
    let mut select = Select::All;
    for (field, value, make) in [
        ("nth", written.nth, Select::Nth as fn(u32) -> Select),
        ("every", written.every, Select::Every),
        ("first", written.first, Select::First),
    ] {
        match value {
            None => {}
            Some(0) => return Err(Invalid::new("it counts from 1").field(field)),
            Some(_) if select != Select::All => {
                return Err(Invalid::new("one of nth, every and first, not two").field(field));
            }
            Some(value) => select = make(value),
        }
    }
    Ok(select)
}

fn build_limits(written: &FaultRule) -> Result<Limits, Invalid> {
    for (field, value) in [("maxCount", written.max_count), ("maxActive", written.max_active)] {
        if value == Some(0) {
            return Err(Invalid::new("at least 1; write disabled: true if it shall not fire").field(field));
        }
    }
    let max_duration_ms = written.max_duration.map(|duration| duration.as_millis_ceil());
    if max_duration_ms == Some(0) {
        return Err(Invalid::new("it must take some time").field("maxDuration"));
    }
    Ok(Limits {
        max_count: written.max_count,
        max_duration_ms,
        max_active: written.max_active,
    })
}
