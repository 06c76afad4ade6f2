//! Texts with `*` anywhere, for URLs: each stands for any characters, `/` included.

/// Whether `text` is what `pattern` says.
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
        // The first place is the right one: it leaves most to the parts after it.
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

/// The text before the first `*`, with a `*` after it: what the host's matcher can compare, and matches at least as much.
pub(crate) fn widened(pattern: &str) -> String {
    match pattern.split_once('*') {
        Some((start, _)) => format!("{start}*"),
        None => pattern.to_owned(),
    }
}
