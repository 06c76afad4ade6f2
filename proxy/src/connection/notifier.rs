//! Notifies every open stream and connection of a worker thread at once: of a new chain, an outage, or the end.
//!
//! One task per worker increments a number and wakes the streams; each stream compares the number when it is polled. So a thousand open
//! watches cost a wake-up each, spread over the event loop, and no lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

#[derive(Debug, Default)]
pub(crate) struct StreamNotifier {
    version: Cell<u64>,
    ending: Cell<bool>,
    outages: Cell<u64>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// A stream's subscription; frees its index when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    notifier: Rc<StreamNotifier>,
    index: usize,
    seen: u64,
    /// Number of outages when the subscription began.
    outages: u64,
}

impl StreamNotifier {
    pub(crate) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Notifies of a new chain in force.
    pub(crate) fn chain_changed(&self) {
        self.version.set(self.version.get() + 1);
        self.wake_all();
    }

    /// Ends streams that would otherwise go on for hours.
    pub(crate) fn end(&self) {
        self.ending.set(true);
        self.wake_all();
    }

    /// Ends connections at once, because an outage begins.
    pub(crate) fn break_off(&self) {
        self.outages.set(self.outages.get() + 1);
        self.wake_all();
    }

    fn wake_all(&self) {
        // The wakers are taken out first, because waking may run code that comes back here.
        let woken: Vec<Waker> = self.wakers.borrow_mut().iter_mut().filter_map(Option::take).collect();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Subscribes; earlier events are not reported.
    pub(crate) fn listen(self: &Rc<Self>) -> Listener {
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut wakers = self.wakers.borrow_mut();
            wakers.push(None);
            wakers.len() - 1
        });
        Listener {
            notifier: Rc::clone(self),
            index,
            seen: self.version.get(),
            outages: self.outages.get(),
        }
    }
}

impl Listener {
    /// Whether a new chain came into force since the last call that returned true. Registers for the next one.
    pub(crate) fn poll_changed(&mut self, cx: &Context<'_>) -> bool {
        if let Some(entry) = self.notifier.wakers.borrow_mut().get_mut(self.index) {
            match entry {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => *entry = Some(cx.waker().clone()),
            }
        }
        let version = self.notifier.version.get();
        std::mem::replace(&mut self.seen, version) != version
    }

    /// Whether an outage has begun since the subscription.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.notifier.outages.get() != self.outages
    }

    /// Whether streams must end.
    pub(crate) fn is_ending(&self) -> bool {
        self.notifier.ending.get()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(entry) = self.notifier.wakers.borrow_mut().get_mut(self.index) {
            *entry = None;
        }
        self.notifier.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_sees_each_change_once_and_frees_its_index() {
        let notifier = StreamNotifier::new();
        let cx = Context::from_waker(Waker::noop());
        let mut listener = notifier.listen();
        assert!(!listener.poll_changed(&cx));
        notifier.chain_changed();
        assert!(listener.poll_changed(&cx));
        assert!(!listener.poll_changed(&cx));
        drop(listener);
        let second = notifier.listen();
        assert_eq!(second.index, 0);
        assert_eq!(notifier.wakers.borrow().len(), 1);
        assert!(!second.is_broken_off());
        notifier.break_off();
        assert!(second.is_broken_off() && !notifier.listen().is_broken_off());
        notifier.end();
        assert!(second.is_ending());
    }
}
