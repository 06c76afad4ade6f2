//! The servers that one worker thread connects to, each with its connections: a bounded set; the longest unused is dropped first.
//!
//! Leaves the connections themselves to `upstream`. The reader of a response keeps its target's connections alive (`Record::keep`), so
//! dropping a target cuts nothing off.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use rustls_pki_types::ServerName;
use tokio::time::Instant;

use crate::upstream::Upstream;

/// Maximum number of targets. A controller calls a handful of services; a client that names a new one each time must not fill the memory.
const MAX_TARGETS: usize = 256;

/// A target that was not requested for this long is dropped with its connections. Same as the idle timeout of client-go and Go.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Interval between searches for unused targets.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Identifies the server that connections can be shared for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TargetKey {
    pub(super) is_tls: bool,
    /// In lower case, without a dot at its end.
    pub(super) name: ServerName<'static>,
    pub(super) port: u16,
}

pub(super) struct Targets {
    known: RefCell<HashMap<TargetKey, KnownTarget>>,
    count: Gauge,
}

struct KnownTarget {
    upstream: Rc<Upstream>,
    used: Cell<Instant>,
}

impl KnownTarget {
    fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.upstream) > 1
    }
}

impl Targets {
    /// `count` is shared by all threads.
    pub(super) fn new(count: Gauge) -> Self {
        Self {
            known: RefCell::default(),
            count,
        }
    }

    /// The connections to a server; `make` creates them if there are none yet.
    ///
    /// # Errors
    /// The error of `make`.
    pub(super) fn get<E>(
        &self,
        key: &TargetKey,
        make: impl FnOnce() -> Result<Rc<Upstream>, E>,
    ) -> Result<Rc<Upstream>, E> {
        let mut known = self.known.borrow_mut();
        if let Some(target) = known.get(key) {
            target.used.set(Instant::now());
            return Ok(Rc::clone(&target.upstream));
        }
        let upstream = make()?;
        if known.len() >= MAX_TARGETS {
            let oldest = known
                .iter()
                .min_by_key(|(_, target)| (target.is_in_use(), target.used.get()));
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                known.remove(&oldest);
                self.count.dec();
            }
        }
        let target = KnownTarget {
            upstream: Rc::clone(&upstream),
            used: Cell::new(Instant::now()),
        };
        known.insert(key.clone(), target);
        self.count.inc();
        Ok(upstream)
    }

    /// Drops targets that are not in use and were not requested lately.
    pub(super) fn drop_unused(&self) {
        let mut known = self.known.borrow_mut();
        let before = known.len();
        known.retain(|_, target| target.is_in_use() || target.used.get().elapsed() < IDLE_TIMEOUT);
        for _ in known.len()..before {
            self.count.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::upstream::{Gate, Limits, Target};

    fn key_number(number: u16) -> TargetKey {
        TargetKey {
            is_tls: false,
            name: "host.example".try_into().unwrap(),
            port: number,
        }
    }

    fn get_target(targets: &Targets, number: u16) -> (Rc<Upstream>, bool) {
        let mut is_new = false;
        let upstream = targets.get(&key_number(number), || {
            is_new = true;
            let gate = Arc::new(Gate::new(|_, _| Ok(())));
            let target = Target::external(&key_number(number).name, number, None, gate).unwrap();
            Ok::<_, Infallible>(Upstream::new(target, Limits::default()))
        });
        (upstream.unwrap(), is_new)
    }

    #[tokio::test(start_paused = true)]
    async fn targets_are_bounded_and_longest_unused_is_dropped_first() {
        let targets = Targets::new(Gauge::default());
        let (kept, _) = get_target(&targets, 1);
        for number in 2..=256 {
            get_target(&targets, number);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(!get_target(&targets, 2).1, "asked for again");
        assert!(get_target(&targets, 300).1);
        assert_eq!((targets.known.borrow().len(), targets.count.get()), (256, 256));
        let (again, is_new) = get_target(&targets, 1);
        assert!(!is_new && Rc::ptr_eq(&kept, &again), "what is in use stays");
        assert!(!get_target(&targets, 2).1);
        assert!(get_target(&targets, 3).1, "the longest unused was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn unused_target_is_dropped_unless_in_use() {
        let targets = Targets::new(Gauge::default());
        let (kept, _) = get_target(&targets, 1);
        get_target(&targets, 2);
        tokio::time::advance(IDLE_TIMEOUT - Duration::from_secs(1)).await;
        targets.drop_unused();
        assert_eq!(targets.count.get(), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        targets.drop_unused();
        assert_eq!((targets.known.borrow().len(), targets.count.get()), (1, 1));
        drop(kept);
        targets.drop_unused();
        assert_eq!(targets.count.get(), 0);
    }
}
