//! Client connections of all ports but the admin port: taken from the kernel, dealt to worker threads, served.
//!
//! | file | what is in it |
//! |---|---|
//! | `accept` | binds ports, accepts connections and deals them to the workers |
//! | `connection` | one client connection: TLS or not, HTTP/1.1 or HTTP/2, served until it ends |
//! | `tls` | the certificate for TLS clients, read again when it changes |
//! | `worker` | the worker threads |

pub(crate) mod accept;
pub(crate) mod connection;
pub(crate) mod tls;
pub(crate) mod worker;
