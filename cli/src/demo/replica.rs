//! The two replicas by name, and a value for each of them.

use serde::Serialize;

/// One of the two replicas of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Replica {
    Zero,
    One,
}

impl Replica {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::Zero, Self::One];

    /// Its name: that of its pod.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Zero => "replica-0",
            Self::One => "replica-1",
        }
    }

    /// The number in its name, and of its shard.
    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }

    /// By name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|replica| replica.name() == name)
    }

    /// The one that it is not.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }
}

/// A value for each replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct PerReplica<T> {
    #[serde(rename = "replica-0")]
    zero: T,
    #[serde(rename = "replica-1")]
    one: T,
}

impl<T> PerReplica<T> {
    /// The value of each.
    pub(crate) const fn new(zero: T, one: T) -> Self {
        Self { zero, one }
    }

    /// The value of one.
    pub(crate) const fn of(&self, replica: Replica) -> &T {
        match replica {
            Replica::Zero => &self.zero,
            Replica::One => &self.one,
        }
    }

    /// The value of one, to change.
    pub(crate) const fn of_mut(&mut self, replica: Replica) -> &mut T {
        match replica {
            Replica::Zero => &mut self.zero,
            Replica::One => &mut self.one,
        }
    }

    /// Both values.
    pub(crate) const fn both(&self) -> [&T; 2] {
        [&self.zero, &self.one]
    }
}
