//! The name in an apply configuration, which is YAML, and mostly JSON: client libraries send the latter.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{Rename, RenameError, json};

#[derive(Deserialize)]
struct Object {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    name: Option<Spanned<String>>,
}

/// Renames in one document. Comments, order and style of the rest stay.
pub(super) fn rename(body: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    match json::rename(body, rename) {
        Err(RenameError::Malformed { .. }) => {}
        other => return other,
    }
    let text = std::str::from_utf8(body).map_err(|error| RenameError::Malformed {
        format: "UTF-8",
        problem: "an invalid byte",
        position: error.valid_up_to(),
    })?;
    let Some(name) = object_name(text)?.filter(|name| name.value == rename.from) else {
        return Ok(None);
    };
    let renamed = replace_name(text, &name, rename).ok_or(RenameError::YamlName)?;
    // An alias, a merge key or a tag can make the place of the text another one than the value's: read it back.
    match object_name(&renamed) {
        Ok(Some(name)) if name.value == rename.to => Ok(Some(renamed.into_bytes())),
        _ => Err(RenameError::YamlName),
    }
}

fn object_name(text: &str) -> Result<Option<Spanned<String>>, RenameError> {
    let object: Object = serde_saphyr::from_str(text).map_err(|error| RenameError::Yaml(error.to_string()))?;
    Ok(object.metadata.and_then(|metadata| metadata.name))
}

fn replace_name(text: &str, name: &Spanned<String>, rename: &Rename) -> Option<String> {
    if name.referenced != name.defined {
        return None;
    }
    let span = name.defined.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let end = start.checked_add(usize::try_from(span.byte_len()?).ok()?)?;
    let (before, scalar, after) = (text.get(..start)?, text.get(start..end)?, text.get(end..)?);
    let inner = scalar.trim();
    let is_written_out = [
        rename.from.clone(),
        format!("'{}'", rename.from),
        format!("\"{}\"", rename.from),
    ]
    .iter()
    .any(|spelling| spelling == inner);
    // A JSON string is a YAML scalar too, whatever the name holds.
    is_written_out.then(|| format!("{before}{}{after}", scalar.replacen(inner, &json::quote(&rename.to), 1)))
}
