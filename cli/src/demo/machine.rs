//! How much of a machine the demo has: beside the story, a thread asks for a little of the CPU again and again, and notes what it got.
//!
//! What came of a wait or a count says nothing about ctrlmesh if the processes did not get to run. It is called inconclusive then, with an
//! exit code of its own, and never a success. What was seen and must not be stays a failure on any machine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use ctrlmesh_contract::Digest;

use super::claims::Claims;
use crate::error::Error;

/// CPU time of one sample: more than what schedulers give to whoever has just slept before others.
const SAMPLE: Duration = Duration::from_millis(30);
/// Between two samples: 6 % of one core.
const PAUSE: Duration = Duration::from_millis(500);
/// What is hashed at a time: far less than a sample.
const PIECE: usize = 16 * 1024;
/// Bytes per second of CPU time that a slow machine of today hashes.
const USUAL_RATE: f64 = 150e6;
/// Samples that are kept: those of ten minutes and more.
const MAX_SAMPLES: usize = 1_200;
/// Waits of the demo are some ten times as long as what they wait for takes on two free cores: it must still happen with a fifth of them.
const LEAST_SHARE: f64 = 0.2;

/// One sample.
#[derive(Debug, Clone, Copy)]
struct Sample {
    began: Instant,
    ended: Instant,
    /// Of the CPU that was asked for, on a machine of usual speed: 0 to 1.
    share: f64,
}

/// What a machine gave; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<Samples>>);

#[derive(Debug, Default)]
struct Samples {
    done: VecDeque<Sample>,
    /// When the sample that is under way began.
    under_way: Option<Instant>,
}

/// The thread that takes samples. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Probe {
    stop: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Begins to take samples.
    pub(crate) fn probe(&self) -> Result<Probe, Error> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let machine = self.clone();
        let thread = std::thread::Builder::new().name("machine".to_owned()).spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                machine.begin(Instant::now());
                machine.end(Instant::now(), work());
            }
            machine.with(|samples| samples.under_way = None);
        });
        Ok(Probe {
            stop: Some(stop),
            thread: Some(thread.map_err(Error::Runtime)?),
        })
    }

    fn begin(&self, now: Instant) {
        self.with(|samples| samples.under_way = Some(now));
    }

    /// `rate`: bytes per second of CPU time.
    fn end(&self, now: Instant, (cpu, rate): (Duration, f64)) {
        self.with(|samples| {
            if let Some(began) = samples.under_way.take() {
                let wall = now.duration_since(began).max(cpu);
                let share = cpu.as_secs_f64() / wall.as_secs_f64() * (rate / USUAL_RATE).min(1.0);
                samples.done.push_back(Sample {
                    began,
                    ended: now,
                    share,
                });
                if samples.done.len() > MAX_SAMPLES {
                    samples.done.pop_front();
                }
            }
        });
    }

    fn with<T>(&self, action: impl FnOnce(&mut Samples) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Which share of the CPU that was asked for the demo got in the last `time`; `None`: nobody knows.
    fn share(&self, now: Instant, time: Duration) -> Option<f64> {
        let is_in = |end: Instant| now.saturating_duration_since(end) <= time;
        self.with(|samples| {
            let recent = samples.done.iter().filter(|sample| is_in(sample.ended));
            // Weighed by time: a sample that took seconds says more than many that took their 30 ms.
            let mut taken: Vec<(f64, f64)> = recent
                .map(|sample| (sample.ended.duration_since(sample.began).as_secs_f64(), sample.share))
                .collect();
            let under_way = samples.under_way.map(|began| now.saturating_duration_since(began));
            taken.extend(under_way.filter(|time| *time > 10 * SAMPLE).map(|time| {
                let most = SAMPLE.as_secs_f64() / time.as_secs_f64();
                (time.as_secs_f64(), most)
            }));
            let wall: f64 = taken.iter().map(|(wall, _)| wall).sum();
            let got: f64 = taken.iter().map(|(wall, share)| wall * share).sum();
            (wall > 0.0).then(|| got / wall)
        })
    }

    /// The share, if it was so small in the last `time` that nothing follows from what did not happen.
    pub(crate) fn too_slow(&self, time: Duration) -> Option<f64> {
        self.share(Instant::now(), time).filter(|share| *share < LEAST_SHARE)
    }

    /// What an error is called: that something did not happen in time says nothing if the machine was too slow for it, unless something
    /// was seen that must not be.
    pub(crate) fn explain(&self, error: Error, claims: &Claims) -> Error {
        match error {
            Error::Deadline { what, after, last } if !claims.are_contradicted() => match self.too_slow(after) {
                Some(share) => Error::TooSlow {
                    percent: percent(share),
                    what,
                    after,
                    last,
                },
                None => Error::Deadline { what, after, last },
            },
            error => error,
        }
    }
}

/// A share in percent, one digit.
fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

impl Drop for Probe {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Hashes for [`SAMPLE`] of CPU time. Returns the CPU time, and bytes per second of it.
fn work() -> (Duration, f64) {
    let (piece, began) = ([0x5a_u8; PIECE], ThreadTime::now());
    let mut bytes = 0.0;
    loop {
        std::hint::black_box(Digest::of(std::hint::black_box(&piece)));
        bytes += PIECE as f64;
        let cpu = began.elapsed();
        if cpu >= SAMPLE {
            return (cpu, bytes / cpu.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::claims::Expected;

    /// A machine on which samples of 30 ms took so long, one after the other, until now.
    fn machine(walls: &[Duration], rate: f64) -> Machine {
        let machine = Machine::default();
        let mut at = Instant::now() - walls.iter().sum::<Duration>();
        for wall in walls {
            machine.begin(at);
            at += *wall;
            machine.end(at, (SAMPLE, rate));
        }
        machine
    }

    fn deadline() -> Error {
        Error::Deadline {
            what: "a thing".to_owned(),
            after: Duration::from_secs(30),
            last: "nothing".to_owned(),
        }
    }

    fn is_too_slow(machine: &Machine, claims: &Claims) -> bool {
        matches!(machine.explain(deadline(), claims), Error::TooSlow { .. })
    }

    const BUSY: Duration = Duration::from_millis(300);
    const FREE: Duration = Duration::from_millis(40);

    #[test]
    fn wait_in_vain_is_inconclusive_on_a_starved_or_slow_machine_and_fails_on_any_other() {
        let claims = Claims::default();
        assert!(is_too_slow(&machine(&[BUSY; 20], 500e6), &claims), "a tenth of a core");
        assert!(is_too_slow(&machine(&[FREE; 20], 10e6), &claims), "a slow core");
        assert!(!is_too_slow(&machine(&[FREE; 20], 500e6), &claims));
        assert!(!is_too_slow(&Machine::default(), &claims), "nobody knows");
        let mostly_free = [[FREE; 100].as_slice(), &[BUSY; 3]].concat();
        assert!(
            !is_too_slow(&machine(&mostly_free, 500e6), &claims),
            "a second is no excuse"
        );
    }

    #[test]
    fn sample_that_does_not_end_counts() {
        let machine = Machine::default();
        machine.begin(Instant::now() - Duration::from_secs(20));
        assert!(is_too_slow(&machine, &Claims::default()));
        machine.begin(Instant::now());
        assert!(!is_too_slow(&machine, &Claims::default()));
    }

    #[test]
    fn load_before_a_wait_does_not_count() {
        let machine = machine(&[BUSY; 20], 500e6);
        let now = Instant::now();
        assert!(machine.share(now, Duration::from_secs(30)).unwrap() < LEAST_SHARE);
        assert_eq!(
            machine.share(now + Duration::from_secs(40), Duration::from_secs(30)),
            None
        );
    }

    #[test]
    fn contradicted_claim_is_not_put_down_to_speed() {
        let busy = machine(&[BUSY; 20], 500e6);
        let mut claims = Claims::default();
        claims.count(2, "widgets with two owners", Expected::Exactly(0), 1);
        assert!(!is_too_slow(&busy, &claims));
        let ended = Error::Ended {
            name: "sidecar-0".to_owned(),
            status: "signal: 9".to_owned(),
            last_words: String::new(),
        };
        assert!(matches!(busy.explain(ended, &Claims::default()), Error::Ended { .. }));
    }

    #[test]
    fn probe_takes_samples_of_this_machine_and_ends_with_its_owner() {
        let machine = Machine::default();
        let probe = machine.probe().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while machine.with(|samples| samples.done.is_empty()) {
            assert!(Instant::now() < deadline, "no sample in a minute");
            std::thread::yield_now();
        }
        drop(probe);
        let share = machine.share(Instant::now(), Duration::from_secs(60)).unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert_eq!(machine.with(|samples| samples.under_way), None);
    }
}
