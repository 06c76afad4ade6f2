//! Checks by the names of imports and exports which world a component was built for, and whether it imports more than a plugin may. The
//! manager does so before it distributes a plugin, the sidecar before it compiles one.
//!
//! Pure. Types are checked later, when the sidecar instantiates the component.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A version of the package `ctrlmesh:plugin`: major, minor, patch. One that only adds to another has the same major number, and
/// below 1.0 the same minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface(pub u32, pub u32, pub u32);

/// Versions of the interface that sidecars of this release support: the newest of each compatible series. The last one is that of `wit/`.
pub const SUPPORTED: [Interface; 2] = [Interface(0, 1, 1), Interface(0, 2, 0)];

/// Functions that were added to an interface since the first version of those that are compatible, with the version that has them.
const ADDED: [(&str, &str, Interface); 1] = [("report", "name-rule", Interface(0, 1, 1))];

impl Interface {
    /// Whether a host of this version has all that a plugin of the other may use.
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        self.is_compatible(other) && (self.1 > other.1 || self.1 == other.1 && self.2 >= other.2)
    }

    /// The oldest version that has all that a component imports, from the names of its imports and of the functions in each. A component
    /// that was built against a later version than this release knows needs that one. `None`: the component imports no interface of
    /// `ctrlmesh:plugin`.
    #[must_use]
    pub fn needed_version<'a>(imports: impl IntoIterator<Item = (&'a str, &'a [String])>) -> Option<Self> {
        let needed = imports.into_iter().filter_map(|(import, functions)| {
            let (interface, version) = import.strip_prefix(PACKAGE)?.split_once('@')?;
            let version: Self = version.parse().ok()?;
            if !SUPPORTED.iter().any(|supported| supported.includes(version)) {
                return Some(version);
            }
            let added = ADDED.iter().filter(|(of, function, since)| {
                *of == interface && since.is_compatible(version) && functions.iter().any(|name| name == function)
            });
            let first = version.first_compatible();
            Some(added.map(|(_, _, since)| *since).fold(first, Self::max))
        });
        needed.max()
    }

    /// The first version that this one only adds to.
    const fn first_compatible(self) -> Self {
        if self.0 > 0 {
            Self(self.0, 0, 0)
        } else {
            Self(0, self.1, 0)
        }
    }

    const fn is_compatible(self, other: Self) -> bool {
        self.0 == other.0 && (self.0 > 0 || self.1 == other.1)
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl FromStr for Interface {
    type Err = Option<ParseIntError>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split('.').map(str::parse);
        let mut next = || numbers.next().ok_or(None)?.map_err(Some);
        let version = Self(next()?, next()?, next()?);
        numbers.next().map_or(Ok(version), |_| Err(None))
    }
}

/// Versions of the plugin interface that hosts speak: the newest two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `ctrlmesh:plugin@0.1.x`.
    V0_1,
    /// `ctrlmesh:plugin@0.2.x`.
    V0_2,
}

/// All supported versions, for messages.
pub const SUPPORTED_VERSIONS: &str = "0.1.x and 0.2.x";

/// Why a component is no plugin for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The component implements another world.
    World(String),
    /// The component was built against this unsupported version of the interface.
    Version(String),
    /// The component has this import, which plugins don't get.
    Import(String),
}

/// The package of the plugin interface.
const PACKAGE: &str = "ctrlmesh:plugin/";
/// Exports of a plugin, in both versions.
const EXPORTS: [&str; 4] = ["configure", "on-request", "on-response", "on-complete"];
/// The exports that 0.2 adds.
const EXPORTS_V0_2: [&str; 2] = ["on-objects", "on-crossed"];
/// Interfaces that a plugin may import, in both versions.
const INTERFACES: [&str; 8] = [
    "types", "exchange", "clock", "random", "log", "metrics", "state", "report",
];

/// WASI 0.2 imports that a plugin may have: those that the standard library of a language needs to start. Patch versions of WASI 0.2 are compatible in both directions.
const WASI: [&str; 18] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// Finds the version of a component.
///
/// # Errors
/// The component is not a plugin, or imports more than a plugin gets.
pub fn check_component(imports: &[&str], exports: &[&str]) -> Result<Version, Problem> {
    let missing = |name: &str| Problem::World(format!("it does not export `{name}`"));
    if let Some(name) = EXPORTS.iter().find(|name| !exports.contains(name)) {
        return Err(missing(name));
    }
    match check_imports(imports)? {
        Some(Version::V0_2) => match EXPORTS_V0_2.iter().find(|name| !exports.contains(name)) {
            Some(name) => Err(Problem::World(format!(
                "it does not export `{name}`: it was built against earlier files of 0.2 and must be built again"
            ))),
            None => Ok(Version::V0_2),
        },
        Some(Version::V0_1) => Ok(Version::V0_1),
        None => Err(Problem::World(
            "its functions do not use the types of ctrlmesh:plugin".into(),
        )),
    }
}

/// Finds the version from the imports alone. `None`: the component imports no interface of `ctrlmesh:plugin`.
///
/// # Errors
/// The component imports more than a plugin gets, or mixes versions.
pub fn check_imports(imports: &[&str]) -> Result<Option<Version>, Problem> {
    let mut version = None;
    for import in imports.iter().filter(|import| import.starts_with(PACKAGE)) {
        let found = parse_version(import)?;
        if *version.get_or_insert(found) != found {
            return Err(Problem::World("it mixes versions of ctrlmesh:plugin".into()));
        }
    }
    match imports.iter().find(|import| !is_given(import)) {
        Some(import) => Err(Problem::Import((*import).to_owned())),
        None => Ok(version),
    }
}

fn parse_version(import: &str) -> Result<Version, Problem> {
    let text = import.split_once('@').map_or("", |(_, version)| version);
    match text.split('.').collect::<Vec<_>>()[..] {
        ["0", "1", patch] if patch.parse::<u32>().is_ok() => Ok(Version::V0_1),
        ["0", "2", patch] if patch.parse::<u32>().is_ok() => Ok(Version::V0_2),
        _ => Err(Problem::Version(text.to_owned())),
    }
}

fn is_given(import: &str) -> bool {
    let (interface, version) = import.split_once('@').unwrap_or((import, ""));
    match interface.strip_prefix(PACKAGE) {
        Some(name) => INTERFACES.contains(&name),
        None => {
            let patch = version
                .strip_prefix("0.2.")
                .is_some_and(|patch| patch.parse::<u32>().is_ok());
            patch && WASI.contains(&interface)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_interface_is_the_oldest_with_all_imported_functions() {
        let needed = |imports: &[(&str, &[&str])]| {
            let owned = imports.iter().map(|(import, functions)| {
                let functions: Vec<String> = functions.iter().map(|name| (*name).to_owned()).collect();
                (*import, functions)
            });
            let owned: Vec<_> = owned.collect();
            let imports = owned.iter().map(|(import, functions)| (*import, functions.as_slice()));
            Interface::needed_version(imports).map(|version| version.to_string())
        };
        let (types, wasi) = (
            ("ctrlmesh:plugin/types@0.1.1", &[][..]),
            ("wasi:io/poll@0.2.6", &["poll"][..]),
        );
        for (imports, expected) in [
            (vec![types, wasi], Some("0.1.0")),
            (
                vec![types, ("ctrlmesh:plugin/report@0.1.1", &["put"][..])],
                Some("0.1.0"),
            ),
            (
                vec![types, ("ctrlmesh:plugin/report@0.1.1", &["put", "name-rule"][..])],
                Some("0.1.1"),
            ),
            (vec![("ctrlmesh:plugin/state@0.1.1", &["name-rule"][..])], Some("0.1.0")),
            // Nobody knows what a later version has added.
            (
                vec![types, ("ctrlmesh:plugin/report@0.1.7", &["put"][..])],
                Some("0.1.7"),
            ),
            (vec![("ctrlmesh:plugin/types@0.2.0", &[][..])], Some("0.2.0")),
            (
                vec![("ctrlmesh:plugin/report@0.2.0", &["name-rule"][..])],
                Some("0.2.0"),
            ),
            (vec![("ctrlmesh:plugin/types@0.3.1", &[][..])], Some("0.3.1")),
            (vec![wasi], None),
        ] {
            assert_eq!(needed(&imports).as_deref(), expected, "{imports:?}");
        }
        for text in ["0.1", "0.1.0.0", "0.1.x", "", "0.1.-1"] {
            assert!(text.parse::<Interface>().is_err(), "{text}");
        }
    }

    const IMPORTS: [&str; 3] = [
        "ctrlmesh:plugin/types@0.1.0",
        "ctrlmesh:plugin/exchange@0.1.0",
        "wasi:cli/environment@0.2.6",
    ];

    fn message(imports: &[&str], exports: &[&str]) -> String {
        check_component(imports, exports)
            .map_or_else(|problem| format!("{problem:?}"), |version| format!("{version:?}"))
    }

    fn component_with_import(import: &str) -> String {
        message(&[&IMPORTS[..], &[import]].concat(), &EXPORTS)
    }

    #[test]
    fn plugin_of_any_patch_version_is_accepted() {
        let exports = [&EXPORTS[..], &EXPORTS_V0_2].concat();
        assert_eq!(message(&["ctrlmesh:plugin/types@0.2.7"], &exports), "V0_2");
        assert_eq!(message(&IMPORTS, &EXPORTS), "V0_1");
        assert_eq!(message(&["ctrlmesh:plugin/types@0.1.7"], &EXPORTS), "V0_1");
    }

    #[test]
    fn unsupported_version_is_named() {
        for version in ["0.3.0", "1.0.0", "0.1", "0.1.x", "0.11.0", "0.1.0-rc.1", ""] {
            let text = message(&[&format!("ctrlmesh:plugin/types@{version}")], &EXPORTS);
            assert_eq!(text, format!("Version({version:?})"));
        }
    }

    #[test]
    fn mixed_versions_are_refused_even_when_one_is_supported() {
        let text = component_with_import("ctrlmesh:plugin/types@0.2.0");
        assert!(text.contains("mixes versions"), "{text}");
        assert_eq!(
            component_with_import("ctrlmesh:plugin/types@0.3.0"),
            "Version(\"0.3.0\")"
        );
    }

    #[test]
    fn missing_exports_of_another_world_are_named() {
        let text = message(&["wasi:http/types@0.2.3"], &["wasi:http/incoming-handler@0.2.3"]);
        assert!(text.contains("does not export `configure`"), "{text}");
        assert!(!text.contains("built again"), "{text}");
        assert!(message(&[], &EXPORTS).contains("do not use the types"));
        for (added, missing) in [("on-objects", "on-crossed"), ("on-crossed", "on-objects")] {
            let exports = [&EXPORTS[..], &[added]].concat();
            let text = message(&["ctrlmesh:plugin/types@0.2.0"], &exports);
            assert!(
                text.contains(&format!("does not export `{missing}`: it was built")),
                "{text}"
            );
            assert!(text.contains("must be built again"), "{text}");
        }
    }

    #[test]
    fn forbidden_import_is_named() {
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
            let text = component_with_import(import);
            assert_eq!(text, format!("Import({import:?})"));
        }
    }
}
