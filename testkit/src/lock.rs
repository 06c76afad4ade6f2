//! Locks of state that connections and the program share. A test may panic while it holds one, but only reads then, so a poisoned lock
//! is as good as any.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
