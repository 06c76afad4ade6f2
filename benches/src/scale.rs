//! How long and how much is measured.

use std::time::Duration;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Scale {
    /// Seconds of each measurement in a round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Rounds; tables show their medians
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Connections of the plaintext measurements
    #[arg(long, default_value_t = 32)]
    pub(crate) connections: usize,
    /// Also measure `filtered-watches` and what has no budget, except `instructions`
    #[arg(long)]
    pub(crate) all: bool,
}

impl Scale {
    pub(crate) const fn round_time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
