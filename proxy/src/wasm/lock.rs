//! Locks of the numbers and texts that instances on all threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No code panics while it holds one of these locks, and even then the data would be consistent.
pub(crate) fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
