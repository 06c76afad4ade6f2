//! `ctrlmesh-proxy`: the sidecar, or with the argument `compile` the compiler that it starts.

use std::process::ExitCode;

use ctrlmesh_proxy::wasm::{COMPILE_ARGUMENT, compile_child_main};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(COMPILE_ARGUMENT) {
        return compile_child_main();
    }
    ExitCode::SUCCESS
}
