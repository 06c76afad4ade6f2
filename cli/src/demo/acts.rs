//! The acts in which a plugin is added to both sidecars, works while the controllers do, and is taken out again. The plugins of the
//! later acts come along early, without rules, so that they are compiled while there is something to look at.

mod circuit_breaker;
mod fault_inject;
mod rate_limit;

use super::added::Added;
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
        let (limit, breaker, faults) = (Added::rate_limit()?, Added::circuit_breaker()?, Added::fault_inject()?);
        let next = [limit.clone(), breaker.resting(), faults.resting()];
        self.limit_rate(rules, limit, &next).await?;
        self.break_circuit(rules, breaker, &faults).await?;
        self.inject_faults(rules, faults).await
    }

    /// Adds plugins to both sidecars in the place of those that were added before, and opens the books. The first is shown.
    async fn add(&mut self, rules: &Rules, added: &[Added]) -> Result<(), Error> {
        let generation = self.world.publish_with(rules, added)?;
        self.acknowledged(generation).await?;
        let shown = added.first().map(|added| added.name);
        self.facts().with(|facts| facts.added = shown);
        self.open_books(owners(later_shard));
        Ok(())
    }

    /// Takes them out again.
    async fn take_out(&mut self, rules: &Rules) -> Result<(), Error> {
        let generation = self.world.publish(rules)?;
        self.facts().with(|facts| facts.added = None);
        self.acknowledged(generation).await
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
