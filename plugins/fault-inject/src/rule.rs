//! One rule in force: whether it wants a request, and what it does to it.

use ctrlmesh_plugin_rules::{Rules, verb_name};
use ctrlmesh_sdk::Request;

use crate::catalogue::Stage;
use crate::draw::Draw;
use crate::fault::{Act, Suits};
use crate::window::Window;

/// One rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// Where it is written: `httpFault[0]`.
    pub(crate) place: String,
    /// Tells it from the rule that has its place after a change.
    pub(crate) mark: u16,
    pub(crate) matches: Rules,
    pub(crate) window: Option<Window>,
    pub(crate) select: Select,
    pub(crate) limits: Limits,
    pub(crate) plan: Plan,
}

/// Which of the matching requests, by their number (1 is the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    All,
    Nth(u32),
    Every(u32),
    First(u32),
}

/// When a rule has done enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) max_count: Option<u32>,
    pub(crate) max_duration_ms: Option<u64>,
    pub(crate) max_active: Option<u32>,
}

/// What happens.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Each is drawn on its own.
    Together(Vec<Choice>),
    Stages {
        stages: Vec<Stage>,
        again_ms: Option<u32>,
    },
}

/// An act and how often it happens.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) act: Act,
    pub(crate) suits: Suits,
    pub(crate) percent: f64,
    /// Keeps the draws of one rule apart.
    pub(crate) purpose: &'static str,
}

/// An act that is to happen.
pub(crate) struct Chosen<'a> {
    /// Its number in the rule, for [`Rule::act`].
    pub(crate) number: u8,
    pub(crate) act: &'a Act,
    /// Drawn for it, from 0 up to 1.
    pub(crate) unit: f64,
    /// Milliseconds until its stage ends.
    pub(crate) left_ms: u32,
}

impl Select {
    /// Whether it takes the request of this number; 0 is one that the host did not count.
    pub(crate) fn takes(self, number: u64) -> bool {
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
    /// Whether a request at this moment (milliseconds since 1970) is meant, and one of the rule's acts can still hit it.
    /// `has_room`: nobody else has decided what this act would.
    pub(crate) fn wants(&self, req: &dyn Request, unix_ms: u64, has_room: impl Fn(&Act) -> bool) -> bool {
        let can_hit = match &self.plan {
            Plan::Together(choices) => {
                let mut choices = choices.iter();
                choices.any(|choice| choice.suits.includes(req) && has_room(&choice.act))
            }
            Plan::Stages { stages, .. } => stages.iter().any(|stage| {
                let otherwise = stage.otherwise.as_ref();
                stage.suits.includes(req) && has_room(&stage.act) || otherwise.is_some_and(&has_room)
            }),
        };
        can_hit && self.window.is_none_or(|window| window.is_open(unix_ms)) && self.matches.matches(req)
    }

    /// Why no request can ever be hit; `None`: some can.
    pub(crate) fn idle(&self) -> Option<String> {
        let Plan::Together(choices) = &self.plan else {
            return None;
        };
        let likely: Vec<&Choice> = choices.iter().filter(|choice| choice.percent > 0.0).collect();
        if likely.is_empty() {
            return Some("0 percent of the requests are hit; write more, or disabled: true".to_owned());
        }
        let matched = self.matches.verbs();
        let is_possible = |choice: &&Choice| {
            let verbs = choice.suits.verbs();
            verbs.is_none_or(|verbs| verbs.iter().any(|verb| matched.contains(verb)))
        };
        if likely.iter().any(is_possible) {
            return None;
        }
        let wanted = likely.iter().filter_map(|choice| choice.suits.verbs()).flatten();
        let wanted: Vec<&str> = wanted.map(|verb| verb_name(*verb)).collect();
        Some(format!(
            "the fault is for requests with the verb {}, and match has none of these; add one (a create has no name to match)",
            wanted.join(", ")
        ))
    }

    /// Whether it has to know how long ago its first match was.
    pub(crate) fn is_timed(&self) -> bool {
        self.limits.max_duration_ms.is_some() || matches!(self.plan, Plan::Stages { .. })
    }

    /// Whether nothing can happen any more, so many milliseconds after the first match.
    pub(crate) fn is_over(&self, elapsed_ms: u64) -> bool {
        let is_past = |end: u64| elapsed_ms >= end;
        let last_stage = match &self.plan {
            Plan::Stages { stages, again_ms: None } => stages.last().map(|stage| u64::from(stage.until_ms)),
            _ => None,
        };
        self.limits.max_duration_ms.is_some_and(is_past) || last_stage.is_some_and(is_past)
    }

    /// What happens to a request, so many milliseconds after the first match. `draw` is asked at most once.
    pub(crate) fn choose(&self, req: &dyn Request, elapsed_ms: u64, draw: impl FnOnce() -> Draw) -> Vec<Chosen<'_>> {
        let mut draws = Draws::Not(Some(draw));
        let mut chosen = Vec::new();
        match &self.plan {
            Plan::Together(choices) => {
                for (choice, number) in choices.iter().zip(0_u8..) {
                    if choice.suits.includes(req) && draws.happens(choice.purpose, choice.percent) {
                        chosen.push(draws.chosen(number, &choice.act, u32::MAX));
                    }
                }
            }
            Plan::Stages { stages, again_ms } => {
                let position = again_ms.map_or(elapsed_ms, |again| elapsed_ms % u64::from(again.max(1)));
                let is_current = |stage: &Stage| position < u64::from(stage.until_ms);
                if let Some((stage, number)) = stages.iter().zip(0_u8..).find(|(stage, _)| is_current(stage)) {
                    let left_ms = u32::try_from(u64::from(stage.until_ms) - position).unwrap_or(u32::MAX);
                    if stage.suits.includes(req) && draws.happens("fault", stage.percent) {
                        chosen.push(draws.chosen(number * 2, &stage.act, left_ms));
                    } else if let Some(otherwise) = &stage.otherwise {
                        chosen.push(draws.chosen(number * 2 + 1, otherwise, left_ms));
                    }
                }
            }
        }
        chosen
    }

    /// The act of a number.
    pub(crate) fn act(&self, number: u8) -> Option<&Act> {
        match &self.plan {
            Plan::Together(choices) => choices.get(usize::from(number)).map(|choice| &choice.act),
            Plan::Stages { stages, .. } => {
                let stage = stages.get(usize::from(number / 2))?;
                if number.is_multiple_of(2) {
                    Some(&stage.act)
                } else {
                    stage.otherwise.as_ref()
                }
            }
        }
    }

    /// Every act that it has.
    pub(crate) fn acts(&self) -> Vec<&Act> {
        match &self.plan {
            Plan::Together(choices) => choices.iter().map(|choice| &choice.act).collect(),
            Plan::Stages { stages, .. } => stages
                .iter()
                .flat_map(|stage| [Some(&stage.act), stage.otherwise.as_ref()])
                .flatten()
                .collect(),
        }
    }
}

/// Draws that are made when they are needed: never for 0 and 100 percent of a fixed act.
enum Draws<F> {
    Not(Option<F>),
    Made(Draw),
}

impl<F: FnOnce() -> Draw> Draws<F> {
    fn get(&mut self) -> Option<Draw> {
        if let Self::Not(draw) = self {
            *self = Self::Made(draw.take()?());
        }
        match self {
            Self::Made(draw) => Some(*draw),
            Self::Not(_) => None,
        }
    }

    fn happens(&mut self, purpose: &str, percent: f64) -> bool {
        let is_sure = percent >= 100.0;
        is_sure || percent > 0.0 && self.get().is_some_and(|draw| draw.happens(purpose, percent))
    }

    fn chosen<'a>(&mut self, number: u8, act: &'a Act, left_ms: u32) -> Chosen<'a> {
        let unit = if act.is_random() {
            self.get().map_or(0.0, |draw| draw.unit("wait"))
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
