//! The plugin interface in `wit/`: each version has a fixed content, and the sidecars of this release support the current one and the one
//! before it, which has a folder of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::SUPPORTED;
use ctrlmesh_tests::repository_root;

/// Digests of the interface without comments and white space, by version. A released version is never edited: managers give plugins only
/// to sidecars that support their version, and older sidecars have the older content.
const VERSIONS: [(&str, &str); 3] = [
    (
        "0.1.0",
        "sha256:7a899672e886fecf0cf70771aaad5df12611482d0f118a0280a9719d59e78e6a",
    ),
    (
        "0.1.1",
        "sha256:061632690adbe37ffea9ca95d2eaff22b8f912db0089a45411aef6924d9f16cc",
    ),
    // Not released: may still grow.
    (
        "0.2.0",
        "sha256:6c1d9cf6bdb0aa21ebee0f15337c640be4b59a28bc838ba220cbb7f014598112",
    ),
];

/// Names of the `.wit` files in a folder of the repository.
fn wit_files(folder: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "wit"))
        .collect()
}

#[test]
fn sdk_carries_the_interface_and_the_licence() {
    let (source, copy) = (repository_root().join("wit"), repository_root().join("sdk/wit"));
    let names = wit_files(&source);
    assert!(names.len() >= 3, "wit/ has {names:?}");
    assert_eq!(wit_files(&copy), names, "sdk/wit is not a copy of wit/; run `make sdk`");
    let mut pairs: Vec<_> = names.iter().map(|name| (source.join(name), copy.join(name))).collect();
    pairs.push((repository_root().join("LICENSE"), repository_root().join("sdk/LICENSE")));
    for (original, copied) in pairs {
        assert!(
            fs::read(&original).unwrap() == fs::read(&copied).unwrap(),
            "{} differs from {}; run `make sdk`",
            copied.display(),
            original.display()
        );
    }
}

/// The version in the files of a folder, and the digest of their content.
fn version_and_digest(folder: &Path) -> (String, Digest) {
    let (mut all, mut versions) = (String::new(), Vec::new());
    for file in ["host.wit", "plugin.wit", "types.wit"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        for line in text.lines() {
            let code = line.split("//").next().unwrap_or_default();
            match code.strip_prefix("package ctrlmesh:plugin@") {
                Some(version) => versions.push(version.trim_end_matches(';').to_owned()),
                None => all.extend(code.chars().filter(|c| !c.is_whitespace())),
            }
        }
    }
    let version = versions.pop().unwrap();
    assert!(
        versions.iter().all(|other| *other == version),
        "files of {} differ: {versions:?}",
        folder.display()
    );
    (version, Digest::of(all.as_bytes()))
}

#[test]
fn changed_interface_requires_a_new_version() {
    let wit = repository_root().join("wit");
    // The newest version is in the folder itself, an earlier one in the folder of its name.
    let earlier = SUPPORTED.iter().rev().skip(1);
    let folders = earlier.map(|version| wit.join(format!("{}.{}", version.0, version.1)));
    let supported = SUPPORTED.iter().rev();
    for (folder, supported) in std::iter::once(wit.clone()).chain(folders).zip(supported) {
        let (version, digest) = version_and_digest(&folder);
        assert_eq!(
            version,
            supported.to_string(),
            "write the version of {} into ctrlmesh_contract::world::SUPPORTED",
            folder.display()
        );
        let known = VERSIONS.iter().find(|(known, _)| *known == version);
        assert_eq!(
            known.map(|(_, digest)| *digest),
            Some(digest.to_string().as_str()),
            "the interface has changed: raise the patch version in {} (the minor one if old plugins do not fit), and add a line to VERSIONS",
            folder.display()
        );
    }
}
