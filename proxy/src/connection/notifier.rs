//! Notifies every open stream and connection of a worker thread at once: of a new chain, an outage, or the end.
//!
//! One task per worker bumps a number and wakes the streams; each stream compares the number when it is polled. So a
//! thousand open watches cost a wake-up each, spread over the event loop, and no lock.

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

/// A stream's side; leaves its place when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    notifier: Rc<StreamNotifier>,
    place: usize,
    seen: u64,
    /// How many outages there had been when it began.
    outages: u64,
}

impl StreamNotifier {
    pub(crate) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// A new chain is in force.
    pub(crate) fn chain_changed(&self) {
        self.version.set(self.version.get() + 1);
        self.wake_all();
    }

    /// Streams that would go on for hours end now.
    pub(crate) fn end(&self) {
        self.ending.set(true);
        self.wake_all();
    }

    /// An outage begins: connections end at once.
    pub(crate) fn break_off(&self) {
        self.outages.set(self.outages.get() + 1);
        self.wake_all();
    }

    fn wake_all(&self) {
        // Wakers are taken out first: waking may run code that comes back here.
        let woken: Vec<Waker> = self.wakers.borrow_mut().iter_mut().filter_map(Option::take).collect();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Starts to listen; what was before is not heard.
    pub(crate) fn listen(self: &Rc<Self>) -> Listener {
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut wakers = self.wakers.borrow_mut();
            wakers.push(None);
            wakers.len() - 1
        });
        Listener {
            notifier: Rc::clone(self),
            place,
            seen: self.version.get(),
            outages: self.outages.get(),
        }
    }
}

impl Listener {
    /// Whether a new chain came into force since the last call that said so. Registers for the next one.
    pub(crate) fn poll_changed(&mut self, cx: &Context<'_>) -> bool {
        if let Some(place) = self.notifier.wakers.borrow_mut().get_mut(self.place) {
            match place {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => *place = Some(cx.waker().clone()),
            }
        }
        let version = self.notifier.version.get();
        std::mem::replace(&mut self.seen, version) != version
    }

    /// Whether an outage has begun since it listens.
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
        if let Some(place) = self.notifier.wakers.borrow_mut().get_mut(self.place) {
            *place = None;
        }
        self.notifier.free.borrow_mut().push(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_hears_each_change_once_and_gives_its_place_back() {
        let notifier = StreamNotifier::new();
        let cx = Context::from_waker(Waker::noop());
        let mut listener = notifier.listen();
        assert!(!listener.poll_changed(&cx));
        notifier.chain_changed();
        assert!(listener.poll_changed(&cx));
        assert!(!listener.poll_changed(&cx));
        drop(listener);
        let second = notifier.listen();
        assert_eq!(second.place, 0);
        assert_eq!(notifier.wakers.borrow().len(), 1);
        assert!(!second.is_broken_off());
        notifier.break_off();
        assert!(second.is_broken_off() && !notifier.listen().is_broken_off());
        notifier.end();
        assert!(second.is_ending());
    }
}
