//! The two replicas, and a value for each of them.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Replica {
    Zero,
    One,
}

impl Replica {
    pub(crate) const BOTH: [Self; 2] = [Self::Zero, Self::One];

    /// Name of the replica and of its pod.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Zero => "replica-0",
            Self::One => "replica-1",
        }
    }

    /// The number in its name, and in that of its shard.
    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|replica| replica.name() == name)
    }

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
    pub(crate) const fn new(zero: T, one: T) -> Self {
        Self { zero, one }
    }

    pub(crate) const fn get(&self, replica: Replica) -> &T {
        match replica {
            Replica::Zero => &self.zero,
            Replica::One => &self.one,
        }
    }

    pub(crate) const fn get_mut(&mut self, replica: Replica) -> &mut T {
        match replica {
            Replica::Zero => &mut self.zero,
            Replica::One => &mut self.one,
        }
    }

    pub(crate) const fn both(&self) -> [&T; 2] {
        [&self.zero, &self.one]
    }
}
