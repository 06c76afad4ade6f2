//! A configured plugin on a fake host.

use super::audit::Audits;
use super::host::FakeHost;
use super::matcher;
use super::request::{TestRequest, TestResponse};
use crate::{InstanceInfo, Outcome, Plugin, RequestVerdict, ResponseVerdict, Subscription, settings};

/// An instance's identity for tests: entry `test`, pod `operator-0` in namespace `operators`.
#[must_use]
pub fn test_instance_info() -> InstanceInfo {
    InstanceInfo {
        entry: "test".to_owned(),
        digest: format!("sha256:{}", "0".repeat(64)),
        pod_namespace: "operators".to_owned(),
        pod_name: "operator-0".to_owned(),
        host_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// A configured plugin on a fake host.
pub struct Bench<P> {
    /// The host that the plugin sees.
    pub host: FakeHost,
    /// The subscription that `configure` returned.
    pub subscription: Subscription,
    /// The plugin that `configure` returned.
    pub plugin: P,
    audits: Audits,
}

impl<P: Plugin> Bench<P> {
    /// Configures a plugin as the host would, from the JSON text of its settings.
    ///
    /// # Errors
    ///
    /// The error of `configure`, exactly as `/status` would show it.
    pub fn new(settings: &str) -> Result<Self, String> {
        Self::on(FakeHost::default(), settings, &test_instance_info())
    }

    /// As [`Bench::new`], on this host and under this identity. On the host of another bench, it is the next chain: with other
    /// settings, outcomes of requests from before are not counted once one under these settings was.
    ///
    /// # Errors
    ///
    /// As [`Bench::new`].
    pub fn on(host: FakeHost, settings: &str, about: &InstanceInfo) -> Result<Self, String> {
        host.begin_settings(settings);
        let settings = settings::parse(settings)?;
        let (plugin, subscription) = host.while_configuring(|| P::configure(settings, about, &host))?;
        Ok(Self {
            host,
            subscription,
            plugin,
            audits: Audits::default(),
        })
    }

    /// Whether the host would call the plugin for this request at all.
    #[must_use]
    pub fn wakes(&self, req: &TestRequest) -> bool {
        matcher::matches(&self.subscription, req)
    }

    /// Calls `on_request`, whether subscribed or not.
    ///
    /// If a host may give the verdict again ([`RequestVerdict::reusable`]), the plugin is asked a second time. Everything
    /// that the first call did not read is different then: facts, headers, query parameters and cells. For a verdict that
    /// holds until a moment, the time is just before it. The second call works on copies of the request and of the host, so
    /// that only the plugin's own memory shows that there was one. `bench.plugin.on_request(&req, &bench.host)` asks once.
    ///
    /// # Panics
    ///
    /// The second call decides, does or reads something else, or this call contradicts a verdict that an earlier one marked
    /// as reusable. The plugin depends on something that it did not read through the host in this call. Writing, logging,
    /// drawing a random number, and not marking the verdict again are contradictions, too; the mark may end with its time.
    ///
    /// An outcome rule is invalid, as for [`FakeHost::keep_verdict`].
    #[expect(clippy::panic, reason = "it fails the test of a plugin that is wrong")]
    #[track_caller]
    pub fn on_request(&mut self, req: &TestRequest) -> RequestVerdict {
        self.host.cell_log.forget_reads();
        match self.audits.call(&mut self.plugin, req, &self.host) {
            Ok(verdict) => {
                self.host.keep_verdict(req, &verdict);
                verdict
            }
            Err(contradiction) => panic!("{contradiction}"),
        }
    }

    /// Calls `on_response`, whether subscribed or not; [`respond`](Self::respond) does all that a host does.
    pub fn on_response(&mut self, req: &TestRequest, res: &TestResponse) -> ResponseVerdict {
        let verdict = self.plugin.on_response(req, res, &self.host);
        self.host.cell_log.forget_reads();
        verdict
    }

    /// Calls `on_complete`, whether subscribed or not; [`finish`](Self::finish) does all that a host does.
    pub fn on_complete(&mut self, req: &TestRequest, outcome: &Outcome) {
        self.plugin.on_complete(req, outcome, &self.host);
        self.host.cell_log.forget_reads();
    }
}
