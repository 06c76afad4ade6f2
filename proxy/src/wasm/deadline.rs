//! Stops calls that take too long: counts epochs, and checks the time that the thread has really run.
//!
//! A sidecar shares its cores and is often throttled. If the epoch alone counted, a thread that waits 20 ms for a core would fail a plugin
//! that needs 2 µs. So the deadline has two halves. When the first is over, the thread's processor time is noted. When the second is over,
//! the call is stopped if the thread has run during it; otherwise it gets another half. A guest that spins on a free core is stopped at its
//! deadline, and none gets more than [`MAX_STRETCH`] times as long. An ordinary call costs nothing of this, because it returns before the
//! first half is over.

use std::time::Duration;

use cpu_time::ThreadTime;
use wasmtime::UpdateDeadline;

use super::ticker::TICK;

/// Maximum real time of a call as a multiple of its deadline, however little its thread was scheduled.
const MAX_STRETCH: u32 = 10;

/// The deadline of the running call.
#[derive(Debug)]
pub(crate) struct Deadline {
    half: Duration,
    stage: Stage,
    /// Halves that may still be added.
    extensions: u32,
}

#[derive(Debug)]
enum Stage {
    First,
    /// The thread's processor time at the start of the half, if the kernel reports it.
    Second(Option<ThreadTime>),
}

impl Deadline {
    /// The deadline of a call that starts now, and the number of epochs until its first check.
    pub(crate) fn start(limit: Duration) -> (Self, u64) {
        let half = limit / 2;
        // One more, because the current epoch is already partly over.
        let epochs = epochs_in(half).saturating_add(1);
        (
            Self {
                half,
                stage: Stage::First,
                extensions: 2 * (MAX_STRETCH - 1),
            },
            epochs,
        )
    }

    /// Decides whether the call continues when its epochs are over.
    pub(crate) fn extend_or_interrupt(&mut self) -> UpdateDeadline {
        if let Stage::Second(start) = &self.stage {
            let has_run = start.as_ref().and_then(|start| start.try_elapsed().ok());
            // Three quarters, because even a free core does other work too. Without a reading, real time decides.
            let is_over = has_run.is_none_or(|has_run| has_run >= self.half * 3 / 4);
            if is_over || self.extensions == 0 {
                return UpdateDeadline::Interrupt;
            }
            self.extensions -= 1;
        } else {
            self.stage = Stage::Second(ThreadTime::try_now().ok());
        }
        UpdateDeadline::Continue(epochs_in(self.half))
    }
}

fn epochs_in(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos()))
        .unwrap_or(u64::MAX / 2)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_runs_is_stopped_at_end_of_second_half() {
        let (mut deadline, first) = Deadline::start(Duration::from_millis(20));
        assert_eq!(first, 11);
        assert!(matches!(deadline.extend_or_interrupt(), UpdateDeadline::Continue(10)));
        let start = ThreadTime::now();
        while start.elapsed() < Duration::from_millis(10) {}
        assert!(matches!(deadline.extend_or_interrupt(), UpdateDeadline::Interrupt));
    }

    #[test]
    fn thread_that_does_not_run_gets_limited_extra_time() {
        let (mut deadline, _) = Deadline::start(Duration::from_secs(3600));
        let mut halves = 1;
        while matches!(deadline.extend_or_interrupt(), UpdateDeadline::Continue(_)) {
            halves += 1;
        }
        assert_eq!(halves, 2 * MAX_STRETCH);
    }
}
