//! The client connection as its requests see it.
//!
//! | file | what is in it |
//! |---|---|
//! | `incoming_body` | request bodies, and memory for bytes that arrive before they are read |
//! | `readers` | closes connections whose clients read nothing, if memory is scarce |
//! | `handle` | [`Connection`]: how a request acts on its connection |
//! | `unread_body` | the rest of a request body that is not read to its end, which is discarded |
//! | `activity` | detects connections that have been idle for too long |
//! | `header_block` | tells whether a header block of HTTP/2 is arriving |
//! | `read_limit` | limits the reads of HTTP/1.1, so that hyper's buffer stays small |
//! | `outage` | an interval in which a port is closed because of a plugin |
//! | `metrics` | metrics of the memory of clients |
//! | `memory` | bytes that requests hold, bounded for each connection and for all |
//! | `unsent` | bytes of responses that are not written yet, bounded for each connection and for all |
//! | `notifier` | wakes the streams of one thread: a new chain, an outage, the end |

mod activity;
mod handle;
mod header_block;
mod incoming_body;
mod memory;
mod metrics;
mod notifier;
mod outage;
mod read_limit;
mod readers;
mod unread_body;
mod unsent;

pub(crate) use activity::{Deadlines, Expired, HEAD_TIMEOUT, ObservedStream, Timeouts};
pub(crate) use handle::{CONNECTION_WINDOW, Connection, Disposition, RequestGuard, STREAM_WINDOW};
pub(crate) use incoming_body::IncomingBody;
pub(crate) use memory::{ClientMemory, OverBound, RequestMemory, field_size, head_size, target_size};
pub(crate) use metrics::ClientMemorySeries;
pub(crate) use notifier::{Listener, StreamNotifier};
pub(crate) use outage::{Outage, Outages};
pub(crate) use read_limit::LimitedReads;
pub(crate) use readers::ResponseReaders;
#[cfg(test)]
pub(crate) use unread_body::MAX_DISCARDED;
pub(crate) use unsent::{ResponseMemory, UnsentCounter};
