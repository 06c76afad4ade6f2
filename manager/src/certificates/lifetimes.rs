//! Lifetimes of the manager's certificates, and the pauses of their rotations.

use std::time::Duration;

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The CA of the webhooks, which API servers read again when it changes.
pub(crate) const WEBHOOKS: Schedule = Schedule {
    life: YEAR,
    renew_before: Duration::from_secs(120 * DAY.as_secs()),
    leaf: None,
    settle: Duration::from_secs(300),
    rest: Duration::from_secs(3600),
};

/// The CAs of sidecars. Programs read their bundle once, when they start. So a CA is in the bundle for four years before it is used.
pub(crate) const SIDECARS: Schedule = Schedule {
    life: Duration::from_secs(10 * YEAR.as_secs()),
    renew_before: Duration::from_secs(5 * YEAR.as_secs()),
    leaf: Some(Leaf {
        life: YEAR,
        renew_before: Duration::from_secs(120 * DAY.as_secs()),
        serve_before: YEAR,
    }),
    settle: Duration::from_secs(3600),
    rest: Duration::from_secs(3600),
};

/// Lifetimes and pauses of a CA.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Lifetime of a CA, and of its certificate unless `leaf` is set.
    pub life: Duration,
    /// Time before the end of a CA at which a new one is prepared: long enough that a manager may be switched off for weeks.
    pub renew_before: Duration,
    /// Certificates that expire before their CA; `None`: a CA has one certificate, with its own lifetime.
    pub leaf: Option<Leaf>,
    /// Time from a bundle in etcd until every API server uses it.
    pub settle: Duration,
    /// Longest time until the next check.
    pub rest: Duration,
}

/// Lifetimes of certificates if a CA signs several.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    pub life: Duration,
    /// Time before its end at which the next certificate is signed.
    pub renew_before: Duration,
    /// A prepared CA is used when the current CA has this much time left, and not before.
    pub serve_before: Duration,
}
