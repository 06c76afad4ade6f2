//! What a request shares with the client connection that it came on.
//!
//! | file | what is in it |
//! |---|---|
//! | `memory` | bytes that requests hold, bounded for each connection and for all |
//! | `notifier` | wakes the streams of one thread: a new chain, an outage, the end |
//! | `outage` | a time in which a port is closed, because a plugin asked for it |

pub(crate) mod memory;
pub(crate) mod notifier;
pub(crate) mod outage;
