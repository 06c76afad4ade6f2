//! The `ctrlmesh` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ctrlmesh_cli::main()
}
