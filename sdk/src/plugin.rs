//! The trait that a plugin implements. How its functions reach the component's exports is `export`'s.

use serde::de::DeserializeOwned;

use crate::{
    Crossing, Host, InstanceInfo, ObjectMetadata, Outcome, Request, RequestVerdict, ResponseHead, ResponseVerdict,
    Subscription,
};

/// A plugin. One value lives in each instance, and the host runs one instance per worker thread: what instances must share
/// belongs into the host's state (see [`Host::take`] and its neighbours), not into `self`.
///
/// The host calls the functions of one instance one after another. Each call has a deadline (default 10 ms). A panic is a
/// trap: it costs this instance, and the request follows the entry's failure policy.
pub trait Plugin: Sized + 'static {
    /// The entry's `settings`. Derive `serde::Deserialize`; add `#[serde(deny_unknown_fields)]` if a misspelt field shall
    /// be refused (recommended). Missing settings arrive as `{}`. A plugin without settings
    /// names [`crate::settings::NoSettings`].
    type Settings: DeserializeOwned;

    /// Makes an instance and says what it wants to see. Work that can be done once belongs here.
    ///
    /// # Errors
    ///
    /// A text that says which setting is wrong and what to write instead. The whole new chain is refused with it, and the
    /// last good one stays in force. [`crate::settings::Invalid`] builds such texts.
    fn configure(
        settings: Self::Settings,
        about: &InstanceInfo,
        host: &dyn Host,
    ) -> Result<(Self, Subscription), String>;

    /// A request head is complete and nothing has been sent upstream.
    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let _ = (req, host);
        RequestVerdict::proceed()
    }

    /// A response head came back.
    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        let _ = (req, res, host);
        ResponseVerdict::proceed()
    }

    /// Objects of the response to a list or a watch have arrived, and the verdict on the request asks about them
    /// ([`RequestEdit::ask_about_objects`](crate::RequestEdit::ask_about_objects)). Returns a flag for each, in their order: whether the
    /// client gets it.
    ///
    /// After a panic, or with another number of flags, the response ends with an error, also if the entry is open on failure. So it
    /// does by default, because a plugin that asks has to decide.
    fn on_objects(&mut self, req: &dyn Request, objects: &[ObjectMetadata], host: &dyn Host) -> Vec<bool> {
        let _ = (req, objects, host);
        Vec::new()
    }

    /// The request is over, whatever happened.
    fn on_complete(&mut self, req: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        let _ = (req, outcome, host);
    }

    /// Tallies have reached thresholds of the outcome rules that verdicts had ([`RequestVerdict::count_outcome`]). `wit/plugin.wit`
    /// says how often this is called.
    fn on_crossed(&mut self, crossings: &[Crossing], host: &dyn Host) {
        let _ = (crossings, host);
    }
}
