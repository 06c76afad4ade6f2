//! Traps, in the way that the setting `how` names.

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct Trap {
    #[serde(default)]
    how: How,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum How {
    /// A Rust panic, with a message on stderr.
    #[default]
    Panic,
    /// The instruction `unreachable`, without a message.
    Abort,
    /// `wasi:cli/exit` with success: there is still no response.
    Exit,
}

impl Act for Trap {
    #[expect(clippy::panic, reason = "to trap is what this guest is for")]
    fn act(&self, _: &dyn Host) {
        match self.how {
            How::Panic => panic!("trapped on purpose"),
            How::Abort => std::process::abort(),
            How::Exit => std::process::exit(0),
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<Trap>);
