//! Deadlines of the requests of one worker thread that wait for the head of their response, with one timer for all of them.
//!
//! Nearly all requests have the same limit and are answered long before it. A timer for each would be registered and cancelled with each;
//! here a request only notes its deadline, and the timer is set again when it has fired.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};

use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

#[derive(Debug, Default)]
pub(super) struct HeadDeadlines {
    shared: Rc<Shared>,
    task: RefCell<Option<AbortOnDropHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: RefCell<Vec<Entry>>,
    /// Indices of `waiting` that are free.
    free: RefCell<Vec<usize>>,
    /// When the timer fires; `None` if it is not set.
    fires_at: Cell<Option<Instant>>,
    /// Wakes the task that owns the timer.
    timer: RefCell<Option<Waker>>,
}

#[derive(Debug)]
enum Entry {
    Free,
    Waiting { deadline: Instant, waker: Waker },
    Expired,
}

/// A request that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Deadline {
    shared: Rc<Shared>,
    index: usize,
}

impl HeadDeadlines {
    /// Wakes the request at its deadline. Call it in a `LocalSet`.
    pub(super) fn begin(&self, deadline: Instant, cx: &Context<'_>) -> Deadline {
        let index = self.shared.insert(Entry::Waiting {
            deadline,
            waker: cx.waker().clone(),
        });
        if self.shared.fires_at.get().is_none_or(|fires_at| deadline < fires_at) {
            self.shared.wake_timer();
            self.task.borrow_mut().get_or_insert_with(|| {
                AbortOnDropHandle::new(tokio::task::spawn_local(run_timer(Rc::clone(&self.shared))))
            });
        }
        Deadline {
            shared: Rc::clone(&self.shared),
            index,
        }
    }
}

impl Deadline {
    /// Ready when the deadline has passed.
    pub(super) fn poll_expired(&self, cx: &Context<'_>) -> Poll<()> {
        match self.shared.waiting.borrow_mut().get_mut(self.index) {
            Some(Entry::Waiting { waker, .. }) => {
                if !waker.will_wake(cx.waker()) {
                    waker.clone_from(cx.waker());
                }
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let entry = self.shared.replace(self.index, Entry::Free);
        self.shared.free.borrow_mut().push(self.index);
        drop(entry);
    }
}

impl Shared {
    fn insert(&self, entry: Entry) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(index) = self.free.borrow_mut().pop()
            && let Some(free) = waiting.get_mut(index)
        {
            *free = entry;
            return index;
        }
        waiting.push(entry);
        waiting.len() - 1
    }

    fn replace(&self, index: usize, entry: Entry) -> Option<Entry> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.get_mut(index).map(|known| std::mem::replace(known, entry))
    }

    fn wake_timer(&self) {
        if let Some(timer) = self.timer.take() {
            timer.wake();
        }
    }

    fn earliest(&self) -> Option<Instant> {
        let waiting = self.waiting.borrow();
        let deadlines = waiting.iter().filter_map(|entry| match entry {
            Entry::Waiting { deadline, .. } => Some(*deadline),
            Entry::Free | Entry::Expired => None,
        });
        deadlines.min()
    }

    fn expire(&self, now: Instant) {
        let is_over = |entry: &&mut Entry| matches!(entry, Entry::Waiting { deadline, .. } if *deadline <= now);
        let expired: Vec<_> = self
            .waiting
            .borrow_mut()
            .iter_mut()
            .filter(is_over)
            .map(|entry| std::mem::replace(entry, Entry::Expired))
            .collect();
        // Without a borrow, because waking may run code that comes back here.
        for entry in expired {
            if let Entry::Waiting { waker, .. } = entry {
                waker.wake();
            }
        }
    }
}

/// Expires deadlines for as long as it runs.
async fn run_timer(shared: Rc<Shared>) {
    let mut sleep = pin!(sleep_until(Instant::now()));
    poll_fn(|cx| {
        loop {
            let earliest = shared.earliest();
            shared.fires_at.set(earliest);
            shared.timer.replace(Some(cx.waker().clone()));
            let Some(earliest) = earliest else {
                return Poll::Pending;
            };
            if sleep.deadline() != earliest {
                sleep.as_mut().reset(earliest);
            }
            ready!(sleep.as_mut().poll(cx));
            shared.expire(Instant::now());
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::LocalSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits until a deadline of so many seconds expires. Returns after how many seconds it did.
    async fn wait(deadlines: &HeadDeadlines, seconds: u32) -> u64 {
        let start = Instant::now();
        let mut deadline = None;
        poll_fn(|cx| {
            let deadline = deadline.get_or_insert_with(|| deadlines.begin(start + seconds * SECOND, cx));
            deadline.poll_expired(cx)
        })
        .await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_expires_at_its_own_deadline() {
        let deadlines = HeadDeadlines::default();
        let all = async {
            tokio::join!(
                wait(&deadlines, 5),
                wait(&deadlines, 2),
                wait(&deadlines, 5),
                wait(&deadlines, 9)
            )
        };
        assert_eq!(LocalSet::new().run_until(all).await, (5, 2, 5, 9));
        assert_eq!(deadlines.shared.free.borrow().len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn later_request_expires_although_timer_fires_for_earlier_one_that_was_answered() {
        let deadlines = HeadDeadlines::default();
        let one_after_another = async {
            let answered = tokio::time::timeout(SECOND, wait(&deadlines, 5)).await;
            assert!(answered.is_err());
            let first = wait(&deadlines, 5).await;
            // The timer is not set any more.
            tokio::time::sleep(100 * SECOND).await;
            (first, wait(&deadlines, 5).await)
        };
        assert_eq!(LocalSet::new().run_until(one_after_another).await, (5, 5));
        assert_eq!(deadlines.shared.waiting.borrow().len(), 1, "indices are reused");
    }
}
