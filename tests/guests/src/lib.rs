//! Shared by the test guests: a plugin that acts once in the phase that its settings name. The guests themselves are the files in
//! `examples/`, listed in README.md.

pub mod script;

use ctrlmesh_sdk::{
    Crossing, Host, InstanceInfo, MatchRule, ObjectMetadata, Outcome, OutcomeRule, Phases, Plugin, Request,
    RequestEdit, RequestVerdict, ResponseHead, ResponseVerdict, Subscription, Verb,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub const ALL_PHASES: Phases = Phases::all();

/// A subscription to every request, in every phase.
#[must_use]
pub fn subscribe_to_everything() -> Subscription {
    Subscription::new(ALL_PHASES, [MatchRule::any()])
}

/// The phase in which to act: the setting `in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// When the plugin is configured.
    Configure,
    /// When a request head arrives.
    OnRequest,
    /// When a response head arrives.
    OnResponse,
    /// When objects of a list or a watch arrive.
    OnObjects,
    /// When a request is over.
    OnComplete,
    /// When a request has failed.
    OnCrossed,
}

/// The act of a guest. The guest's own settings are beside `in`.
pub trait Act: DeserializeOwned + 'static {
    /// May never return.
    fn act(&self, host: &dyn Host);
}

/// A plugin that acts in one phase and lets all requests pass in the others.
pub struct ActingPlugin<A> {
    phase: Phase,
    act: A,
}

/// The settings of [`ActingPlugin`].
#[derive(Deserialize)]
pub struct Settings<A> {
    #[serde(rename = "in")]
    phase: Phase,
    #[serde(flatten)]
    act: A,
}

impl<A: Act> ActingPlugin<A> {
    fn act_in(&self, phase: Phase, host: &dyn Host) {
        if self.phase == phase {
            self.act.act(host);
        }
    }
}

impl<A: Act> Plugin for ActingPlugin<A> {
    type Settings = Settings<A>;

    fn configure(settings: Self::Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let acting = Self {
            phase: settings.phase,
            act: settings.act,
        };
        acting.act_in(Phase::Configure, host);
        Ok((acting, subscribe_to_everything()))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        self.act_in(Phase::OnRequest, host);
        let verdict = RequestVerdict::proceed();
        match self.phase {
            Phase::OnCrossed => verdict.count_outcome(OutcomeRule::new("failures").consecutive_failures(1)),
            Phase::OnObjects if matches!(req.verb(), Verb::List | Verb::Watch) => {
                RequestVerdict::edit([RequestEdit::ask_about_objects([""; 0])])
            }
            _ => verdict,
        }
    }

    fn on_response(&mut self, _: &dyn Request, _: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        self.act_in(Phase::OnResponse, host);
        ResponseVerdict::proceed()
    }

    fn on_objects(&mut self, _: &dyn Request, objects: &[ObjectMetadata], host: &dyn Host) -> Vec<bool> {
        self.act_in(Phase::OnObjects, host);
        vec![true; objects.len()]
    }

    fn on_complete(&mut self, _: &dyn Request, _: &Outcome, host: &dyn Host) {
        self.act_in(Phase::OnComplete, host);
    }

    fn on_crossed(&mut self, _: &[Crossing], host: &dyn Host) {
        self.act_in(Phase::OnCrossed, host);
    }
}
