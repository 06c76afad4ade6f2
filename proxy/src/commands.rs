//! What the program runs besides the sidecar.
//!
//! | file | what is in it |
//! |---|---|
//! | `announce` | what the process itself writes to standard output and standard error |
//! | `init` | `ctrlmesh-proxy init`: redirects the pod's traffic to the sidecar |
//! | `wait_ready` | `ctrlmesh-proxy wait-ready`: waits until the sidecar beside it is ready |

pub mod announce;
pub mod init;
pub mod wait_ready;
