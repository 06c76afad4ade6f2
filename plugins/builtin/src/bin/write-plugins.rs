//! Writes every plugin, sample and test guest as `<name>.wasm` into a directory, for tests that are not written in Rust and for people
//! who want to inspect one.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use ctrlmesh_plugins_builtin::{builtin, guests, samples};

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return print_error("name the directory to write to: write-plugins <dir>");
    };
    match write_components(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print_error(&format!("{}: {error}", directory.display())),
    }
}

fn write_components(directory: &std::path::Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let samples = [
        ("hello", samples::HELLO),
        ("shard-selector-next", samples::SHARD_SELECTOR_NEXT),
        ("crash", samples::CRASH),
    ];
    let guests = guests::names().filter_map(|name| guests::get(name).map(|bytes| (name, bytes)));
    let plugins = builtin()
        .iter()
        .map(|plugin| (plugin.name, plugin.bytes))
        .chain(samples)
        .chain(guests);
    for (name, bytes) in plugins {
        fs::write(directory.join(format!("{name}.wasm")), bytes)?;
    }
    fs::write(directory.join("compile_bomb.wasm"), guests::compile_bomb())
}

#[expect(clippy::print_stderr, reason = "a command line tool says what is wrong")]
fn print_error(message: &str) -> ExitCode {
    eprintln!("write-plugins: {message}");
    ExitCode::FAILURE
}
