//! Which world a component was built for, read from the names of its imports and exports.
//!
//! Pure. Types are checked later, when the component is pre-instantiated (`plugin.rs`).

use super::error::Error;
use super::wasi;

/// Versions of the plugin interface that this host speaks. The next one stands beside the first: a variant here, bindings
/// in `bindings.rs`, a file for its host side, a variant of `Pre` and `Guest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// `ctrlmesh:plugin@0.1.x`.
    V0_1,
}

/// The package of the plugin interface.
const PACKAGE: &str = "ctrlmesh:plugin/";
/// What a plugin of 0.1 exports.
const EXPORTS_0_1: [&str; 4] = ["configure", "on-request", "on-response", "on-complete"];
/// What a plugin of 0.1 may import.
const INTERFACES_0_1: [&str; 8] = [
    "types", "exchange", "clock", "random", "log", "metrics", "state", "report",
];

/// Finds the version of a component, and refuses what is not a plugin or wants more than a plugin gets.
pub(crate) fn check(imports: &[&str], exports: &[&str], digest: &str) -> Result<Version, Error> {
    let wrong = |missing: String| Error::WrongWorld {
        digest: digest.to_owned(),
        missing,
    };
    if let Some(missing) = EXPORTS_0_1.iter().find(|name| !exports.contains(name)) {
        return Err(wrong(format!("it does not export `{missing}`")));
    }
    let mut version = None;
    for import in imports.iter().filter(|import| import.starts_with(PACKAGE)) {
        let found = parse_version(import, digest)?;
        if *version.get_or_insert(found) != found {
            return Err(wrong("it mixes versions of ctrlmesh:plugin".into()));
        }
    }
    let version = version.ok_or_else(|| wrong("its functions do not use the types of ctrlmesh:plugin".into()))?;
    match imports.iter().find(|import| !is_given(version, import)) {
        Some(import) => Err(Error::Import {
            digest: digest.to_owned(),
            import: (*import).to_owned(),
        }),
        None => Ok(version),
    }
}

fn parse_version(import: &str, digest: &str) -> Result<Version, Error> {
    let text = import.split_once('@').map_or("", |(_, version)| version);
    match text.split('.').collect::<Vec<_>>()[..] {
        ["0", "1", patch] if patch.parse::<u32>().is_ok() => Ok(Version::V0_1),
        _ => Err(Error::Version {
            digest: digest.to_owned(),
            version: text.to_owned(),
        }),
    }
}

/// Whether a plugin of this version gets this import.
fn is_given(version: Version, import: &str) -> bool {
    let interface = import.split_once('@').map_or(import, |(interface, _)| interface);
    match (version, interface.strip_prefix(PACKAGE)) {
        (Version::V0_1, Some(name)) => INTERFACES_0_1.contains(&name),
        (_, None) => wasi::is_given(import),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMPORTS: [&str; 3] = [
        "ctrlmesh:plugin/types@0.1.0",
        "ctrlmesh:plugin/exchange@0.1.0",
        "wasi:cli/environment@0.2.6",
    ];

    fn message(imports: &[&str], exports: &[&str]) -> String {
        check(imports, exports, "sha256:00").map_or_else(|error| error.to_string(), |version| format!("{version:?}"))
    }

    fn with(import: &str) -> String {
        message(&[&IMPORTS[..], &[import]].concat(), &EXPORTS_0_1)
    }

    #[test]
    fn a_plugin_of_any_patch_version_is_accepted() {
        assert_eq!(message(&IMPORTS, &EXPORTS_0_1), "V0_1");
        assert_eq!(message(&["ctrlmesh:plugin/types@0.1.7"], &EXPORTS_0_1), "V0_1");
    }

    #[test]
    fn another_version_is_refused_by_name() {
        for version in ["0.2.0", "1.0.0", "0.1", "0.1.x", "0.11.0", "0.1.0-rc.1", ""] {
            let text = message(&[&format!("ctrlmesh:plugin/types@{version}")], &EXPORTS_0_1);
            assert!(
                text.contains(&format!("ctrlmesh:plugin@{version}, this sidecar supports")),
                "{text}"
            );
        }
    }

    #[test]
    fn mixed_versions_are_refused_even_if_one_is_supported() {
        assert!(with("ctrlmesh:plugin/types@0.2.0").contains("@0.2.0"));
    }

    #[test]
    fn another_world_is_told_what_it_lacks() {
        let text = message(&["wasi:http/types@0.2.3"], &["wasi:http/incoming-handler@0.2.3"]);
        assert!(text.contains("does not export `configure`"), "{text}");
        assert!(message(&[], &EXPORTS_0_1).contains("do not use the types"));
    }

    #[test]
    fn an_import_that_no_plugin_gets_is_named() {
        for import in [
            "wasi:sockets/tcp@0.2.6",
            "wasi:filesystem/types@0.2.6",
            "wasi:http/outgoing-handler@0.2.6",
            "wasi:cli/environment@0.3.0",
            "wasi:cli/environment",
            "ctrlmesh:plugin/secrets@0.1.0",
            "acme:thing/other@1.0.0",
            "a-function",
        ] {
            let text = with(import);
            assert!(
                text.contains(&format!("imports {import}, which a plugin is not given")),
                "{text}"
            );
        }
    }
}
