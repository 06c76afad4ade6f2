//! Client connections: accepted, distributed to the worker threads, served. The admin port is in `observe`.
//!
//! | file | what is in it |
//! |---|---|
//! | `accept` | binds ports, accepts connections and distributes them to the workers |
//! | `threads` | the worker threads |
//! | `serve` | one client connection: TLS or not, HTTP/1.1 or HTTP/2, served until it ends |
//! | `opening` | detects the client's protocol from its first bytes |
//! | `tls` | the certificate for TLS clients, reloaded when it changes |

pub(crate) mod accept;
mod opening;
pub(crate) mod serve;
pub(crate) mod threads;
pub(crate) mod tls;
