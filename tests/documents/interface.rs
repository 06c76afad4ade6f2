//! The plugin interface in `wit/`: each version has a fixed content, and the sidecars of this release support the current one.

use std::fs;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::world::SUPPORTED;
use ctrlmesh_tests::repository_root;

/// Digests of the interface without comments and white space, by version. A released version is never edited: managers give plugins only
/// to sidecars that support their version, and older sidecars have the older content.
const VERSIONS: [(&str, &str); 2] = [
    (
        "0.1.0",
        "sha256:7a899672e886fecf0cf70771aaad5df12611482d0f118a0280a9719d59e78e6a",
    ),
    (
        "0.1.1",
        "sha256:061632690adbe37ffea9ca95d2eaff22b8f912db0089a45411aef6924d9f16cc",
    ),
];

#[test]
fn changed_interface_requires_a_new_version() {
    let (mut all, mut versions) = (String::new(), Vec::new());
    for file in ["host.wit", "plugin.wit", "types.wit"] {
        let text = fs::read_to_string(repository_root().join("wit").join(file)).unwrap();
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
        "files of wit/ differ: {versions:?}"
    );
    let newest = SUPPORTED.last().unwrap().to_string();
    assert_eq!(
        version, newest,
        "write the version of wit/ into ctrlmesh_contract::world::SUPPORTED"
    );
    let known = VERSIONS.iter().find(|(known, _)| *known == version);
    assert_eq!(
        known.map(|(_, digest)| *digest),
        Some(Digest::of(all.as_bytes()).to_string().as_str()),
        "the interface has changed: raise the patch version in wit/ (the minor one if old plugins do not fit), and add a line to VERSIONS"
    );
}
