//! Measures how much CPU the demo gets: a thread asks for a little CPU time again and again, and records how much it got.
//!
//! If the processes did not get to run, a timeout or a count says nothing about ctrlmesh. It is then reported as inconclusive, with
//! an exit code of its own, and never as a success. A count that must never be seen is a failure on any machine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use ctrlmesh_contract::Digest;

use super::checks::Checks;
use crate::error::Error;

/// CPU time of one sample: more than the credit that schedulers give to a thread that has just slept.
const SAMPLE: Duration = Duration::from_millis(30);
/// Pause between samples: 6 % load on one core.
const PAUSE: Duration = Duration::from_millis(500);
/// Bytes hashed at a time: much less than a sample.
const PIECE: usize = 16 * 1024;
/// Bytes that a slow machine of today hashes per second of CPU time.
const USUAL_RATE: f64 = 150e6;
/// Samples kept: ten minutes and more.
const MAX_SAMPLES: usize = 1_200;
/// The demo's timeouts are about ten times what two free cores need; with a fifth of that CPU, the steps must still finish in time.
const LEAST_SHARE: f64 = 0.2;

#[derive(Debug, Clone, Copy)]
struct Sample {
    began: Instant,
    ended: Instant,
    /// Share of the requested CPU, relative to a machine of usual speed: 0 to 1.
    share: f64,
}

/// Clones share the samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuMonitor(Arc<Mutex<Samples>>);

#[derive(Debug, Default)]
struct Samples {
    done: VecDeque<Sample>,
    /// Start of the sample in progress.
    under_way: Option<Instant>,
}

/// The sampling thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct CpuProbe {
    stop: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CpuMonitor {
    pub(crate) fn start_probe(&self) -> Result<CpuProbe, Error> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let monitor = self.clone();
        let thread = std::thread::Builder::new().name("machine".to_owned()).spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                monitor.begin_sample(Instant::now());
                monitor.end_sample(Instant::now(), hash_for_sample());
            }
            monitor.with_samples(|samples| samples.under_way = None);
        });
        Ok(CpuProbe {
            stop: Some(stop),
            thread: Some(thread.map_err(Error::Runtime)?),
        })
    }

    fn begin_sample(&self, now: Instant) {
        self.with_samples(|samples| samples.under_way = Some(now));
    }

    /// `rate`: bytes hashed per second of CPU time.
    fn end_sample(&self, now: Instant, (cpu, rate): (Duration, f64)) {
        self.with_samples(|samples| {
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

    fn with_samples<T>(&self, action: impl FnOnce(&mut Samples) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The share of the requested CPU that the demo got in the last `time`; `None` without samples.
    fn cpu_share(&self, now: Instant, time: Duration) -> Option<f64> {
        let is_in = |end: Instant| now.saturating_duration_since(end) <= time;
        self.with_samples(|samples| {
            let recent = samples.done.iter().filter(|sample| is_in(sample.ended));
            // Weighted by time: a sample that took seconds says more than many that took 30 ms.
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

    /// The share, if it was too small in the last `time` to draw conclusions from a timeout.
    pub(crate) fn too_slow(&self, time: Duration) -> Option<f64> {
        self.cpu_share(Instant::now(), time)
            .filter(|share| *share < LEAST_SHARE)
    }

    /// Turns a timeout into an inconclusive result if the machine was too slow, unless a check is contradicted by what was seen.
    pub(crate) fn explain_timeout(&self, error: Error, checks: &Checks) -> Error {
        match error {
            Error::Deadline { what, after, last } if !checks.are_contradicted() => match self.too_slow(after) {
                Some(share) => Error::TooSlow {
                    percent: format_percent(share),
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

fn format_percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

impl Drop for CpuProbe {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Hashes for [`SAMPLE`] of CPU time. Returns the CPU time and bytes per second of it.
fn hash_for_sample() -> (Duration, f64) {
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
    use crate::demo::checks::Expected;

    /// A monitor whose last samples, of 30 ms CPU each, took these wall times.
    fn monitor_with(walls: &[Duration], rate: f64) -> CpuMonitor {
        let monitor = CpuMonitor::default();
        let mut at = Instant::now() - walls.iter().sum::<Duration>();
        for wall in walls {
            monitor.begin_sample(at);
            at += *wall;
            monitor.end_sample(at, (SAMPLE, rate));
        }
        monitor
    }

    fn deadline_error() -> Error {
        Error::Deadline {
            what: "a thing".to_owned(),
            after: Duration::from_secs(30),
            last: "nothing".to_owned(),
        }
    }

    fn is_too_slow(monitor: &CpuMonitor, checks: &Checks) -> bool {
        matches!(monitor.explain_timeout(deadline_error(), checks), Error::TooSlow { .. })
    }

    const BUSY: Duration = Duration::from_millis(300);
    const FREE: Duration = Duration::from_millis(40);

    #[test]
    fn timeout_is_inconclusive_only_when_machine_is_starved_or_slow() {
        let checks = Checks::default();
        assert!(
            is_too_slow(&monitor_with(&[BUSY; 20], 500e6), &checks),
            "a tenth of a core"
        );
        assert!(is_too_slow(&monitor_with(&[FREE; 20], 10e6), &checks), "a slow core");
        assert!(!is_too_slow(&monitor_with(&[FREE; 20], 500e6), &checks));
        assert!(!is_too_slow(&CpuMonitor::default(), &checks), "nobody knows");
        let mostly_free = [[FREE; 100].as_slice(), &[BUSY; 3]].concat();
        assert!(
            !is_too_slow(&monitor_with(&mostly_free, 500e6), &checks),
            "a second is no excuse"
        );
    }

    #[test]
    fn unfinished_sample_counts() {
        let monitor = CpuMonitor::default();
        monitor.begin_sample(Instant::now() - Duration::from_secs(20));
        assert!(is_too_slow(&monitor, &Checks::default()));
        monitor.begin_sample(Instant::now());
        assert!(!is_too_slow(&monitor, &Checks::default()));
    }

    #[test]
    fn load_before_wait_does_not_count() {
        let monitor = monitor_with(&[BUSY; 20], 500e6);
        let now = Instant::now();
        assert!(monitor.cpu_share(now, Duration::from_secs(30)).unwrap() < LEAST_SHARE);
        assert_eq!(
            monitor.cpu_share(now + Duration::from_secs(40), Duration::from_secs(30)),
            None
        );
    }

    #[test]
    fn contradicted_check_is_not_excused_by_slow_machine() {
        let busy = monitor_with(&[BUSY; 20], 500e6);
        let mut checks = Checks::default();
        checks.record_count(2, "widgets with two owners", Expected::Exactly(0), 1);
        assert!(!is_too_slow(&busy, &checks));
        let ended = Error::Ended {
            name: "sidecar-0".to_owned(),
            status: "signal: 9".to_owned(),
            last_words: String::new(),
        };
        assert!(matches!(
            busy.explain_timeout(ended, &Checks::default()),
            Error::Ended { .. }
        ));
    }

    #[test]
    fn probe_takes_samples_and_ends_when_dropped() {
        let monitor = CpuMonitor::default();
        let probe = monitor.start_probe().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while monitor.with_samples(|samples| samples.done.is_empty()) {
            assert!(Instant::now() < deadline, "no sample in a minute");
            std::thread::yield_now();
        }
        drop(probe);
        let share = monitor.cpu_share(Instant::now(), Duration::from_secs(60)).unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert_eq!(monitor.with_samples(|samples| samples.under_way), None);
    }
}
