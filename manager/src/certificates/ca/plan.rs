//! Plans the next step of a rotation, so that clients which trust the bundle in force accept what any replica serves.
//!
//! Flow of a rotation: [`Step::Prepare`] puts a new CA and certificate into the Secret, where replicas leave them alone;
//! [`Step::Trust`] adds the CA to every bundle; after [`Schedule::settle`], when every API server has read it,
//! [`Step::Promote`] makes it the one that is served. The CA of the old one stays in the bundle until it ends: a replica that
//! has not seen the change goes on to be accepted. A change of the server's names is a rotation, too: callers by the old ones
//! are not cut off.
//!
//! Where those who trust read their bundle once, when they start, a CA must lie in it for years before it counts: there the CA
//! lives long and signs one certificate after the other ([`Leaf`]).

use std::time::{Duration, SystemTime};

use super::Error;
use super::credential::{Credential, certificates};
use super::stored::Stored;

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Of a CA, and of its certificate unless `leaf` says otherwise.
    pub life: Duration,
    /// Before their end new ones are made. So long that a manager may be switched off for weeks.
    pub renew_before: Duration,
    /// Certificates that end before their CA does; `None`: a CA has one, and its life.
    pub leaf: Option<Leaf>,
    /// From a bundle in etcd until every API server uses it.
    pub settle: Duration,
    /// At most so long nothing is looked at.
    pub rest: Duration,
}

/// Certificates of a CA that signs several.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    pub life: Duration,
    /// Before its end the next is signed.
    pub renew_before: Duration,
    /// A CA that was prepared counts when the one before has so long to go, and not before.
    pub serve_before: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self {
            life: days(365),
            renew_before: days(120),
            leaf: None,
            settle: Duration::from_secs(300),
            rest: Duration::from_secs(3600),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) now: SystemTime,
    pub(crate) stored: &'a Stored,
    /// Names that the server is called by.
    pub(crate) names: &'a [String],
    /// The bundle of each webhook that is configured, PEM.
    pub(crate) bundles: &'a [String],
    /// Since when every bundle is seen to be complete.
    pub(crate) trusted_since: Option<SystemTime>,
}

/// One thing to do. Then look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is nothing that anyone would accept: make a certificate and serve it.
    Issue,
    /// Have the CA that counts, and the one that was prepared, sign new certificates.
    Sign,
    /// Write [`Stored::bundle`] to every webhook.
    Trust,
    /// Make what will be served next.
    Prepare,
    /// Every bundle is complete from now on.
    Settle,
    /// Serve what was prepared.
    Promote,
    /// Forget CAs that have ended.
    Forget,
    /// Nothing, for so long.
    Rest(Duration),
}

/// What to do next.
pub(crate) fn plan(facts: &Facts<'_>, schedule: &Schedule) -> Step {
    let Facts { now, stored, names, .. } = *facts;
    if let Some(leaf) = &schedule.leaf
        && stored.credentials().any(|it| it.is_due(leaf, names, now))
    {
        return Step::Sign;
    }
    let next = stored.next.as_ref().filter(|it| it.is_accepted(names, now));
    // One with other names is good for whoever calls by them, until there is another.
    let Some(current) = stored.current.as_ref().filter(|it| it.is_accepted(&[], now)) else {
        return if next.is_some() { Step::Promote } else { Step::Issue };
    };
    if !facts.bundles.iter().all(|bundle| is_same(bundle, &stored.bundle())) {
        return Step::Trust;
    }
    if stored.retired_until().is_some_and(|end| end <= now) {
        return Step::Forget;
    }
    let is_good = current.is_accepted(names, now);
    let before_end = |time| {
        let end = current.lives_until(schedule).unwrap_or(now);
        end.checked_sub(time).filter(|_| is_good).unwrap_or(now)
    };
    let renewal = before_end(schedule.renew_before);
    let turn = schedule.leaf.map_or(now, |leaf| before_end(leaf.serve_before));
    let until = match (next, stored.next.is_some(), facts.trusted_since) {
        (None, false, _) if now < renewal => renewal,
        (None, _, _) => return Step::Prepare,
        (Some(_), _, None) => return Step::Settle,
        (Some(_), _, Some(since)) if now < turn.max(since + schedule.settle) => turn.max(since + schedule.settle),
        (Some(_), ..) => return Step::Promote,
    };
    let until = stored.retired_until().map_or(until, |end| end.min(until));
    let rest = until.duration_since(now).unwrap_or_default();
    Step::Rest(rest.min(schedule.rest))
}

/// Whether two PEM texts have the same certificates, in any order.
fn is_same(bundle: &str, other: &str) -> bool {
    let sorted = |pem| {
        let mut all = certificates(pem);
        all.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        all.dedup();
        all
    };
    sorted(bundle) == sorted(other)
}

impl Stored {
    /// What the Secret says after a step. Steps that are not about the Secret leave it.
    ///
    /// # Errors
    /// No certificate can be made.
    pub(crate) fn after(
        &self,
        step: Step,
        names: &[String],
        now: SystemTime,
        schedule: &Schedule,
    ) -> Result<Self, Error> {
        let mut stored = self.clone();
        match step {
            Step::Issue => {
                let old = stored.current.replace(Credential::issue(names, now, schedule)?);
                stored.retire(old, now);
            }
            Step::Sign => {
                if let Some(leaf) = &schedule.leaf {
                    for credential in stored.credentials_mut().filter(|it| it.is_due(leaf, names, now)) {
                        *credential = credential.signed_again(names, now, leaf)?;
                    }
                }
            }
            Step::Prepare => stored.next = Some(Credential::issue(names, now, schedule)?),
            Step::Promote => {
                let next = stored.next.take();
                let old = std::mem::replace(&mut stored.current, next);
                stored.retire(old, now);
            }
            Step::Forget => stored.forget_ended(now),
            Step::Trust | Step::Settle | Step::Rest(_) => {}
        }
        Ok(stored)
    }
}
