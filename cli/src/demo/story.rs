//! What every step of the story needs: to begin and end, to say what happens, to wait for something with a deadline, to count what
//! happened in between. The steps themselves are [`super::steps`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::acts::Fired;
use super::claims::{Claims, Expected, Outcome};
use super::facts::{Facts, Shared};
use super::kubectl::{Applied, Name};
use super::ledger::Right;
use super::machine::Machine;
use super::plan::{Image, Shard};
use super::replica::Replica;
use super::report;
use super::screen::Screen;
use super::stage::{Stage, StepState};
use super::widget::NAMESPACES;
use super::world::World;
use crate::error::Error;

/// The longest that the demo waits for anything. Compiling a plugin in a debug build on a busy machine is the slowest.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// The story while it is told.
pub(crate) struct Story<'a> {
    pub(crate) world: World,
    pub(crate) claims: &'a mut Claims,
    pub(crate) machine: Machine,
    pub(crate) stage: Stage,
    pub(crate) screen: &'a Screen,
    pub(crate) pause: Duration,
    /// What was applied last, by name: of an edit, only what it changes is shown.
    pub(crate) shown: BTreeMap<Name, String>,
    /// What came of the rules for faults.
    pub(crate) fired: Vec<Fired>,
}

/// Numbers that only grow, at one moment. The difference of two is what happened in between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// Requests that failed, by the controllers' word.
    controller_failures: u64,
    /// Requests that failed, by the sidecars' word.
    sidecar_failures: u64,
    /// Watches that the API server was asked for.
    watches: u64,
    /// Reconciles that the controllers reported.
    reconciles: u64,
    /// Plugin faults that the sidecars counted.
    faults: u64,
}

/// What happened between two moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passage {
    /// Requests that failed: the higher of what controllers and sidecars count.
    pub(crate) failed: u64,
    /// Watches opened anew. Each means that one was cut.
    pub(crate) watches: u64,
    /// Reconciles.
    pub(crate) reconciles: u64,
    /// Plugin faults.
    pub(crate) faults: u64,
}

impl Story<'_> {
    /// The facts.
    pub(crate) fn facts(&self) -> &Shared {
        &self.world.facts
    }

    /// A step begins.
    pub(crate) fn begin(&self, number: usize, text: &str) {
        self.stage.begin(number);
        self.note(number, text);
    }

    /// Something happened that is worth a line.
    pub(crate) fn note(&self, number: usize, text: &str) {
        self.stage.detail(number, text);
        self.screen.say(&self.stage, &format!("{number}  {text}"));
    }

    /// A step is over: well, if its claims hold.
    pub(crate) async fn end(&self, number: usize, text: &str) {
        let (state, sign) = match self.claims.outcome_in(number) {
            Outcome::Holds => (StepState::Done, "✔"),
            Outcome::Fails => (StepState::Failed, "✘"),
            Outcome::Inconclusive => (StepState::Inconclusive, "?"),
        };
        self.stage.end(number, state, text);
        self.screen.say(&self.stage, &format!("{number}  {sign} {text}"));
        self.rest().await;
    }

    /// Time for a reader.
    pub(crate) async fn rest(&self) {
        tokio::time::sleep(self.pause).await;
    }

    /// Notes a claim.
    pub(crate) fn claim(&mut self, step: usize, claim: &'static str, expected: Expected, counted: u64) {
        self.claims.count(step, claim, expected, counted);
    }

    /// Notes a claim about something that only happens if the machine is fast enough. If it was not since the step began, the claim says
    /// nothing.
    pub(crate) fn claim_at_speed(&mut self, step: usize, claim: &'static str, expected: Expected, counted: u64) {
        let is_slow = self.machine.too_slow(self.stage.since(step)).is_some();
        self.claims.count_at_speed(step, claim, expected, counted, is_slow);
    }

    /// Opens the books anew with these rights.
    pub(crate) fn open_books(&self, right: impl Fn(&str) -> Right) {
        let rights = NAMESPACES
            .iter()
            .map(|namespace| ((*namespace).to_owned(), right(namespace)));
        let rights: BTreeMap<_, _> = rights.collect();
        self.facts().with(|facts| facts.ledger.open(report::now(), rights));
    }

    /// Waits until `look` finds what it looks for. Its error says what is there instead; the last one is told if the wait is in vain.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&Self, &Facts) -> Result<T, String>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.facts().with(|facts| match facts.blind.clone() {
                Some(blind) => Err(Error::Blind(blind)),
                None => Ok(look(self, facts)),
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
    pub(crate) async fn apply(&mut self, documents: &[Value]) -> Result<Vec<Applied>, Error> {
        let mut applied = Vec::new();
        for document in documents {
            let name = Name::of(document);
            let text = serde_saphyr::to_string(document).map_err(|error| Error::Yaml(Box::new(error)))?;
            let before = self.shown.get(&name).cloned().unwrap_or_default();
            let is_new = |line: &&str| before.lines().all(|before| before != *line);
            let changed: Vec<_> = text.lines().filter(is_new).collect();
            self.screen.show(&format!("kubectl apply -f {name}.yaml"), &changed);
            applied.push(self.world.kubectl.apply(document).await?);
            self.shown.insert(name, text);
        }
        let names: Vec<_> = applied.iter().map(|applied| applied.name.to_string()).collect();
        let command = format!("apply {}", names.join(" "));
        self.facts().with(|facts| facts.command = command);
        Ok(applied)
    }

    /// `kubectl delete`.
    pub(crate) async fn delete(&mut self, name: &Name) -> Result<(), Error> {
        let command = format!("delete {name}");
        self.screen.show(&format!("kubectl {command}"), &[]);
        self.world.kubectl.delete(name).await?;
        self.shown.remove(name);
        self.facts().with(|facts| facts.command = command);
        Ok(())
    }

    /// Waits until the manager says that all of these are in force in every sidecar.
    pub(crate) async fn enforced(&self, applied: &[Applied]) -> Result<(), Error> {
        let names: Vec<_> = applied.iter().map(|applied| applied.name.to_string()).collect();
        let what = format!("{} enforced, by status", names.join(", "));
        self.until(&what, |_, facts| facts.objects.enforced(applied)).await?;
        // The picture, and what is counted next, are of after that.
        self.world.ask_sidecars().await
    }

    /// Waits until each sidecar runs so many entries and no more.
    pub(crate) async fn entries(&self, number: usize) -> Result<(), Error> {
        self.until_status(&format!("each sidecar runs {number} entries"), |facts| {
            let found = facts.sidecars.both().map(|sidecar| sidecar.status.chain.entries.len());
            (found == [number; 2])
                .then_some(())
                .ok_or_else(|| format!("they run {found:?}"))
        })
        .await
    }

    /// As [`Self::until`], asking the sidecars before each look: for what is to be noticed at once.
    pub(crate) async fn until_status(
        &self,
        what: &str,
        mut look: impl FnMut(&Facts) -> Result<(), String>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.world.ask_sidecars().await?;
            match self.facts().with(|facts| look(facts)) {
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
    pub(crate) async fn runs(&self, image: &Image, entry: fn(Replica) -> &'static str) -> Result<(), Error> {
        let what = format!("both sidecars run {}:{}", image.repository, image.tag);
        self.until_status(&what, |facts| {
            let number = running(facts, image, entry);
            let refused = facts.sidecars.both().map(|sidecar| sidecar.status.refused.as_ref());
            (number == 2)
                .then_some(())
                .ok_or_else(|| format!("{number} do; refused: {refused:?}"))
        })
        .await
    }

    /// Waits until the API server has been asked for this many watches more than at `since`: controllers have listed again.
    pub(crate) async fn listed_again(&self, since: &Moment, watches: u64) -> Result<(), Error> {
        let what = format!("{watches} controllers list again under their new selectors");
        self.until(&what, |story, _| {
            let opened = story.world.requests("watch") - since.watches;
            (opened >= watches)
                .then_some(())
                .ok_or_else(|| format!("{opened} have"))
        })
        .await
    }

    /// Waits until the controllers have reported this many reconciles more.
    pub(crate) async fn reconciled(&self, number: u64) -> Result<(), Error> {
        let total = |facts: &Facts| facts.controllers(|controller| controller.reconciles);
        let goal = self.facts().with(|facts| total(facts)) + number;
        self.until(
            &format!("the controllers reconcile {number} more widgets"),
            |_, facts| {
                let missing = goal.saturating_sub(total(facts));
                (missing == 0)
                    .then_some(())
                    .ok_or_else(|| format!("{missing} are missing"))
            },
        )
        .await
    }

    /// The numbers now.
    pub(crate) async fn moment(&self) -> Result<Moment, Error> {
        self.world.ask_sidecars().await?;
        let watches = self.world.requests("watch");
        Ok(self.facts().with(|facts| Moment {
            controller_failures: facts.controllers(|controller| controller.failures),
            sidecar_failures: facts.sidecars(|sidecar| sidecar.failures),
            watches,
            reconciles: facts.controllers(|controller| controller.reconciles),
            faults: facts.sidecars(|sidecar| sidecar.status.counts.faults),
        }))
    }

    /// What happened since.
    pub(crate) async fn since(&self, then: &Moment) -> Result<Passage, Error> {
        let now = self.moment().await?;
        let controllers = now.controller_failures - then.controller_failures;
        let sidecars = now.sidecar_failures - then.sidecar_failures;
        Ok(Passage {
            failed: controllers.max(sidecars),
            watches: now.watches - then.watches,
            reconciles: now.reconciles - then.reconciles,
            faults: now.faults - then.faults,
        })
    }
}

/// Sidecars that run a plugin in the entry of their replica.
pub(crate) fn running(facts: &Facts, image: &Image, entry: fn(Replica) -> &'static str) -> u64 {
    let digest = image.digest();
    let runs = |replica: &Replica| {
        let mut entries = facts.sidecars.of(*replica).status.chain.entries.iter();
        entries.any(|running| running.name == entry(*replica) && running.plugin == digest)
    };
    Replica::BOTH.iter().filter(|replica| runs(replica)).count() as u64
}

/// Whose namespace it is.
pub(crate) fn owner(shard: fn(Replica) -> Shard, namespace: &str) -> Option<Replica> {
    Replica::BOTH
        .into_iter()
        .find(|replica| shard(*replica).contains(&namespace))
}

/// The right of a namespace that has one owner.
pub(crate) fn owners(shard: fn(Replica) -> Shard) -> impl Fn(&str) -> Right {
    move |namespace| owner(shard, namespace).map_or(Right::Anyone, Right::Only)
}
