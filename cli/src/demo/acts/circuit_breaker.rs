//! The API server fails: breakers open and leave it alone but for their probes; it recovers, they close, all is caught up.

use ctrlmesh_testkit::{Fault, Rule, RuleId};

use crate::demo::added::{self, CIRCUIT_BREAKER_ENTRY};
use crate::demo::claims::Expected::{AtLeast, AtMost, Exactly};
use crate::demo::facts::{Facts, SidecarFacts};
use crate::demo::story::Story;
use crate::demo::widget::PLURAL;
use crate::error::Error;

const STEP: usize = 8;

/// Name of the rule in `circuit-breaker.yaml`: its breaker's report goes by it.
const RULE: &str = "status-writes";

/// Of each sidecar: the failures in a row that open its breaker, and the other write that a controller of two workers has under way.
const TRIP: u64 = 2 * (5 + 1);

/// Probes that each breaker sends before the API server recovers.
const PROBES: u64 = 1;

/// Requests at one moment of the outage.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// That the API server failed.
    seen: u64,
    /// That breakers let through as probes.
    probed: u64,
    /// That breakers refused.
    refused: u64,
}

impl Story<'_> {
    /// Step 8: the API server fails and recovers.
    pub(super) async fn break_circuit(&mut self) -> Result<(), Error> {
        self.begin(STEP, "it becomes a breaker; then the API server fails every write");
        self.add(added::circuit_breaker()?, CIRCUIT_BREAKER_ENTRY).await?;
        let broken = Fault::Status {
            code: 500,
            retry_after: None,
        };
        let outage = self
            .world
            .server_faults()
            .add(Rule::new(broken).verb("patch").resource(PLURAL));
        self.world.start_burst();
        self.breakers("Opened").await?;
        let opened = self.facts().with(|facts| breakers(facts, "Opened"));
        self.claim(STEP, "breakers open, by /status", Exactly(2), opened);
        let told = self.told_of_breakers().await?;
        self.claim(STEP, "breakers open, by the object's status", Exactly(2), told);
        self.note(STEP, "both breakers are open: the API server is left alone");
        self.left_alone(outage).await?;
        self.world.server_faults().remove(outage);
        self.note(STEP, "the API server recovers; a probe will find out");
        self.breakers("Closed").await?;
        self.all_handled(|_| {}).await?;
        self.recovered(outage).await
    }

    /// Watches the outage from when nothing is under way any more until each breaker has probed.
    async fn left_alone(&mut self, outage: RuleId) -> Result<(), Error> {
        let faults = self.world.server_faults().clone();
        self.until_status("what was let through before has reached the API server", |facts| {
            let let_through = own(facts, "passed") + own(facts, "probed");
            let seen = faults.hits(outage);
            (seen == let_through)
                .then_some(())
                .ok_or_else(|| format!("{seen} of {let_through} have"))
        })
        .await?;
        let start = self.outage(outage).await?;
        let before = self.facts().with(|facts| facts.sidecars.both().map(probed));
        self.until_status("each breaker has probed", |facts| {
            let now = facts.sidecars.both().map(probed);
            let has_probed = before.iter().zip(now).all(|(before, now)| now >= before + PROBES);
            has_probed.then_some(()).ok_or_else(|| format!("probes: {now:?}"))
        })
        .await?;
        let end = self.outage(outage).await?;
        self.claim(
            STEP,
            "writes that failed before both were open",
            AtMost(TRIP),
            start.seen.saturating_sub(start.probed),
        );
        let probes = end.probed - start.probed;
        let beyond = (end.seen - start.seen).saturating_sub(probes);
        self.claim(STEP, "probes while the API server failed", AtLeast(2 * PROBES), probes);
        self.claim(
            STEP,
            "other writes that it saw while they were open",
            Exactly(0),
            beyond,
        );
        Ok(())
    }

    /// Everything is well again.
    async fn recovered(&mut self, outage: RuleId) -> Result<(), Error> {
        let now = self.outage(outage).await?;
        let (closed, behind) = self
            .facts()
            .with(|facts| (breakers(facts, "Closed"), facts.ledger.behind()));
        self.claim(
            STEP,
            "writes that the breakers refused in its place",
            AtLeast(2),
            now.refused,
        );
        self.claim(STEP, "breakers closed again, by /status", Exactly(2), closed);
        self.claim(
            STEP,
            "changes during the outage that were never handled",
            Exactly(0),
            behind,
        );
        let text = format!("{} writes failed, {} refused; all caught up", now.seen, now.refused);
        self.end(STEP, &text).await;
        Ok(())
    }

    /// Waits until the manager has put both breakers into the object's status. Returns how many it says are open.
    async fn told_of_breakers(&self) -> Result<u64, Error> {
        let name = added::breaker();
        self.until("the CircuitBreaker's status shows both breakers open", |_, facts| {
            let opened = facts
                .objects
                .get(&name.kind, &name.name)
                .map_or(0, |known| known.opened);
            (opened >= 2)
                .then_some(opened)
                .ok_or_else(|| format!("opened: {opened}"))
        })
        .await
    }

    async fn breakers(&self, state: &str) -> Result<(), Error> {
        self.until_status(&format!("both breakers are {state}"), |facts| {
            let found = breakers(facts, state);
            (found == 2).then_some(()).ok_or_else(|| format!("{found} of 2 are"))
        })
        .await
    }

    /// The numbers now. What the API server saw is read first: a probe that comes in between can't look like something else.
    async fn outage(&self, outage: RuleId) -> Result<Outage, Error> {
        let seen = self.world.server_faults().hits(outage);
        self.world.ask_sidecars().await?;
        Ok(self.facts().with(|facts| Outage {
            seen,
            probed: own(facts, "probed"),
            refused: own(facts, "refused"),
        }))
    }
}

/// Sidecars whose breaker is in this state.
fn breakers(facts: &Facts, state: &str) -> u64 {
    facts.sidecars(|sidecar| {
        let report = sidecar.report(CIRCUIT_BREAKER_ENTRY, RULE);
        let is_so = report
            .and_then(|report| report.get("state"))
            .is_some_and(|found| found == state);
        u64::from(is_so)
    })
}

fn own(facts: &Facts, name: &str) -> u64 {
    facts.sidecars(|sidecar| sidecar.own.of(CIRCUIT_BREAKER_ENTRY, name))
}

fn probed(sidecar: &SidecarFacts) -> u64 {
    sidecar.own.of(CIRCUIT_BREAKER_ENTRY, "probed")
}
