//! Names in a JSON patch (RFC 6902): values that are put at, or tested against, `/metadata/name` or a place above it.

use super::json::rename_string;
use super::json_scanner::{JsonString, Scanner, Splice, apply_splices};
use super::{Rename, RenameError};

/// The position of the name in the value of an operation; `path` selects it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The value is the name: path `/metadata/name`.
    Name,
    /// The value is the metadata: path `/metadata`.
    Metadata,
    /// The value is the object: the empty path.
    Object,
}

/// Renames in the operations of a patch.
pub(super) fn rename(body: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    let mut scanner = Scanner::new(body);
    let mut splices = Vec::new();
    scanner.visit_elements(|scanner| scan_operation(scanner, rename, &mut splices))?;
    scanner.expect_end()?;
    Ok(apply_splices(body, splices))
}

fn scan_operation(scanner: &mut Scanner<'_>, rename: &Rename, splices: &mut Vec<Splice>) -> Result<(), RenameError> {
    let mut depth = None;
    let mut found = Vec::new();
    scanner.visit_members(|scanner, key| match key {
        "path" => {
            let path = scanner.string_value()?.and_then(|path| path.decode());
            depth = path.and_then(|path| match path.as_ref() {
                "/metadata/name" => Some(Depth::Name),
                "/metadata" => Some(Depth::Metadata),
                "" => Some(Depth::Object),
                _ => None,
            });
            Ok(())
        }
        "value" => find_names(scanner, rename, &mut found),
        _ => scanner.skip_value(),
    })?;
    splices.extend(
        found
            .into_iter()
            .filter(|(at, _)| Some(*at) == depth)
            .map(|(_, splice)| splice),
    );
    Ok(())
}

fn find_names(scanner: &mut Scanner<'_>, rename: &Rename, found: &mut Vec<(Depth, Splice)>) -> Result<(), RenameError> {
    let mut keep = |depth, string: Option<JsonString<'_>>| {
        found.extend(
            string
                .and_then(|name| rename_string(&name, rename))
                .map(|splice| (depth, splice)),
        );
    };
    if scanner.is_at_string() {
        keep(Depth::Name, scanner.string_value()?);
        return Ok(());
    }
    scanner.visit_members(|scanner, key| match key {
        "name" => {
            keep(Depth::Metadata, scanner.string_value()?);
            Ok(())
        }
        "metadata" => scanner.visit_members(|scanner, key| match key {
            "name" => {
                keep(Depth::Object, scanner.string_value()?);
                Ok(())
            }
            _ => scanner.skip_value(),
        }),
        _ => scanner.skip_value(),
    })
}
