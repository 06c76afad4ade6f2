//! One active rule: whether it applies to a request, and what it does to it.

use ctrlmesh_plugin_rules::{Rules, verb_name};
use ctrlmesh_sdk::Request;

use crate::catalogue::Stage;
use crate::draw::Draw;
use crate::effective_time::ActiveTime;
use crate::fault::{Act, Applicability};

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// Path of the rule in the settings, such as `httpFault[0]`.
    pub(crate) path: String,
    /// Distinguishes the rule from another one at the same index after a change.
    pub(crate) mark: u16,
    pub(crate) matches: Rules,
    pub(crate) active_time: Option<ActiveTime>,
    pub(crate) select: Select,
    pub(crate) limits: Limits,
    pub(crate) plan: RulePlan,
}

/// Selects some of the matching requests, by their number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    All,
    Nth(u32),
    Every(u32),
    First(u32),
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) max_count: Option<u32>,
    pub(crate) max_duration_ms: Option<u64>,
    pub(crate) max_active: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum RulePlan {
    /// Each choice is drawn on its own.
    Together(Vec<Choice>),
    Stages {
        stages: Vec<Stage>,
        again_ms: Option<u32>,
    },
}

/// An act and its probability.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) act: Act,
    pub(crate) suits: Applicability,
    pub(crate) percent: f64,
    /// Separates the draws of one rule.
    pub(crate) purpose: &'static str,
}

pub(crate) struct Chosen<'a> {
    /// Number of the act in the rule, for [`Rule::act_at`].
    pub(crate) number: u8,
    pub(crate) act: &'a Act,
    /// Number drawn for the act, in [0, 1).
    pub(crate) unit: f64,
    /// Milliseconds until its stage ends.
    pub(crate) left_ms: u32,
}

impl Select {
    /// Whether the request of this number is selected; 0 is one whose number is not known.
    pub(crate) fn selects_request(self, number: u64) -> bool {
        match self {
            Self::All => true,
            _ if number == 0 => false,
            Self::Nth(nth) => number == u64::from(nth),
            Self::Every(every) => number.is_multiple_of(u64::from(every)),
            Self::First(first) => number <= u64::from(first),
        }
    }
}

impl Rule {
    /// Whether the rule matches a request whatever time it is, and one of its acts is still possible. `has_room` checks that no other rule
    /// has decided the part that the act would.
    pub(crate) fn matches_request(&self, req: &dyn Request, has_room: impl Fn(&Act) -> bool) -> bool {
        let can_hit = match &self.plan {
            RulePlan::Together(choices) => {
                let mut choices = choices.iter();
                choices.any(|choice| choice.suits.applies_to(req) && has_room(&choice.act))
            }
            RulePlan::Stages { stages, .. } => stages.iter().any(|stage| {
                let otherwise = stage.otherwise.as_ref();
                stage.suits.applies_to(req) && has_room(&stage.act) || otherwise.is_some_and(&has_room)
            }),
        };
        can_hit && self.matches.matches(req)
    }

    /// Why the rule can never fire; `None` if it can.
    pub(crate) fn never_fires_reason(&self) -> Option<String> {
        let RulePlan::Together(choices) = &self.plan else {
            return None;
        };
        let likely: Vec<&Choice> = choices.iter().filter(|choice| choice.percent > 0.0).collect();
        if likely.is_empty() {
            return Some("0 percent of the requests are hit; write more, or disabled: true".to_owned());
        }
        let matched = self.matches.verbs();
        let is_possible = |choice: &&Choice| {
            let verbs = choice.suits.applicable_verbs();
            verbs.is_none_or(|verbs| verbs.iter().any(|verb| matched.contains(verb)))
        };
        if likely.iter().any(is_possible) {
            return None;
        }
        let applicable = likely
            .iter()
            .filter_map(|choice| choice.suits.applicable_verbs())
            .flatten();
        let applicable: Vec<&str> = applicable.map(|verb| verb_name(*verb)).collect();
        Some(format!(
            "the fault is for requests with the verb {}, and match has none of these; add one (a create has no name to match)",
            applicable.join(", ")
        ))
    }

    /// Whether the rule depends on the time since its first match.
    pub(crate) fn is_timed(&self) -> bool {
        self.limits.max_duration_ms.is_some() || matches!(self.plan, RulePlan::Stages { .. })
    }

    /// Whether the rule can reach a state in which it never fires again.
    pub(crate) fn can_end(&self) -> bool {
        let has_last_stage = matches!(self.plan, RulePlan::Stages { again_ms: None, .. });
        self.limits.max_count.is_some() || self.limits.max_duration_ms.is_some() || has_last_stage
    }

    /// Whether the rule may not fire any more after it has fired so often.
    pub(crate) fn is_exhausted(&self, fired: u64) -> bool {
        self.limits.max_count.is_some_and(|max| fired >= u64::from(max))
    }

    /// Whether the rule can have no effect any more at this time after its first match.
    pub(crate) fn is_over(&self, elapsed_ms: u64) -> bool {
        let is_past = |end: u64| elapsed_ms >= end;
        let last_stage = match &self.plan {
            RulePlan::Stages { stages, again_ms: None } => stages.last().map(|stage| u64::from(stage.until_ms)),
            _ => None,
        };
        self.limits.max_duration_ms.is_some_and(is_past) || last_stage.is_some_and(is_past)
    }

    /// The acts on a request at this time after the first match. `draw` is called at most once.
    pub(crate) fn choose_acts(
        &self,
        req: &dyn Request,
        elapsed_ms: u64,
        draw: impl FnOnce() -> Draw,
    ) -> Vec<Chosen<'_>> {
        let mut draws = Draws::Not(Some(draw));
        let mut chosen = Vec::new();
        match &self.plan {
            RulePlan::Together(choices) => {
                for (choice, number) in choices.iter().zip(0_u8..) {
                    if choice.suits.applies_to(req) && draws.is_hit(choice.purpose, choice.percent) {
                        chosen.push(draws.choose_act(number, &choice.act, u32::MAX));
                    }
                }
            }
            RulePlan::Stages { stages, again_ms } => {
                let position = again_ms.map_or(elapsed_ms, |again| elapsed_ms % u64::from(again.max(1)));
                let is_current = |stage: &Stage| position < u64::from(stage.until_ms);
                if let Some((stage, number)) = stages.iter().zip(0_u8..).find(|(stage, _)| is_current(stage)) {
                    let left_ms = u32::try_from(u64::from(stage.until_ms) - position).unwrap_or(u32::MAX);
                    if stage.suits.applies_to(req) && draws.is_hit("fault", stage.percent) {
                        chosen.push(draws.choose_act(number * 2, &stage.act, left_ms));
                    } else if let Some(otherwise) = &stage.otherwise {
                        chosen.push(draws.choose_act(number * 2 + 1, otherwise, left_ms));
                    }
                }
            }
        }
        chosen
    }

    pub(crate) fn act_at(&self, number: u8) -> Option<&Act> {
        match &self.plan {
            RulePlan::Together(choices) => choices.get(usize::from(number)).map(|choice| &choice.act),
            RulePlan::Stages { stages, .. } => {
                let stage = stages.get(usize::from(number / 2))?;
                if number.is_multiple_of(2) {
                    Some(&stage.act)
                } else {
                    stage.otherwise.as_ref()
                }
            }
        }
    }

    pub(crate) fn all_acts(&self) -> Vec<&Act> {
        match &self.plan {
            RulePlan::Together(choices) => choices.iter().map(|choice| &choice.act).collect(),
            RulePlan::Stages { stages, .. } => stages
                .iter()
                .flat_map(|stage| [Some(&stage.act), stage.otherwise.as_ref()])
                .flatten()
                .collect(),
        }
    }
}

/// Draws on demand: none for a fixed act with 0 or 100 percent.
enum Draws<F> {
    Not(Option<F>),
    Made(Draw),
}

impl<F: FnOnce() -> Draw> Draws<F> {
    fn get_draw(&mut self) -> Option<Draw> {
        if let Self::Not(draw) = self {
            *self = Self::Made(draw.take()?());
        }
        match self {
            Self::Made(draw) => Some(*draw),
            Self::Not(_) => None,
        }
    }

    fn is_hit(&mut self, purpose: &str, percent: f64) -> bool {
        let is_sure = percent >= 100.0;
        is_sure || percent > 0.0 && self.get_draw().is_some_and(|draw| draw.is_hit(purpose, percent))
    }

    fn choose_act<'a>(&mut self, number: u8, act: &'a Act, left_ms: u32) -> Chosen<'a> {
        let unit = if act.is_random() {
            self.get_draw().map_or(0.0, |draw| draw.unit_number("wait"))
        } else {
            0.0
        };
        Chosen {
            number,
            act,
            unit,
            left_ms,
        }
    }
}
