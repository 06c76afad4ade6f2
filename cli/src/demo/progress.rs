//! The progress of the demo: its steps and the result of each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// Titles of the steps, numbered from 1.
pub(crate) const TITLES: [&str; 12] = [
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
    "shard by a hash of UIDs",
    "refuse a late write",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StepState {
    #[default]
    Waiting,
    Running,
    Done,
    Failed,
    /// Inconclusive: the machine was too slow.
    Inconclusive,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub(crate) title: &'static str,
    pub(crate) state: StepState,
    /// The current event, or the result.
    pub(crate) detail: String,
    pub(crate) seconds: f64,
    #[serde(skip)]
    pub(crate) began: Option<Instant>,
}

/// Clones share the steps.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    began: Instant,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Progress {
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

    pub(crate) fn elapsed_in_step(&self, number: usize) -> Duration {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let step = number.checked_sub(1).and_then(|at| steps.get(at));
        step.and_then(|step| step.began)
            .map_or(Duration::ZERO, |began| began.elapsed())
    }

    pub(crate) fn elapsed_seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn begin_step(&self, number: usize) {
        self.update_step(number, |step| {
            step.state = StepState::Running;
            step.began = Some(Instant::now());
        });
    }

    pub(crate) fn set_detail(&self, number: usize, detail: &str) {
        self.update_step(number, |step| detail.clone_into(&mut step.detail));
    }

    pub(crate) fn end_step(&self, number: usize, state: StepState, detail: &str) {
        self.update_step(number, |step| {
            step.state = state;
            step.seconds = step.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
            detail.clone_into(&mut step.detail);
        });
    }

    fn update_step(&self, number: usize, change: impl FnOnce(&mut Step)) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = number.checked_sub(1).and_then(|at| steps.get_mut(at)) {
            change(step);
        }
    }
}
