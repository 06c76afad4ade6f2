//! Which world a component was built for, and whether it asks for more than a plugin gets, read from the names of its imports
//! and exports. The manager asks before it distributes a plugin, the sidecar before it compiles one.
//!
//! Pure. Types are checked later, when the sidecar instantiates the component.

/// Versions of the plugin interface that hosts speak. The next one stands beside the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `ctrlmesh:plugin@0.1.x`.
    V0_1,
}

/// All of them, for messages.
pub const SUPPORTED_VERSIONS: &str = "0.1.x";

/// Why a component is no plugin for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// It implements another world.
    World(String),
    /// It was built against this version of the interface, which no host of ours speaks.
    Version(String),
    /// It imports this, which no plugin gets.
    Import(String),
}

/// The package of the plugin interface.
const PACKAGE: &str = "ctrlmesh:plugin/";
/// What a plugin of 0.1 exports.
const EXPORTS_0_1: [&str; 4] = ["configure", "on-request", "on-response", "on-complete"];
/// What a plugin of 0.1 may import.
const INTERFACES_0_1: [&str; 8] = [
    "types", "exchange", "clock", "random", "log", "metrics", "state", "report",
];

/// What is given of WASI 0.2: what the standard library of a language needs to start. Patch versions of WASI 0.2 are compatible in both directions.
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
/// It is not a plugin, or wants more than a plugin gets.
pub fn check(imports: &[&str], exports: &[&str]) -> Result<Version, Problem> {
    if let Some(missing) = EXPORTS_0_1.iter().find(|name| !exports.contains(name)) {
        return Err(Problem::World(format!("it does not export `{missing}`")));
    }
    match check_imports(imports)? {
        Some(version) => Ok(version),
        None => Err(Problem::World(
            "its functions do not use the types of ctrlmesh:plugin".into(),
        )),
    }
}

/// The same for somebody who knows the imports alone. `None`: it imports nothing of ours.
///
/// # Errors
/// It wants more than a plugin gets.
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
        _ => Err(Problem::Version(text.to_owned())),
    }
}

fn is_given(import: &str) -> bool {
    let (interface, version) = import.split_once('@').unwrap_or((import, ""));
    match interface.strip_prefix(PACKAGE) {
        Some(name) => INTERFACES_0_1.contains(&name),
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

    const IMPORTS: [&str; 3] = [
        "ctrlmesh:plugin/types@0.1.0",
        "ctrlmesh:plugin/exchange@0.1.0",
        "wasi:cli/environment@0.2.6",
    ];

    fn message(imports: &[&str], exports: &[&str]) -> String {
        check(imports, exports).map_or_else(|problem| format!("{problem:?}"), |version| format!("{version:?}"))
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
            assert_eq!(text, format!("Version({version:?})"));
        }
    }

    #[test]
    fn mixed_versions_are_refused_even_if_one_is_supported() {
        assert_eq!(with("ctrlmesh:plugin/types@0.2.0"), "Version(\"0.2.0\")");
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
            assert_eq!(text, format!("Import({import:?})"));
        }
    }
}
