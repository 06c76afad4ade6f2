//! Whether output is coloured.

use std::ffi::OsStr;

/// Colours are for terminals of people who did not refuse them: <https://no-color.org>. `no_color`: the variable `NO_COLOR`.
#[must_use]
pub fn is_wanted(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_only_for_a_terminal_without_no_color() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
        ] {
            assert_eq!(
                is_wanted(is_terminal, no_color.map(OsStr::new)),
                expected,
                "{no_color:?}"
            );
        }
    }
}
