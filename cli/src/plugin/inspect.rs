//! `ctrlmesh plugin inspect`: describes a file and checks with the sidecar's own loader whether a sidecar would accept it.

use std::path::Path;
use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use ctrlmesh_contract::Digest;
use ctrlmesh_proxy::wasm::{CompileMode, Compiler, Engine};
use serde::Serialize;
use wasmparser::{ComponentTypeRef, Parser, Payload};

use crate::args::{InspectArgs, Output};
use crate::error::Error;
use crate::print;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inspection {
    digest: Digest,
    bytes: usize,
    /// Imports: what it needs from a host.
    imports: Vec<String>,
    /// Exports: what a host can call.
    exports: Vec<String>,
    /// Version of `ctrlmesh:plugin` that it was built against, if a sidecar accepts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'static str>,
    /// Why a sidecar refuses it, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Fails if a sidecar would refuse the file.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode, Error> {
    let wasm = read_wasm(&args.file)?;
    let inspection = inspect_wasm(&wasm);
    match args.output.format {
        Output::Json => print::line(&serde_json::to_string_pretty(&inspection)?),
        Output::Text => print::line(&inspection_text(&inspection)),
    }
    Ok(if inspection.refused.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read_wasm(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(Error::file("read", path))
}

fn inspect_wasm(wasm: &[u8]) -> Inspection {
    let loaded = Engine::new().and_then(|engine| {
        // No traffic depends on this process, so the compiler may run in it.
        Compiler::new(CompileMode::InProcess, None)?.load(&engine, wasm)
    });
    let (interface, refused) = match loaded {
        Ok(plugin) => (Some(plugin.interface()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (imports, exports) = import_and_export_names(wasm);
    Inspection {
        digest: Digest::of(wasm),
        bytes: wasm.len(),
        imports,
        exports,
        interface,
        refused,
    }
}

/// Imports and exports of the component itself, not of its inner parts; as far as the bytes can be read.
fn import_and_export_names(wasm: &[u8]) -> (Vec<String>, Vec<String>) {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                // Types of the world are imports too, but need nothing from a host.
                let imported = section.into_iter().map_while(Result::ok);
                let asked = imported.filter(|import| !matches!(import.ty, ComponentTypeRef::Type(_)));
                imports.extend(asked.map(|import| import.name.name.to_owned()));
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                exports.extend(
                    section
                        .into_iter()
                        .map_while(Result::ok)
                        .map(|export| export.name.name.to_owned()),
                );
            }
            _ => {}
        }
    }
    (imports, exports)
}

fn inspection_text(inspection: &Inspection) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.add_row(["digest", &inspection.digest.to_string()]);
    table.add_row(["size", &format!("{} bytes", inspection.bytes)]);
    table.add_row(["imports", &inspection.imports.join("\n")]);
    table.add_row(["exports", &inspection.exports.join("\n")]);
    let verdict = match (inspection.interface, &inspection.refused) {
        (Some(version), _) => format!("takes it: ctrlmesh:plugin {version}"),
        (None, refused) => format!("refuses it: {}", refused.as_deref().unwrap_or_default()),
    };
    table.add_row(["sidecar", &verdict]);
    print::render_table(table, print::terminal_width())
}

#[cfg(test)]
mod tests {
    use ctrlmesh_plugins_builtin::SHARD_SELECTOR;

    use super::*;

    #[test]
    fn plugin_is_accepted_and_described() {
        let inspection = inspect_wasm(SHARD_SELECTOR);
        assert_eq!(inspection.refused, None);
        assert_eq!(inspection.interface, Some("0.2"));
        assert!(
            inspection
                .imports
                .iter()
                .any(|import| import.starts_with("ctrlmesh:plugin/")),
            "{inspection:?}"
        );
        for phase in ["configure", "on-request", "on-objects"] {
            assert!(
                inspection.exports.iter().any(|export| export == phase),
                "{phase}: {inspection:?}"
            );
        }
    }

    #[test]
    fn other_files_are_refused_with_reason() {
        let module = inspect_wasm(b"\0asm\x01\0\0\0");
        assert!(
            module
                .refused
                .is_some_and(|reason| reason.contains("core WebAssembly module"))
        );
        let nonsense = inspect_wasm(b"#!/bin/sh");
        assert!(
            nonsense
                .refused
                .is_some_and(|reason| reason.contains("not WebAssembly"))
        );
        let truncated = inspect_wasm(&SHARD_SELECTOR[..SHARD_SELECTOR.len() / 2]);
        assert!(truncated.refused.is_some());
    }
}
