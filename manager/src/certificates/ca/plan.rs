//! Plans the next step of a rotation, so that clients which trust the bundle in force accept the certificate of any replica.
//!
//! Flow of a rotation: [`Step::Prepare`] puts a new CA and certificate into the Secret, where replicas do not use them yet;
//! [`Step::Trust`] adds the CA to every bundle; after [`Schedule::settle`], when every API server has read it, [`Step::Promote`]
//! makes replicas serve it. The old CA stays in the bundle until it expires, so that a replica that has not seen the change is
//! still accepted. A change of the server's names is a rotation, too, so that clients with the old names are still served.
//!
//! Some clients read their bundle only once, when they start. For them a CA must be in the bundle for years before it is used. Such
//! a CA lives long and signs one certificate after the other ([`Leaf`](crate::certificates::lifetimes::Leaf)).

use std::time::{Duration, SystemTime};

use super::Error;
use super::credential::{Credential, parse_certificates};
use super::stored::Stored;
use crate::certificates::lifetimes::Schedule;

/// State of a CA and of everything that depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaState<'a> {
    pub(crate) now: SystemTime,
    pub(crate) stored: &'a Stored,
    /// Names that clients use for the server.
    pub(crate) names: &'a [String],
    /// The bundle of each configured webhook, PEM.
    pub(crate) bundles: &'a [String],
    /// Since when every bundle has been complete.
    pub(crate) trusted_since: Option<SystemTime>,
}

/// One step. Then the state is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Issue a certificate and serve it, because there is none that clients would accept.
    Issue,
    /// Sign new certificates by the current CA and by the prepared one.
    Sign,
    /// Write [`Stored::trust_bundle`] to every webhook.
    Trust,
    /// Issue the certificate that will be served next.
    Prepare,
    /// Record that every bundle is complete from now on.
    Settle,
    /// Serve the prepared certificate.
    Promote,
    /// Remove expired CAs.
    Forget,
    /// Do nothing for this long.
    Rest(Duration),
}

pub(crate) fn next_step(state: &CaState<'_>, schedule: &Schedule) -> Step {
    let CaState { now, stored, names, .. } = *state;
    if let Some(leaf) = &schedule.leaf
        && stored.credentials().any(|it| it.is_due(leaf, names, now))
    {
        return Step::Sign;
    }
    let next = stored.next.as_ref().filter(|it| it.is_accepted(names, now));
    // A certificate with other names is still valid for clients with these names, until there is a new one.
    let Some(current) = stored.current.as_ref().filter(|it| it.is_accepted(&[], now)) else {
        return if next.is_some() { Step::Promote } else { Step::Issue };
    };
    if !state
        .bundles
        .iter()
        .all(|bundle| is_same(bundle, &stored.trust_bundle()))
    {
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
    let until = match (next, stored.next.is_some(), state.trusted_since) {
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
        let mut all = parse_certificates(pem);
        all.sort_unstable_by(|a, b| a.as_ref().cmp(b.as_ref()));
        all.dedup();
        all
    };
    sorted(bundle) == sorted(other)
}

impl Stored {
    /// The Secret's content after a step. Steps that do not concern the Secret leave it as it is.
    ///
    /// # Errors
    /// No certificate can be issued.
    pub(crate) fn with_step(
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
                stored.retire_ca(old, now);
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
                stored.retire_ca(old, now);
            }
            Step::Forget => stored.forget_ended(now),
            Step::Trust | Step::Settle | Step::Rest(_) => {}
        }
        Ok(stored)
    }
}
