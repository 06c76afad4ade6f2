//! `ctrlmesh plugin` when something is wrong: exit code, words, and nothing written. The good way is in tests/guide.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// Exit code and standard error.
fn plugin(folder: &Path, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    let output = command.arg("plugin").args(arguments).current_dir(folder).output()?;
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    ))
}

fn sdk() -> String {
    format!("{}/../sdk", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_new_plugin_overwrites_nothing_and_needs_a_name_and_an_sdk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("taken"))?;
    for (name, sdk, says) in [
        ("taken", &*sdk(), "choose another name"),
        ("No_Name", &*sdk(), "lower-case letters"),
        ("fine", "/nonexistent", "name the folder `sdk` of a checkout"),
    ] {
        let (code, errors) = plugin(folder.path(), &["new", name, "--sdk", sdk])?;
        assert_eq!(code, Some(1), "{name}");
        assert!(errors.contains(says), "{errors}");
    }
    let (code, errors) = plugin(folder.path(), &["new", "fine"])?;
    assert_eq!(code, Some(1), "there is no checkout around this folder");
    assert!(errors.contains("--sdk"), "{errors}");
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    assert_eq!(std::fs::read_dir(folder.path().join("taken"))?.count(), 0);
    Ok(())
}

#[test]
fn a_new_plugin_finds_the_sdk_of_the_checkout_around_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let sdk = folder.path().join("sdk");
    std::fs::create_dir(&sdk)?;
    std::fs::write(sdk.join("Cargo.toml"), "[package]\nname = \"ctrlmesh-sdk\"\n")?;
    let inner = folder.path().join("plugins");
    std::fs::create_dir(&inner)?;
    assert_eq!(plugin(&inner, &["new", "mine"])?, (Some(0), String::new()));
    let manifest = std::fs::read_to_string(inner.join("mine/Cargo.toml"))?;
    let found = folder.path().canonicalize()?.join("sdk");
    assert!(
        manifest.contains(&format!("{:?}", found.display().to_string())),
        "{manifest}"
    );
    Ok(())
}

#[test]
fn inspect_names_a_file_that_cannot_be_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (code, errors) = plugin(folder.path(), &["inspect", "nothing.wasm"])?;
    assert_eq!(code, Some(1));
    assert!(errors.contains("cannot read nothing.wasm"), "{errors}");
    Ok(())
}
