//! Commands besides the sidecar: those that kubelet runs, and one for building images.
//!
//! | file | what is in it |
//! |---|---|
//! | `init` | `ctrlmesh-proxy init`: redirects the pod's traffic to the sidecar |
//! | `precompile` | `ctrlmesh-proxy precompile`: compiles plugins for images |
//! | `wait_ready` | `ctrlmesh-proxy wait-ready`: waits until the sidecar beside it is ready |

pub mod init;
pub mod precompile;
pub mod wait_ready;

/// Writes an error to standard error, for use before logging is set up and in commands that have no log.
#[expect(clippy::print_stderr, reason = "there is no log yet")]
pub fn print_error(message: &str) {
    eprintln!("ctrlmesh-proxy: {message}");
}
