//! Step 9: faults from a file (an expired watch, two kinds of lost responses, conflicts), and how the controllers react.

use std::time::Duration;

use ctrlmesh_testkit::{Fault, Faults, Rule, RuleId};

use crate::demo::checks::Expected::Exactly;
use crate::demo::observations::Observations;
use crate::demo::plugin_documents::{self, FAULT_INJECT_ENTRY};
use crate::demo::scenario::{FiredRule, Scenario};
use crate::demo::sharding_plan::OWN_ENTRIES;
use crate::demo::widget::{PLURAL, WIDGETS_PER_NAMESPACE};
use crate::error::Error;

const STEP: usize = 9;

/// Names of the rules in `fault-inject.yaml`, and their namespaces.
const EXPIRED: &str = "watch-expired";
const WITHOUT_HINT: (&str, &[&str]) = ("lost-without-hint", &["catalog", "payouts"]);
const WITH_HINT: (&str, &[&str]) = ("lost-with-hint", &["billing", "orders"]);
const CONFLICT: (&str, &[&str]) = ("conflict-storm", &["checkout", "delivery", "fraud", "identity"]);

/// The seed in the file makes this number the same in each run.
const CONFLICTS: u64 = 54;

/// Counts the writes that reach the API server, by namespace.
struct Arrivals {
    faults: Faults,
    rules: Vec<(&'static str, RuleId)>,
}

impl Arrivals {
    fn new(faults: &Faults) -> Self {
        let namespaces = [WITHOUT_HINT.1, WITH_HINT.1].concat();
        // A fault without effect is a counter.
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

    /// Writes beyond the first for each widget.
    fn repeated_writes(&self, namespaces: &[&str]) -> u64 {
        let rules = self
            .rules
            .iter()
            .filter(|(namespace, _)| namespaces.contains(namespace));
        let seen: u64 = rules.map(|(_, rule)| self.faults.times_applied(*rule)).sum();
        seen.saturating_sub((namespaces.len() * WIDGETS_PER_NAMESPACE) as u64)
    }

    fn stop_counting(self) {
        for (_, rule) in self.rules {
            self.faults.remove(rule);
        }
    }
}

#[derive(Debug)]
struct Counted {
    listed: u64,
    repeated_without_hint: u64,
    repeated_with_hint: u64,
    failures: u64,
    behind: u64,
}

impl Scenario<'_> {
    pub(super) async fn inject_faults(&mut self) -> Result<(), Error> {
        self.begin_step(STEP, "a FaultInjection with four rules is switched on");
        let failures = |scenario: &Self| {
            scenario
                .observations()
                .with_observations(|observations| observations.sum_controllers(|c| c.failures))
        };
        let before = failures(self);
        self.delete_object(&plugin_documents::breaker_name()).await?;
        self.add_plugin_object(plugin_documents::fault_injection_document(true)?, FAULT_INJECT_ENTRY)
            .await?;
        self.wait_for_entries(OWN_ENTRIES + 1).await?;
        let listed = self.expire_watches().await?;
        self.note_event(STEP, "all 200 change; responses get lost, writes conflict");
        let arrivals = Arrivals::new(self.env.server_faults());
        self.env.start_burst();
        self.wait_until_all_handled(|_| {}).await?;
        self.env.ask_sidecars().await?;
        let counted = Counted {
            listed,
            repeated_without_hint: arrivals.repeated_writes(WITHOUT_HINT.1),
            repeated_with_hint: arrivals.repeated_writes(WITH_HINT.1),
            failures: failures(self) - before,
            behind: self
                .observations()
                .with_observations(|observations| observations.audit.pending_changes()),
        };
        arrivals.stop_counting();
        self.fired = self
            .observations()
            .with_observations(|observations| fired_rules(observations, &counted));
        self.record_fault_checks(&counted);
        self.remove_faults().await?;
        let entries = self.observations().with_observations(|observations| {
            observations.sum_sidecars(|sidecar| sidecar.status.chain.entries.len() as u64)
        });
        self.record_check(
            STEP,
            "entries left at the end, of two in each sidecar",
            Exactly(4),
            entries,
        );
        let sum = |count: fn(&FiredRule) -> u64| self.fired.iter().map(count).sum::<u64>();
        let (fired, matched) = (sum(|rule| rule.fired), sum(|rule| rule.matched));
        let text = format!("{fired} faults in {matched} requests; every change was handled");
        self.end_step(STEP, &text).await;
        Ok(())
    }

    /// Ends the watches, so that they begin again under the rule that expires them, and waits until the controllers have listed again.
    /// Returns how many have.
    async fn expire_watches(&self) -> Result<u64, Error> {
        let (lists, watches) = (self.env.request_count("list"), self.env.request_count("watch"));
        self.note_event(
            STEP,
            "the API server ends its watches, as it does every few minutes; the next ones expire",
        );
        self.env.end_watches();
        // One of the observer, one of the manager, and two of each controller: the one that expires, and the one after the list.
        const WATCHES: u64 = 1 + 1 + 2 * 2;
        self.wait_until("the controllers list and watch again", |scenario, _| {
            let now = (
                scenario.env.request_count("list") - lists,
                scenario.env.request_count("watch") - watches,
            );
            (now.0 >= 2 && now.1 >= WATCHES)
                .then_some(now.0)
                .ok_or_else(|| format!("lists and watches: {now:?}"))
        })
        .await
    }

    fn record_fault_checks(&mut self, counted: &Counted) {
        let of = |scenario: &Self, name: &str| {
            let rule = scenario.fired.iter().find(|fired| fired.rule == name);
            rule.map_or(0, |fired| fired.fired)
        };
        let fired = self.fired.iter().filter(|rule| rule.fired > 0).count() as u64;
        let (without_hint, with_hint) = (of(self, WITHOUT_HINT.0), of(self, WITH_HINT.0));
        let conflicts = of(self, CONFLICT.0);
        self.record_check(STEP, "rules of the file that fired", Exactly(4), fired);
        self.record_check(STEP, "lists after the watches expired", Exactly(2), counted.listed);
        self.record_check(
            STEP,
            "responses lost without a hint: writes done twice",
            Exactly(without_hint),
            counted.repeated_without_hint,
        );
        self.record_check(
            STEP,
            "responses lost with a hint: writes done twice",
            Exactly(0),
            counted.repeated_with_hint,
        );
        self.record_check(
            STEP,
            "conflicts, as the file's seed draws them",
            Exactly(CONFLICTS),
            conflicts,
        );
        self.record_check(
            STEP,
            "failures that controllers met, all from the file",
            Exactly(with_hint + conflicts),
            counted.failures,
        );
        self.record_check(
            STEP,
            "changes under faults that were never handled",
            Exactly(0),
            counted.behind,
        );
    }
}

/// The rules as `/status` reports them, with their effects.
fn fired_rules(observations: &Observations, counted: &Counted) -> Vec<FiredRule> {
    let row = |rule: &'static str, effect: String| {
        let count = |name: &str| {
            observations.sum_sidecars(|sidecar| {
                let report = sidecar.plugin_report(FAULT_INJECT_ENTRY, rule);
                let count = report.and_then(|report| report.get(name)?.as_u64());
                count.unwrap_or_default()
            })
        };
        FiredRule {
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
