//! Step 8: the API server fails and breakers open, sending only probes; it recovers, they close, and all changes are handled.

use ctrlmesh_testkit::{Fault, Rule, RuleId};

use crate::demo::checks::Expected::{AtLeast, AtMost, Exactly};
use crate::demo::observations::{Observations, SidecarObservations};
use crate::demo::plugin_documents::{self, CIRCUIT_BREAKER_ENTRY};
use crate::demo::scenario::Scenario;
use crate::demo::widget::PLURAL;
use crate::error::Error;

const STEP: usize = 8;

/// Name of the rule in `circuit-breaker.yaml`, and key of its breaker's report.
const RULE: &str = "status-writes";

/// Per sidecar: the consecutive failures that open its breaker, plus the other write that a controller with two workers has in flight.
const TRIP: u64 = 2 * (5 + 1);

/// Probes per breaker before the API server recovers.
const PROBES: u64 = 1;

/// Requests during the outage, counted up to one moment.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// Failed by the API server.
    seen: u64,
    /// Let through by the breakers as probes.
    probed: u64,
    /// Refused by the breakers.
    refused: u64,
}

impl Scenario<'_> {
    pub(super) async fn break_circuit(&mut self) -> Result<(), Error> {
        self.begin_step(STEP, "it becomes a breaker; then the API server fails every write");
        self.add_plugin_object(plugin_documents::circuit_breaker_document()?, CIRCUIT_BREAKER_ENTRY)
            .await?;
        let broken = Fault::Status {
            code: 500,
            retry_after: None,
        };
        let outage = self
            .env
            .server_faults()
            .add(Rule::new(broken).verb("patch").resource(PLURAL));
        self.env.start_burst();
        self.wait_for_breakers("Opened").await?;
        let opened = self
            .observations()
            .with_observations(|observations| count_breakers(observations, "Opened"));
        self.record_check(STEP, "breakers open, by /status", Exactly(2), opened);
        let reported = self.open_breakers_in_status().await?;
        self.record_check(STEP, "breakers open, by the object's status", Exactly(2), reported);
        self.note_event(STEP, "both breakers are open: the API server is left alone");
        self.watch_outage(outage).await?;
        self.env.server_faults().remove(outage);
        self.note_event(STEP, "the API server recovers; a probe will find out");
        self.wait_for_breakers("Closed").await?;
        self.wait_until_all_handled(|_| {}).await?;
        self.wait_for_recovery(outage).await
    }

    /// Watches the outage from the end of the last earlier request until each breaker has probed.
    async fn watch_outage(&mut self, outage: RuleId) -> Result<(), Error> {
        let faults = self.env.server_faults().clone();
        self.wait_until_status(
            "what was let through before has reached the API server",
            |observations| {
                let let_through = plugin_count(observations, "passed") + plugin_count(observations, "probed");
                let seen = faults.times_applied(outage);
                (seen == let_through)
                    .then_some(())
                    .ok_or_else(|| format!("{seen} of {let_through} have"))
            },
        )
        .await?;
        let start = self.count_outage(outage).await?;
        let before = self
            .observations()
            .with_observations(|observations| observations.sidecars.both().map(probe_count));
        self.wait_until_status("each breaker has probed", |observations| {
            let now = observations.sidecars.both().map(probe_count);
            let has_probed = before.iter().zip(now).all(|(before, now)| now >= before + PROBES);
            has_probed.then_some(()).ok_or_else(|| format!("probes: {now:?}"))
        })
        .await?;
        let end = self.count_outage(outage).await?;
        self.record_check(
            STEP,
            "writes that failed before both were open",
            AtMost(TRIP),
            start.seen.saturating_sub(start.probed),
        );
        let probes = end.probed - start.probed;
        let beyond = (end.seen - start.seen).saturating_sub(probes);
        self.record_check(STEP, "probes while the API server failed", AtLeast(2 * PROBES), probes);
        self.record_check(
            STEP,
            "other writes that it saw while they were open",
            Exactly(0),
            beyond,
        );
        Ok(())
    }

    async fn wait_for_recovery(&mut self, outage: RuleId) -> Result<(), Error> {
        let now = self.count_outage(outage).await?;
        let (closed, behind) = self.observations().with_observations(|observations| {
            (
                count_breakers(observations, "Closed"),
                observations.audit.pending_changes(),
            )
        });
        self.record_check(
            STEP,
            "writes that the breakers refused in its place",
            AtLeast(2),
            now.refused,
        );
        self.record_check(STEP, "breakers closed again, by /status", Exactly(2), closed);
        self.record_check(
            STEP,
            "changes during the outage that were never handled",
            Exactly(0),
            behind,
        );
        let text = format!("{} writes failed, {} refused; all caught up", now.seen, now.refused);
        self.end_step(STEP, &text).await;
        Ok(())
    }

    /// Waits until the manager has reported both breakers in the object's status. Returns how many of them it reports as open.
    async fn open_breakers_in_status(&self) -> Result<u64, Error> {
        let name = plugin_documents::breaker_name();
        self.wait_until(
            "the CircuitBreaker's status shows both breakers open",
            |_, observations| {
                let opened = observations
                    .objects
                    .get(&name.kind, &name.name)
                    .map_or(0, |known| known.opened);
                (opened >= 2)
                    .then_some(opened)
                    .ok_or_else(|| format!("opened: {opened}"))
            },
        )
        .await
    }

    async fn wait_for_breakers(&self, state: &str) -> Result<(), Error> {
        self.wait_until_status(&format!("both breakers are {state}"), |observations| {
            let found = count_breakers(observations, state);
            (found == 2).then_some(()).ok_or_else(|| format!("{found} of 2 are"))
        })
        .await
    }

    /// Reads what the API server saw first, so that a probe in between can't be taken for another request.
    async fn count_outage(&self, outage: RuleId) -> Result<Outage, Error> {
        let seen = self.env.server_faults().times_applied(outage);
        self.env.ask_sidecars().await?;
        Ok(self.observations().with_observations(|observations| Outage {
            seen,
            probed: plugin_count(observations, "probed"),
            refused: plugin_count(observations, "refused"),
        }))
    }
}

fn count_breakers(observations: &Observations, state: &str) -> u64 {
    observations.sum_sidecars(|sidecar| {
        let report = sidecar.plugin_report(CIRCUIT_BREAKER_ENTRY, RULE);
        let is_so = report
            .and_then(|report| report.get("state"))
            .is_some_and(|found| found == state);
        u64::from(is_so)
    })
}

fn plugin_count(observations: &Observations, name: &str) -> u64 {
    observations.sum_sidecars(|sidecar| sidecar.own.count_of(CIRCUIT_BREAKER_ENTRY, name))
}

fn probe_count(sidecar: &SidecarObservations) -> u64 {
    sidecar.own.count_of(CIRCUIT_BREAKER_ENTRY, "probed")
}
