//! The name in a path.

use std::ops::Range;

use super::Rename;
use crate::{RequestInfo, percent};

/// Replaces the name segment of a path, in whatever spelling it has; `None` when the path names another object or none.
/// `info` is what [`RequestInfo::parse`] made of this path.
#[must_use]
pub fn path(raw_path: &str, info: &RequestInfo<'_>, rename: &Rename) -> Option<String> {
    // Not `info.name`, which may come from a field selector.
    if info.path_parts().nth(1)? != rename.from {
        return None;
    }
    let segments = segment_ranges(raw_path);
    let behind_name = info.path_parts().count() - 1;
    let name = segments.get(segments.len().checked_sub(behind_name)?)?;
    let (before, after) = (raw_path.get(..name.start)?, raw_path.get(name.end..)?);
    Some(format!("{before}{}{after}", percent::encode(&rename.to)))
}

/// Positions of the decoded path's segments in the raw path. An encoded slash separates like a raw one, and slashes at
/// both ends don't count.
fn segment_ranges(raw_path: &str) -> Vec<Range<usize>> {
    let mut segments = Vec::new();
    let mut start = 0;
    let mut rest = raw_path;
    while let Some(char) = rest.chars().next() {
        let position = raw_path.len() - rest.len();
        let separator = match rest.get(..3) {
            _ if char == '/' => 1,
            Some("%2F" | "%2f") => 3,
            _ => 0,
        };
        if separator > 0 {
            segments.push(start..position);
            start = position + separator;
        }
        rest = rest.get(separator.max(char.len_utf8())..).unwrap_or("");
    }
    segments.push(start..raw_path.len());
    let first = segments.iter().position(|segment| !segment.is_empty()).unwrap_or(0);
    let last = segments.iter().rposition(|segment| !segment.is_empty()).unwrap_or(0);
    segments.get(first..=last).unwrap_or_default().to_vec()
}
