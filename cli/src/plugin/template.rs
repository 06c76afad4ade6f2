//! `ctrlmesh plugin new`: a crate that builds, from the template in the SDK's folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::NewArgs;
use crate::error::Error;
use crate::print;

const MANIFEST: &str = include_str!("../../../sdk/template/Cargo.toml");
const SOURCE: &str = include_str!("../../../sdk/template/src/lib.rs");
const CASES: &str = include_str!("../../../sdk/template/tests/component.yaml");
const IGNORED: &str = include_str!("../../../sdk/template/.gitignore");

/// The package name in the template's manifest.
const TEMPLATE_NAME: &str = "name = \"my-plugin\"";

/// The SDK's releases that a new plugin takes: those with the version of this command, which are compatible.
const SDK_VERSION: &str = concat!(
    "\"",
    env!("CARGO_PKG_VERSION_MAJOR"),
    ".",
    env!("CARGO_PKG_VERSION_MINOR"),
    "\""
);

/// Manifest of a crate, in its folder.
const MANIFEST_FILE: &str = "Cargo.toml";

/// A plugin of this name could not depend on the SDK.
const SDK_CRATE: &str = "ctrlmesh-sdk";

/// How the SDK's manifest names it.
const SDK_NAME: &str = "name = \"ctrlmesh-sdk\"";

/// Longest name that crates.io takes; a folder and a file are called so.
const MAX_NAME: usize = 64;

/// Writes the crate and says what to do next.
pub(crate) fn run(args: &NewArgs) -> Result<ExitCode, Error> {
    if !is_crate_name(&args.name) || args.name == SDK_CRATE {
        return Err(Error::PluginName(args.name.clone()));
    }
    let sdk = args.sdk.as_deref().map(sdk_folder).transpose()?;
    let directory = Path::new(&args.name);
    std::fs::create_dir(directory).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::FolderExists(args.name.clone()),
        _ => Error::file("create", directory)(error),
    })?;
    write_file(
        &directory.join(MANIFEST_FILE),
        &crate_manifest(&args.name, sdk.as_deref()),
    )?;
    write_file(&directory.join(".gitignore"), IGNORED)?;
    for (folder, file, content) in [("src", "lib.rs", SOURCE), ("tests", "component.yaml", CASES)] {
        let folder = directory.join(folder);
        std::fs::create_dir(&folder).map_err(Error::file("create", &folder))?;
        write_file(&folder.join(file), content)?;
    }
    let next = if sdk.is_some() {
        next_steps(&args.name)
    } else {
        advice_without_sdk(&args.name)
    };
    print::line(&format!(
        "{} is a complete plugin that refuses writes in some namespaces. {next}",
        args.name
    ));
    Ok(ExitCode::SUCCESS)
}

/// From the new folder to a tested component.
fn next_steps(name: &str) -> String {
    let file = name.replace('-', "_");
    format!(
        "Next:\n\n  \
         cd {name}\n  cargo test\n  cargo build --release --target wasm32-wasip2\n  \
         ctrlmesh plugin inspect target/wasm32-wasip2/release/{file}.wasm\n  \
         ctrlmesh plugin test target/wasm32-wasip2/release/{file}.wasm --cases tests/component.yaml"
    )
}

/// Until the SDK is on crates.io, a package that depends on its release cannot be built.
fn advice_without_sdk(name: &str) -> String {
    let version = SDK_VERSION.trim_matches('"');
    format!(
        "It cannot be built yet: it depends on ctrlmesh-sdk {version}, which is not on crates.io. Until it is, --sdk PATH is needed, with \
         the SDK of a clone of ctrlmesh. Make the package again:\n\n  \
         rm -r {name}\n  ctrlmesh plugin new {name} --sdk PATH"
    )
}

fn write_file(path: &Path, content: &str) -> Result<(), Error> {
    std::fs::write(path, content).map_err(Error::file("write", path))
}

/// The manifest of a plugin that takes the SDK from this folder, or else from crates.io.
fn crate_manifest(name: &str, sdk: Option<&Path>) -> String {
    let manifest = MANIFEST.replace(TEMPLATE_NAME, &format!("name = \"{name}\""));
    let Some(folder) = sdk else { return manifest };
    let folder = format!("{:?}", folder.display().to_string());
    manifest
        .replace(
            &format!("ctrlmesh-sdk = {SDK_VERSION}"),
            &format!("ctrlmesh-sdk = {{ path = {folder} }}"),
        )
        .replace(&format!("version = {SDK_VERSION}, "), &format!("path = {folder}, "))
}

/// The SDK in a clone: its own folder, or the one of the clone around it, may be named.
fn sdk_folder(named: &Path) -> Result<PathBuf, Error> {
    let is_sdk = |folder: &Path| {
        let manifest = std::fs::read_to_string(folder.join(MANIFEST_FILE));
        manifest.is_ok_and(|text| text.contains(SDK_NAME))
    };
    // A folder that does not exist has no canonical path, and no path can be made absolute where the current folder is gone.
    let outer = named.canonicalize().or_else(|_| std::path::absolute(named));
    let outer = outer.unwrap_or_else(|_| named.to_owned());
    let inner = outer.join("sdk");
    if is_sdk(&inner) {
        Ok(inner)
    } else if is_sdk(&outer) {
        Ok(outer)
    } else {
        let [inner, outer] = [inner, outer].map(|folder| folder.join(MANIFEST_FILE));
        Err(Error::NoSdk { inner, outer })
    }
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
    fn manifest_names_this_release_of_the_sdk() {
        let manifest = crate_manifest("frugal", None);
        assert!(manifest.contains("name = \"frugal\""), "{manifest}");
        assert!(
            !manifest.contains("my-plugin") && !manifest.contains("path ="),
            "{manifest}"
        );
        let with_testing = format!("ctrlmesh-sdk = {{ version = {SDK_VERSION}, features = [\"testing\"] }}");
        for dependency in [format!("ctrlmesh-sdk = {SDK_VERSION}"), with_testing] {
            let found = manifest.lines().filter(|line| **line == dependency).count();
            assert_eq!(found, 1, "sdk/template/Cargo.toml has no line {dependency}");
        }
    }

    #[test]
    fn manifest_names_the_folder_of_the_sdk_when_it_is_given() {
        let manifest = crate_manifest("frugal", Some(Path::new("/src/ctrlmesh/sdk")));
        assert!(manifest.contains("name = \"frugal\""), "{manifest}");
        assert_eq!(
            manifest.matches("path = \"/src/ctrlmesh/sdk\"").count(),
            2,
            "{manifest}"
        );
        assert!(
            !manifest.contains("my-plugin") && !manifest.contains(SDK_VERSION),
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
        assert!(matches!(sdk_folder(folder.path()), Err(Error::NoSdk { .. })));
    }

    #[test]
    fn the_checkout_stands_for_the_sdk_in_it() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = sdk_folder(&checkout).unwrap();
        assert_eq!(found, sdk_folder(&checkout.join("sdk")).unwrap());
        assert!(found.ends_with("sdk"));
    }
}
