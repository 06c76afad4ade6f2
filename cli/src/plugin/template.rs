//! `ctrlmesh plugin new`: a crate that builds, from the template that the SDK keeps.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::NewArgs;
use crate::error::Error;
use crate::print;

const MANIFEST: &str = include_str!("../../../sdk/template/Cargo.toml");
const SOURCE: &str = include_str!("../../../sdk/template/src/lib.rs");
const IGNORED: &str = include_str!("../../../sdk/template/.gitignore");

/// The template's name of itself and its way to the SDK, as they stand in its manifest.
const TEMPLATE_NAME: &str = "name = \"my-plugin\"";
const TEMPLATE_SDK: &str = "path = \"..\"";

/// How the SDK's manifest names it.
const SDK_NAME: &str = "name = \"ctrlmesh-sdk\"";

/// Longest name that crates.io takes; a folder and a file are called so.
const MAX_NAME: usize = 64;

/// Writes the crate and says what to do next.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode, Error> {
    if !is_crate_name(&args.name) {
        return Err(Error::PluginName(args.name.clone()));
    }
    let sdk = sdk(args.sdk.as_deref())?;
    let directory = Path::new(&args.name);
    std::fs::create_dir(directory).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::FolderExists(args.name.clone()),
        _ => Error::file("create", directory)(error),
    })?;
    write(&directory.join("Cargo.toml"), &manifest(&args.name, &sdk))?;
    write(&directory.join(".gitignore"), IGNORED)?;
    let source = directory.join("src");
    std::fs::create_dir(&source).map_err(Error::file("create", &source))?;
    write(&source.join("lib.rs"), SOURCE)?;
    let name = &args.name;
    let file = name.replace('-', "_");
    print::line(&format!(
        "{name} is a complete plugin that refuses writes in some namespaces. Next:\n\n  \
         cd {name}\n  cargo test\n  cargo build --release --target wasm32-wasip2\n  \
         ctrlmesh plugin inspect target/wasm32-wasip2/release/{file}.wasm"
    ));
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, content: &str) -> Result<(), Error> {
    std::fs::write(path, content).map_err(Error::file("write", path))
}

fn manifest(name: &str, sdk: &Path) -> String {
    let sdk = format!("path = {:?}", sdk.display().to_string());
    MANIFEST
        .replace(TEMPLATE_NAME, &format!("name = \"{name}\""))
        .replace(TEMPLATE_SDK, &sdk)
}

/// The SDK's folder: the one that was named (or the checkout around it was), or `sdk` of the checkout of ctrlmesh that this
/// folder lies in.
fn sdk(named: Option<&Path>) -> Result<PathBuf, Error> {
    let is_sdk = |folder: &Path| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml"));
        manifest.is_ok_and(|text| text.contains(SDK_NAME))
    };
    let here = Path::new(".")
        .canonicalize()
        .map_err(Error::file("find", Path::new(".")))?;
    let found = match named {
        Some(folder) => folder
            .canonicalize()
            .ok()
            .and_then(|folder| [folder.join("sdk"), folder].into_iter().find(|folder| is_sdk(folder))),
        None => here
            .ancestors()
            .map(|folder| folder.join("sdk"))
            .find(|folder| is_sdk(folder)),
    };
    found.ok_or(Error::NoSdk)
}

/// A name that cargo takes, in the form that is customary.
fn is_crate_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && name.bytes().all(inner)
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_has_the_new_name_and_the_way_to_the_sdk() {
        let manifest = manifest("frugal", Path::new("/src/ctrlmesh/sdk"));
        assert!(manifest.contains("name = \"frugal\""), "{manifest}");
        assert_eq!(
            manifest.matches("path = \"/src/ctrlmesh/sdk\"").count(),
            2,
            "{manifest}"
        );
        assert!(
            !manifest.contains("my-plugin") && !manifest.contains("\"..\""),
            "{manifest}"
        );
    }

    #[test]
    fn names_are_those_that_cargo_takes() {
        assert!(is_crate_name("read-only2"));
        for name in ["", "2x", "-x", "x-", "X", "a/b", "../x", "a_b", "ä"] {
            assert!(!is_crate_name(name), "{name}");
        }
    }

    #[test]
    fn a_folder_that_is_no_sdk_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(sdk(Some(folder.path())), Err(Error::NoSdk)));
    }

    #[test]
    fn the_checkout_stands_for_the_sdk_in_it() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = sdk(Some(&checkout)).unwrap();
        assert_eq!(found, sdk(Some(&checkout.join("sdk"))).unwrap());
        assert!(found.ends_with("sdk"));
    }
}
