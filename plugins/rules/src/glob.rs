//! Patterns for URLs: each `*` stands for any characters, including `/`.

pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        // The first match is right: it leaves the most to the following parts.
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

/// The text up to the first `*`: a prefix that the host's matcher can compare, and that matches at least as much.
pub(crate) fn widen_to_prefix(pattern: &str) -> String {
    match pattern.split_once('*') {
        Some((start, _)) => format!("{start}*"),
        None => pattern.to_owned(),
    }
}
