//! Tools of all steps: to begin and end, to log events, to wait with a deadline, and to count what happened in between. The
//! steps themselves are in [`super::steps`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::applied_objects::{Applied, ObjectName};
use super::audit::AllowedOwner;
use super::checks::{Checks, Expected, Outcome};
use super::cpu_monitor::CpuMonitor;
use super::environment::DemoEnv;
use super::observations::{Observations, SharedObservations};
use super::progress::{Progress, StepState};
use super::replica::Replica;
use super::report;
use super::screen::Screen;
use super::sharding_plan::{Image, Shard};
use super::sidecar;
use super::widget::NAMESPACES;
use crate::error::Error;

/// Longest wait of the demo. Compiling a plugin in a debug build on a busy machine takes longest.
const PATIENCE: Duration = Duration::from_secs(30);

/// Interval between two checks of a condition.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// A run of the demo.
pub(crate) struct Scenario<'a> {
    pub(crate) env: DemoEnv,
    /// How the sidecars of steps 11 and 12 are started.
    pub(crate) gadget_sidecars: sidecar::Setup,
    pub(crate) checks: &'a mut Checks,
    pub(crate) monitor: CpuMonitor,
    pub(crate) progress: Progress,
    pub(crate) screen: &'a Screen,
    pub(crate) pause: Duration,
    /// Documents applied last, by name: for an edit, only the changed lines are shown.
    pub(crate) shown: BTreeMap<ObjectName, String>,
    /// The results of the fault rules.
    pub(crate) fired: Vec<FiredRule>,
}

/// A rule of `fault-inject.yaml`, and its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FiredRule {
    pub(crate) rule: &'static str,
    /// Requests that the rule matched, by `/status` of the sidecars.
    pub(crate) matched: u64,
    /// Requests for which the rule fired, by `/status` of the sidecars.
    pub(crate) fired: u64,
    /// The reaction of the controllers.
    pub(crate) effect: String,
}

/// Growing counters at one moment. The difference of two is what happened in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    /// Failed requests, as the controllers count them.
    controller_failures: u64,
    /// Failed requests, as the sidecars count them.
    sidecar_failures: u64,
    /// Watch requests that the API server got.
    watches: u64,
    /// Reconciles that the controllers reported.
    reconciles: u64,
    /// Plugin faults that the sidecars counted.
    faults: u64,
}

/// Counts of the events between two snapshots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changes {
    /// Failed requests: the higher of the controllers' and the sidecars' count.
    pub(crate) failed: u64,
    /// Watches opened again. Each means that one was cut.
    pub(crate) watches: u64,
    pub(crate) reconciles: u64,
    pub(crate) faults: u64,
}

impl Scenario<'_> {
    pub(crate) fn observations(&self) -> &SharedObservations {
        &self.env.observations
    }

    pub(crate) fn begin_step(&self, number: usize, text: &str) {
        self.progress.begin_step(number);
        self.note_event(number, text);
    }

    pub(crate) fn note_event(&self, number: usize, text: &str) {
        self.progress.set_detail(number, text);
        self.screen.print_event(&self.progress, &format!("{number}  {text}"));
    }

    /// Ends a step; it succeeds if its checks hold.
    pub(crate) async fn end_step(&self, number: usize, text: &str) {
        let (state, sign) = match self.checks.outcome_in(number) {
            Outcome::Holds => (StepState::Done, "✔"),
            Outcome::Fails => (StepState::Failed, "✘"),
            Outcome::Inconclusive => (StepState::Inconclusive, "?"),
        };
        self.progress.end_step(number, state, text);
        self.screen
            .print_event(&self.progress, &format!("{number}  {sign} {text}"));
        self.pause_for_reader().await;
    }

    pub(crate) async fn pause_for_reader(&self) {
        tokio::time::sleep(self.pause).await;
    }

    pub(crate) fn record_check(&mut self, step: usize, text: &'static str, expected: Expected, counted: u64) {
        self.checks.record_count(step, text, expected, counted);
    }

    /// Records a check that holds only if the machine is fast enough. If it was too slow since the step began, the check is
    /// inconclusive.
    pub(crate) fn record_check_at_speed(&mut self, step: usize, text: &'static str, expected: Expected, counted: u64) {
        let is_slow = self.monitor.too_slow(self.progress.elapsed_in_step(step)).is_some();
        self.checks
            .record_count_at_speed(step, text, expected, counted, is_slow);
    }

    pub(crate) fn start_audit_period(&self, right: impl Fn(&str) -> AllowedOwner) {
        let rights = NAMESPACES
            .iter()
            .map(|namespace| ((*namespace).to_owned(), right(namespace)));
        let rights: BTreeMap<_, _> = rights.collect();
        self.observations()
            .with_observations(|observations| observations.audit.start_period(report::now_micros(), rights));
    }

    /// Waits until `look` succeeds. Its error describes the current state; the last one is reported on timeout.
    pub(crate) async fn wait_until<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&Self, &Observations) -> Result<T, String>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self
                .observations()
                .with_observations(|observations| match observations.blind.clone() {
                    Some(blind) => Err(Error::Blind(blind)),
                    None => Ok(look(self, observations)),
                });
            match found? {
                Ok(found) => return Ok(found),
                Err(last) if Instant::now() > deadline => {
                    return Err(Error::Deadline {
                        what: what.to_owned(),
                        after: PATIENCE,
                        last,
                    });
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// `kubectl apply` of these documents.
    pub(crate) async fn apply_documents(&mut self, documents: &[Value]) -> Result<Vec<Applied>, Error> {
        let mut applied = Vec::new();
        for document in documents {
            let name = ObjectName::of_document(document);
            let text = serde_saphyr::to_string(document).map_err(|error| Error::Yaml(Box::new(error)))?;
            let before = self.shown.get(&name).cloned().unwrap_or_default();
            let is_new = |line: &&str| before.lines().all(|before| before != *line);
            let changed: Vec<_> = text.lines().filter(is_new).collect();
            self.screen
                .print_command(&format!("kubectl apply -f {name}.yaml"), &changed);
            applied.push(self.env.kubectl.apply(document).await?);
            self.shown.insert(name, text);
        }
        let names: Vec<_> = applied.iter().map(|applied| applied.name.to_string()).collect();
        let command = format!("apply {}", names.join(" "));
        self.observations()
            .with_observations(|observations| observations.command = command);
        Ok(applied)
    }

    pub(crate) async fn delete_object(&mut self, name: &ObjectName) -> Result<(), Error> {
        let command = format!("delete {name}");
        self.screen.print_command(&format!("kubectl {command}"), &[]);
        self.env.kubectl.delete(name).await?;
        self.shown.remove(name);
        self.observations()
            .with_observations(|observations| observations.command = command);
        Ok(())
    }

    /// Waits until the manager reports that all of these are enforced in every sidecar.
    pub(crate) async fn wait_until_enforced(&self, applied: &[Applied]) -> Result<(), Error> {
        let names: Vec<_> = applied.iter().map(|applied| applied.name.to_string()).collect();
        let what = format!("{} enforced, by status", names.join(", "));
        self.wait_until(&what, |_, observations| observations.objects.check_enforced(applied))
            .await?;
        // The picture and later counts must be newer than that.
        self.env.ask_sidecars().await
    }

    /// Waits until each sidecar runs exactly this number of entries.
    pub(crate) async fn wait_for_entries(&self, number: usize) -> Result<(), Error> {
        self.wait_until_status(&format!("each sidecar runs {number} entries"), |observations| {
            let found = observations
                .sidecars
                .both()
                .map(|sidecar| sidecar.status.chain.entries.len());
            (found == [number; 2])
                .then_some(())
                .ok_or_else(|| format!("they run {found:?}"))
        })
        .await
    }

    /// Like [`Self::wait_until`], but reads the status of the sidecars before each check, so that changes are noticed at once.
    pub(crate) async fn wait_until_status(
        &self,
        what: &str,
        mut look: impl FnMut(&Observations) -> Result<(), String>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.env.ask_sidecars().await?;
            match self.observations().with_observations(|observations| look(observations)) {
                Ok(()) => return Ok(()),
                Err(last) if Instant::now() > deadline => {
                    return Err(Error::Deadline {
                        what: what.to_owned(),
                        after: PATIENCE,
                        last,
                    });
                }
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Waits until both sidecars run this plugin in the entry of their replica.
    pub(crate) async fn wait_until_running(
        &self,
        image: &Image,
        entry: fn(Replica) -> &'static str,
    ) -> Result<(), Error> {
        let what = format!("both sidecars run {}:{}", image.repository, image.tag);
        self.wait_until_status(&what, |observations| {
            let number = count_running(observations, image, entry);
            let refused = observations
                .sidecars
                .both()
                .map(|sidecar| sidecar.status.refused.as_ref());
            (number == 2)
                .then_some(())
                .ok_or_else(|| format!("{number} do; refused: {refused:?}"))
        })
        .await
    }

    /// Waits until the API server has got this many watch requests more than at `since`: the controllers have listed again.
    pub(crate) async fn wait_for_relists(&self, since: &Snapshot, watches: u64) -> Result<(), Error> {
        let what = format!("{watches} controllers list again under their new selectors");
        self.wait_until(&what, |scenario, _| {
            let opened = scenario.env.request_count("watch") - since.watches;
            (opened >= watches)
                .then_some(())
                .ok_or_else(|| format!("{opened} have"))
        })
        .await
    }

    /// Waits until the controllers have reported this many more reconciles.
    pub(crate) async fn wait_for_reconciles(&self, number: u64) -> Result<(), Error> {
        let total = |observations: &Observations| observations.sum_controllers(|controller| controller.reconciles);
        let goal = self
            .observations()
            .with_observations(|observations| total(observations))
            + number;
        self.wait_until(
            &format!("the controllers reconcile {number} more widgets"),
            |_, observations| {
                let missing = goal.saturating_sub(total(observations));
                (missing == 0)
                    .then_some(())
                    .ok_or_else(|| format!("{missing} are missing"))
            },
        )
        .await
    }

    pub(crate) async fn take_snapshot(&self) -> Result<Snapshot, Error> {
        self.env.ask_sidecars().await?;
        let watches = self.env.request_count("watch");
        Ok(self.observations().with_observations(|observations| Snapshot {
            controller_failures: observations.sum_controllers(|controller| controller.failures),
            sidecar_failures: observations.sum_sidecars(|sidecar| sidecar.failures),
            watches,
            reconciles: observations.sum_controllers(|controller| controller.reconciles),
            faults: observations.sum_sidecars(|sidecar| sidecar.status.counts.faults),
        }))
    }

    pub(crate) async fn changes_since(&self, then: &Snapshot) -> Result<Changes, Error> {
        let now = self.take_snapshot().await?;
        let controllers = now.controller_failures - then.controller_failures;
        let sidecars = now.sidecar_failures - then.sidecar_failures;
        Ok(Changes {
            failed: controllers.max(sidecars),
            watches: now.watches - then.watches,
            reconciles: now.reconciles - then.reconciles,
            faults: now.faults - then.faults,
        })
    }
}

/// Sidecars that run a plugin in the entry of their replica.
pub(crate) fn count_running(observations: &Observations, image: &Image, entry: fn(Replica) -> &'static str) -> u64 {
    let digest = image.digest();
    let runs = |replica: &Replica| {
        let mut entries = observations.sidecars.get(*replica).status.chain.entries.iter();
        entries.any(|running| running.name == entry(*replica) && running.plugin == digest)
    };
    Replica::BOTH.iter().filter(|replica| runs(replica)).count() as u64
}

pub(crate) fn owner_of(shard: fn(Replica) -> Shard, namespace: &str) -> Option<Replica> {
    Replica::BOTH
        .into_iter()
        .find(|replica| shard(*replica).contains(&namespace))
}

pub(crate) fn allowed_owners(shard: fn(Replica) -> Shard) -> impl Fn(&str) -> AllowedOwner {
    move |namespace| owner_of(shard, namespace).map_or(AllowedOwner::Anyone, AllowedOwner::Only)
}
