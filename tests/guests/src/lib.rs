//! What the test guests share: a plugin that does one act in the phase that its settings name. The guests themselves are
//! the files in `examples/`; README.md has the list.

pub mod script;

use ctrlmesh_sdk::{
    Host, InstanceInfo, MatchRule, Outcome, Phases, Plugin, Request, RequestVerdict, ResponseHead, ResponseVerdict,
    Subscription,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// All phases.
pub const ALL_PHASES: Phases = Phases::all();

/// A subscription to every request, in every phase.
#[must_use]
pub fn everything() -> Subscription {
    Subscription::new(ALL_PHASES, [MatchRule::any()])
}

/// When to act: the setting `in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// While it is configured.
    Configure,
    /// When a request head is there.
    OnRequest,
    /// When a response head is there.
    OnResponse,
    /// When a request is over.
    OnComplete,
}

/// One act. Its own settings stand beside `in`.
pub trait Act: DeserializeOwned + 'static {
    /// Does it. May never return.
    fn act(&self, host: &dyn Host);
}

/// The plugin that acts in one phase and lets everything pass in the others.
pub struct Acting<A> {
    phase: Phase,
    act: A,
}

/// The settings of [`Acting`].
#[derive(Deserialize)]
pub struct Settings<A> {
    #[serde(rename = "in")]
    phase: Phase,
    #[serde(flatten)]
    act: A,
}

impl<A: Act> Acting<A> {
    fn at(&self, phase: Phase, host: &dyn Host) {
        if self.phase == phase {
            self.act.act(host);
        }
    }
}

impl<A: Act> Plugin for Acting<A> {
    type Settings = Settings<A>;

    fn configure(settings: Self::Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let acting = Self {
            phase: settings.phase,
            act: settings.act,
        };
        acting.at(Phase::Configure, host);
        Ok((acting, everything()))
    }

    fn on_request(&mut self, _: &dyn Request, host: &dyn Host) -> RequestVerdict {
        self.at(Phase::OnRequest, host);
        RequestVerdict::proceed()
    }

    fn on_response(&mut self, _: &dyn Request, _: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        self.at(Phase::OnResponse, host);
        ResponseVerdict::proceed()
    }

    fn on_complete(&mut self, _: &dyn Request, _: &Outcome, host: &dyn Host) {
        self.at(Phase::OnComplete, host);
    }
}
