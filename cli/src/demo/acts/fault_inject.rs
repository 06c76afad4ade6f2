//! A file of faults: an expired watch, lost answers of two kinds, a storm of conflicts; and what the controllers make of them.

use std::time::Duration;

use ctrlmesh_testkit::{Fault, Faults, Rule, RuleId};
use serde::Serialize;

use crate::demo::added::{self, FAULT_INJECT_ENTRY};
use crate::demo::claims::Expected::Exactly;
use crate::demo::facts::Facts;
use crate::demo::steps::OWN_ENTRIES;
use crate::demo::story::Story;
use crate::demo::widget::{PLURAL, WIDGETS_PER_NAMESPACE};
use crate::error::Error;

const STEP: usize = 9;

/// The rules of `fault-inject.yaml`, and their namespaces.
const EXPIRED: &str = "watch-expired";
const WITHOUT_HINT: (&str, &[&str]) = ("lost-without-hint", &["catalog", "payouts"]);
const WITH_HINT: (&str, &[&str]) = ("lost-with-hint", &["billing", "orders"]);
const CONFLICT: (&str, &[&str]) = ("conflict-storm", &["checkout", "delivery", "fraud", "identity"]);

/// What the seed of the file draws: the same in each run.
const CONFLICTS: u64 = 54;

/// A rule of the file, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fired {
    pub(crate) rule: &'static str,
    /// By `/status` of the sidecars: requests that the rule was for.
    pub(crate) matched: u64,
    /// By `/status` of the sidecars: how often it did something.
    pub(crate) fired: u64,
    /// What the controllers made of it.
    pub(crate) effect: String,
}

/// Counts the writes that the API server gets, by namespace.
struct Arrivals {
    faults: Faults,
    rules: Vec<(&'static str, RuleId)>,
}

impl Arrivals {
    fn new(faults: &Faults) -> Self {
        let namespaces = [WITHOUT_HINT.1, WITH_HINT.1].concat();
        // A fault that does nothing is counted all the same.
        let counting = |namespace: &'static str| {
            let rule = Rule::new(Fault::Delay(Duration::ZERO));
            let rule = rule.verb("patch").resource(PLURAL).namespace(namespace);
            (namespace, faults.add(rule))
        };
        Self {
            faults: faults.clone(),
            rules: namespaces.into_iter().map(counting).collect(),
        }
    }

    /// Writes beyond one for each widget.
    fn repeated(&self, namespaces: &[&str]) -> u64 {
        let rules = self
            .rules
            .iter()
            .filter(|(namespace, _)| namespaces.contains(namespace));
        let seen: u64 = rules.map(|(_, rule)| self.faults.hits(*rule)).sum();
        seen.saturating_sub((namespaces.len() * WIDGETS_PER_NAMESPACE) as u64)
    }

    fn end(self) {
        for (_, rule) in self.rules {
            self.faults.remove(rule);
        }
    }
}

/// What was counted in the act.
#[derive(Debug)]
struct Counted {
    listed: u64,
    repeated_without_hint: u64,
    repeated_with_hint: u64,
    failures: u64,
    behind: u64,
}

impl Story<'_> {
    /// Step 9: faults from a file.
    pub(super) async fn inject_faults(&mut self) -> Result<(), Error> {
        self.begin(STEP, "a FaultInjection with four rules is switched on");
        let failures = |story: &Self| story.facts().with(|facts| facts.controllers(|c| c.failures));
        let before = failures(self);
        self.delete(&added::breaker()).await?;
        self.add(added::fault_injection(true)?, FAULT_INJECT_ENTRY).await?;
        self.entries(OWN_ENTRIES + 1).await?;
        let listed = self.expired_watches().await?;
        self.note(STEP, "all 200 change; answers get lost, writes conflict");
        let arrivals = Arrivals::new(self.world.server_faults());
        self.world.start_burst();
        self.all_handled(|_| {}).await?;
        self.world.ask_sidecars().await?;
        let counted = Counted {
            listed,
            repeated_without_hint: arrivals.repeated(WITHOUT_HINT.1),
            repeated_with_hint: arrivals.repeated(WITH_HINT.1),
            failures: failures(self) - before,
            behind: self.facts().with(|facts| facts.ledger.behind()),
        };
        arrivals.end();
        self.fired = self.facts().with(|facts| fired(facts, &counted));
        self.fault_claims(&counted);
        self.take_out().await?;
        let entries = self
            .facts()
            .with(|facts| facts.sidecars(|sidecar| sidecar.status.chain.entries.len() as u64));
        self.claim(
            STEP,
            "entries left at the end, of two in each sidecar",
            Exactly(4),
            entries,
        );
        let sum = |count: fn(&Fired) -> u64| self.fired.iter().map(count).sum::<u64>();
        let (fired, matched) = (sum(|rule| rule.fired), sum(|rule| rule.matched));
        let text = format!("{fired} faults in {matched} requests; every change was handled");
        self.end(STEP, &text).await;
        Ok(())
    }

    /// Has the watches begin anew, under the rule that expires them, and waits until the controllers have listed again. Returns how
    /// many have.
    async fn expired_watches(&self) -> Result<u64, Error> {
        let (lists, watches) = (self.world.requests("list"), self.world.requests("watch"));
        self.note(
            STEP,
            "the API server ends its watches, as it does every few minutes; the next ones expire",
        );
        self.world.end_watches();
        // The observer's, the manager's, and two of each controller: the one that expires, and the one after the list.
        const WATCHES: u64 = 1 + 1 + 2 * 2;
        self.until("the controllers list and watch again", |story, _| {
            let now = (
                story.world.requests("list") - lists,
                story.world.requests("watch") - watches,
            );
            (now.0 >= 2 && now.1 >= WATCHES)
                .then_some(now.0)
                .ok_or_else(|| format!("lists and watches: {now:?}"))
        })
        .await
    }

    fn fault_claims(&mut self, counted: &Counted) {
        let of = |story: &Self, name: &str| {
            let rule = story.fired.iter().find(|fired| fired.rule == name);
            rule.map_or(0, |fired| fired.fired)
        };
        let fired = self.fired.iter().filter(|rule| rule.fired > 0).count() as u64;
        let (without_hint, with_hint) = (of(self, WITHOUT_HINT.0), of(self, WITH_HINT.0));
        let conflicts = of(self, CONFLICT.0);
        self.claim(STEP, "rules of the file that fired", Exactly(4), fired);
        self.claim(STEP, "lists after the watches expired", Exactly(2), counted.listed);
        self.claim(
            STEP,
            "answers lost without a hint: writes done twice",
            Exactly(without_hint),
            counted.repeated_without_hint,
        );
        self.claim(
            STEP,
            "answers lost with a hint: writes done twice",
            Exactly(0),
            counted.repeated_with_hint,
        );
        self.claim(
            STEP,
            "conflicts, as the file's seed draws them",
            Exactly(CONFLICTS),
            conflicts,
        );
        self.claim(
            STEP,
            "failures that controllers met, all from the file",
            Exactly(with_hint + conflicts),
            counted.failures,
        );
        self.claim(
            STEP,
            "changes under faults that were never handled",
            Exactly(0),
            counted.behind,
        );
    }
}

/// The rules as `/status` shows them, with their effects.
fn fired(facts: &Facts, counted: &Counted) -> Vec<Fired> {
    let row = |rule: &'static str, effect: String| {
        let count = |name: &str| {
            facts.sidecars(|sidecar| {
                let report = sidecar.report(FAULT_INJECT_ENTRY, rule);
                let count = report.and_then(|report| report.get(name)?.as_u64());
                count.unwrap_or_default()
            })
        };
        Fired {
            rule,
            matched: count("matched"),
            fired: count("fired"),
            effect,
        }
    };
    vec![
        row(EXPIRED, format!("controllers that listed again: {}", counted.listed)),
        row(
            WITHOUT_HINT.0,
            format!("repeated by kube-rs itself: {}", counted.repeated_without_hint),
        ),
        row(
            WITH_HINT.0,
            format!("error; then found done; repeated: {}", counted.repeated_with_hint),
        ),
        row(CONFLICT.0, "tried again half a second later".to_owned()),
    ]
}
