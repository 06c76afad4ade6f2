//! The story as far as it has been told: its steps, and what came of each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// The titles of the steps, in order. Steps are numbered from 1.
pub(crate) const TITLES: [&str; 10] = [
    "no rules",
    "shard by namespace",
    "move two namespaces",
    "replace the plugin's code",
    "swap in a crashing plugin",
    "take it out, count",
    "limit the rate",
    "break the circuit",
    "inject faults",
    "spoil chain and object",
];

/// How a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StepState {
    #[default]
    Waiting,
    Running,
    Done,
    Failed,
    /// Nothing follows from it: the machine was too slow.
    Inconclusive,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) title: &'static str,
    pub(crate) state: StepState,
    /// What happens, or what came of it.
    pub(crate) detail: String,
    /// How long it took.
    pub(crate) seconds: f64,
    #[serde(skip)]
    pub(crate) began: Option<Instant>,
}

/// The steps; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    began: Instant,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Stage {
    /// Nothing has been told yet.
    pub(crate) fn new() -> Self {
        let steps = TITLES.map(|title| Step {
            title,
            ..Step::default()
        });
        Self {
            began: Instant::now(),
            steps: Arc::new(Mutex::new(steps.into())),
        }
    }

    /// For how long a step has been under way.
    pub(crate) fn since(&self, number: usize) -> Duration {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let step = number.checked_sub(1).and_then(|at| steps.get(at));
        step.and_then(|step| step.began)
            .map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The steps now.
    pub(crate) fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A step begins.
    pub(crate) fn begin(&self, number: usize) {
        self.change(number, |step| {
            step.state = StepState::Running;
            step.began = Some(Instant::now());
        });
    }

    /// What happens in a step.
    pub(crate) fn detail(&self, number: usize, detail: &str) {
        self.change(number, |step| detail.clone_into(&mut step.detail));
    }

    /// A step is over.
    pub(crate) fn end(&self, number: usize, state: StepState, detail: &str) {
        self.change(number, |step| {
            step.state = state;
            step.seconds = step.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
            detail.clone_into(&mut step.detail);
        });
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Step)) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = number.checked_sub(1).and_then(|at| steps.get_mut(at)) {
            change(step);
        }
    }
}
