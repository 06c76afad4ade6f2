//! Writes every plugin, sample and test guest as `<name>.wasm` into a directory, for images, for tests that are not written in Rust and for
//! people who want to inspect one.

use std::fs;
use std::path::{Path, PathBuf};
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

fn write_components(directory: &Path) -> std::io::Result<()> {
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
        write_if_changed(&directory.join(format!("{name}.wasm")), bytes)?;
    }
    write_if_changed(&directory.join("compile_bomb.wasm"), &guests::compile_bomb())
}

/// A newer file would make cargo build again what contains it.
fn write_if_changed(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if fs::read(file).is_ok_and(|written| written == bytes) {
        return Ok(());
    }
    fs::write(file, bytes)
}

#[expect(clippy::print_stderr, reason = "a command line tool says what is wrong")]
fn print_error(message: &str) -> ExitCode {
    eprintln!("write-plugins: {message}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn file_is_written_only_when_bytes_differ() {
        let path = std::env::temp_dir().join(format!("write-plugins-{}.wasm", std::process::id()));
        write_if_changed(&path, b"first").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();

        write_if_changed(&path, b"first").unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(modified, SystemTime::UNIX_EPOCH);

        write_if_changed(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        fs::remove_file(&path).unwrap();
    }
}
