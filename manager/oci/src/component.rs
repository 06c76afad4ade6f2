//! Checks whether bytes are a component that sidecars accept, as far as that is visible without compiling it.

use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::world::{self, Interface, Problem, SUPPORTED_VERSIONS};
use serde::Deserialize;
use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentOuterAliasKind, ComponentType, ComponentTypeRef,
    InstanceTypeDeclaration, Parser, Payload,
};

use super::failure::{Failure, FailureReason};

/// The version of the plugin interface that a component needs. Fails if no sidecar would accept the component.
pub(super) fn check_component(wasm: &[u8]) -> Result<Interface, Failure> {
    if Parser::is_core_wasm(wasm) {
        return Err(incompatible_failure(
            "it is a core WebAssembly module, not a component; build it for wasm32-wasip2",
        ));
    }
    if !Parser::is_component(wasm) {
        return Err(incompatible_failure(
            "its layer is not WebAssembly; push the .wasm file of a component",
        ));
    }
    let (functions, exports) =
        imports_and_exports(wasm).map_err(|error| incompatible_failure(&format!("it can't be read: {error}")))?;
    let imports: Vec<&str> = functions.iter().map(|(import, _)| import.as_str()).collect();
    let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
    world::check_component(&imports, &exports).map_err(|problem| incompatible_component(&problem))?;
    let needed = Interface::needed_version(
        functions
            .iter()
            .map(|(import, functions)| (import.as_str(), functions.as_slice())),
    );
    needed.ok_or_else(|| incompatible_failure("it does not say which version of ctrlmesh:plugin it was built against"))
}

/// The interface version of a component that this program was built with.
#[must_use]
pub fn interface_version(wasm: &[u8]) -> Option<Interface> {
    check_component(wasm).ok()
}

/// The configuration of an artifact (CNCF TAG-Runtime), as far as it describes the component.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    os: String,
    component: Option<World>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct World {
    imports: Vec<String>,
}

/// Refuses a component by its configuration, before its bytes are fetched. A configuration without the optional fields passes.
pub(super) fn check_config(config: &[u8]) -> Result<(), Failure> {
    let config: Config = serde_json::from_slice(config).map_err(|error| {
        let message = format!("its configuration is not what a component has: {error}; push it with `wkg oci push`");
        Failure::new(FailureReason::InvalidArtifact, message)
    })?;
    if config.os == "wasip1" {
        return Err(incompatible_failure(
            "it is a core WebAssembly module (wasip1), not a component; build it for wasm32-wasip2",
        ));
    }
    let imports = config.component.unwrap_or_default().imports;
    let imports: Vec<&str> = imports
        .iter()
        .map(String::as_str)
        .filter(|name| name.contains(':'))
        .collect();
    world::check_imports(&imports)
        .map(drop)
        .map_err(|problem| incompatible_component(&problem))
}

fn incompatible_component(problem: &Problem) -> Failure {
    incompatible_failure(&match problem {
        Problem::World(missing) => {
            format!("{missing}; a plugin implements the world ctrlmesh:plugin/plugin (see the crate ctrlmesh-sdk)")
        }
        Problem::Version(version) => format!(
            "it was built against ctrlmesh:plugin@{}, sidecars support {SUPPORTED_VERSIONS}; build it with a matching ctrlmesh-sdk",
            quote(version)
        ),
        Problem::Import(import) => format!(
            "it imports {}, which a plugin is not given; remove what needs it (files, sockets and HTTP are not there)",
            quote(import)
        ),
    })
}

fn incompatible_failure(problem: &str) -> Failure {
    Failure::new(
        FailureReason::Incompatible,
        format!("this is not a plugin that sidecars accept: {problem}"),
    )
}

/// Name of an import; if it is an interface, also the names of its functions.
type Import = (String, Vec<String>);

/// Imports and exports of the component itself. Nested components are skipped.
fn imports_and_exports(wasm: &[u8]) -> Result<(Vec<Import>, Vec<String>), BinaryReaderError> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    // Imports refer to types by index. Interfaces have functions here, other types have none.
    let mut types: Vec<Vec<String>> = Vec::new();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentTypeSection(section) if depth == 0 => {
                for defined in section {
                    types.push(function_names(&defined?));
                }
            }
            Payload::ComponentAliasSection(section) if depth == 0 => {
                for alias in section {
                    if is_type(&alias?) {
                        types.push(Vec::new());
                    }
                }
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    let import = import?;
                    match import.ty {
                        // Types of the world are imports too, but ask nothing of a host.
                        ComponentTypeRef::Type(_) => types.push(Vec::new()),
                        ComponentTypeRef::Instance(index) => {
                            let functions = usize::try_from(index).ok().and_then(|index| types.get(index)).cloned();
                            imports.push((import.name.name.to_owned(), functions.unwrap_or_default()));
                        }
                        _ => imports.push((import.name.name.to_owned(), Vec::new())),
                    }
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    let export = export?;
                    if export.kind == ComponentExternalKind::Type {
                        types.push(Vec::new());
                    }
                    exports.push(export.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

/// The functions of an interface; none for other types.
fn function_names(defined: &ComponentType<'_>) -> Vec<String> {
    let ComponentType::Instance(declarations) = defined else {
        return Vec::new();
    };
    let function = |declaration: &InstanceTypeDeclaration<'_>| match declaration {
        InstanceTypeDeclaration::Export {
            name,
            ty: ComponentTypeRef::Func(_),
        } => Some(name.name.to_owned()),
        _ => None,
    };
    declarations.iter().filter_map(function).collect()
}

const fn is_type(alias: &ComponentAlias<'_>) -> bool {
    matches!(
        alias,
        ComponentAlias::InstanceExport {
            kind: ComponentExternalKind::Type,
            ..
        } | ComponentAlias::Outer {
            kind: ComponentOuterAliasKind::Type,
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use ctrlmesh_plugins_builtin::{CIRCUIT_BREAKER, FAULT_INJECT, RATE_LIMIT, SHARD_SELECTOR, TRIM_OBJECTS};

    use super::*;

    #[test]
    fn plugins_built_with_sdk_are_accepted() {
        for wasm in [SHARD_SELECTOR, RATE_LIMIT, CIRCUIT_BREAKER, FAULT_INJECT, TRIM_OBJECTS] {
            assert_eq!(check_component(wasm), Ok(Interface(0, 2, 0)));
        }
        // Plugins that use nothing newer run in sidecars of the first version.
        for (wasm, needed) in [
            (
                &include_bytes!("../../../tests/guests/kept/0.1/hello.wasm")[..],
                Interface(0, 1, 0),
            ),
            (
                include_bytes!("../../../tests/guests/kept/0.1/circuit-breaker.wasm"),
                Interface(0, 1, 1),
            ),
        ] {
            assert_eq!(check_component(wasm), Ok(needed));
        }
    }

    #[test]
    fn non_plugins_are_refused_with_advice() {
        let cut = &SHARD_SELECTOR[..SHARD_SELECTOR.len() / 2];
        let empty_component = b"\0asm\x0d\0\x01\0";
        for (wasm, expected) in [
            (&b"\0asm\x01\0\0\0"[..], "build it for wasm32-wasip2"),
            (b"#!/bin/sh", "push the .wasm file"),
            (cut, "can't be read"),
            (empty_component, "does not export `configure`"),
        ] {
            let failure = check_component(wasm).unwrap_err();
            assert_eq!(failure.reason, FailureReason::Incompatible);
            assert!(failure.message.contains(expected), "{}", failure.message);
        }
        let other = replace_bytes(
            SHARD_SELECTOR,
            b"ctrlmesh:plugin/types@0.2.0",
            b"ctrlmesh:plugin/types@0.9.0",
        );
        let failure = check_component(&other).unwrap_err();
        assert!(
            failure.message.contains("sidecars support 0.1.x and 0.2.x;"),
            "{}",
            failure.message
        );
    }

    fn replace_bytes(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let places: Vec<usize> = bytes
            .windows(from.len())
            .enumerate()
            .filter(|(_, w)| *w == from)
            .map(|(i, _)| i)
            .collect();
        assert!(!places.is_empty());
        for place in places {
            bytes[place..place + from.len()].copy_from_slice(to);
        }
        bytes
    }

    #[test]
    fn configuration_can_refuse_component_but_not_admit_it() {
        let config = |text: &str| check_config(text.as_bytes()).map_err(|failure| failure.message);
        assert_eq!(
            config(r#"{"architecture":"wasm","os":"wasip2","layerDigests":[]}"#),
            Ok(())
        );
        let ours = r#"{"os":"wasip2","component":{"exports":["configure"],"imports":["ctrlmesh:plugin/types@0.1.0","wasi:io/error@0.2.6"]}}"#;
        assert_eq!(config(ours), Ok(()));
        let sockets = r#"{"os":"wasip2","component":{"imports":["wasi:sockets/tcp@0.2.0"]}}"#;
        assert!(config(sockets).unwrap_err().contains("wasi:sockets/tcp"));
        assert!(config(r#"{"os":"wasip1"}"#).unwrap_err().contains("wasm32-wasip2"));
        assert!(config("<html>").unwrap_err().contains("wkg oci push"));
    }
}
