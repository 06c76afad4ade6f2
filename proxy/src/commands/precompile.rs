//! `ctrlmesh-proxy precompile`: makes artifacts of plugins for images, so that sidecars compile nothing when they start.
//!
//! Prints the path of each artifact. Fails at the first file that is no plugin.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::commands;
use crate::wasm;

/// Settings of `precompile`.
#[derive(Debug, Clone, Args)]
pub struct Precompile {
    /// Directory for the artifacts. Created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Components, such as `shard-selector.wasm`.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Compiles all files, and prints the reason if one fails.
#[must_use]
pub fn run(settings: &Precompile) -> ExitCode {
    for file in &settings.files {
        match precompile_file(file, &settings.out) {
            Ok(artifact) => print_artifact(&artifact),
            Err(problem) => {
                commands::print_error(&format!("{}: {problem}", file.display()));
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn precompile_file(file: &Path, directory: &Path) -> Result<PathBuf, String> {
    let wasm = fs::read(file).map_err(|error| error.to_string())?;
    wasm::precompile(&wasm, directory).map_err(|error| error.to_string())
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn print_artifact(path: &Path) {
    println!("{}", path.display());
}
