//! Runs the `ctrlmesh` command of the library, and exits with its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ctrlmesh_cli::main()
}
