//! The acts in which a plugin is added to both sidecars, works while the controllers do, and is taken out again; and the one in
//! which somebody spoils what the manager has made.

mod circuit_breaker;
mod fault_inject;
mod rate_limit;
mod spoil;

use serde_json::Value;

use super::added;
use super::facts::Facts;
use super::plan::{Rules, later_shard};
use super::replica::Replica;
use super::steps::WIDGETS;
use super::story::{Story, owners};
use crate::error::Error;

pub(crate) use fault_inject::Fired;

impl Story<'_> {
    /// Tells all acts. Each leaves the world as it found it.
    pub(crate) async fn acts(&mut self, rules: &Rules) -> Result<(), Error> {
        self.limit_rate().await?;
        self.break_circuit().await?;
        self.inject_faults().await?;
        self.spoil(rules).await
    }

    /// Applies an object for both sidecars, waits until it is in force, and opens the books. `entry` is shown.
    async fn add(&mut self, document: Value, entry: &'static str) -> Result<(), Error> {
        let applied = self.apply(&[document]).await?;
        self.enforced(&applied).await?;
        self.facts().with(|facts| facts.added = Some(entry));
        self.open_books(owners(later_shard));
        Ok(())
    }

    /// Switches the faults off again, and waits until nothing is left of them.
    async fn take_out(&mut self) -> Result<(), Error> {
        self.apply(&[added::fault_injection(false)?]).await?;
        self.facts().with(|facts| facts.added = None);
        self.entries(super::steps::OWN_ENTRIES).await
    }

    /// Waits until each widget has been changed since the books were opened, and handled by a write of its owner. `meanwhile` is told
    /// how many writes the API server has seen, again and again.
    async fn all_handled(&self, mut meanwhile: impl FnMut(u64)) -> Result<(), Error> {
        self.until("each widget is changed and handled", |story, facts| {
            meanwhile(story.world.requests("patch"));
            let (handled, behind) = (written(facts), facts.ledger.behind());
            (handled == WIDGETS && behind == 0)
                .then_some(())
                .ok_or_else(|| format!("{handled} of {WIDGETS} are, {behind} are behind"))
        })
        .await
    }
}

/// Widgets whose status their owner has written since the books were opened. Reports don't count: after a list, a controller looks at
/// every widget without anything to do.
fn written(facts: &Facts) -> u64 {
    let by = |replica| facts.ledger.handled_by(replica, later_shard(replica));
    Replica::BOTH.into_iter().map(by).sum()
}
