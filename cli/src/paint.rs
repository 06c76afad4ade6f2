//! Colours on a terminal, and nothing elsewhere. Widths are counted in characters that are seen.

/// A colour of the terminal's palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Magenta,
    Cyan,
    Dim,
    Bold,
}

impl Colour {
    /// Parameter of the "select graphic rendition" sequence (ECMA-48 §8.3.117).
    const fn code(self) -> u8 {
        match self {
            Self::Bold => 1,
            Self::Dim => 2,
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Magenta => 35,
            Self::Cyan => 36,
        }
    }
}

/// Whether to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    /// A terminal.
    Coloured,
    /// A pipe, a file, or a user who set `NO_COLOR`.
    Plain,
}

impl Paint {
    /// `text` in a colour.
    pub(crate) fn colour(self, colour: Colour, text: &str) -> String {
        match self {
            Self::Coloured => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
            Self::Plain => text.to_owned(),
        }
    }

    /// `text` in bold.
    pub(crate) fn bold(self, text: &str) -> String {
        self.colour(Colour::Bold, text)
    }

    /// `text` filled up with spaces to `width` visible characters.
    pub(crate) fn pad(self, text: &str, width: usize) -> String {
        let missing = width.saturating_sub(visible(text));
        format!("{text}{}", " ".repeat(missing))
    }

    /// `line` cut after `width` visible characters.
    pub(crate) fn clip(self, line: &str, width: usize) -> String {
        if visible(line) <= width {
            return line.to_owned();
        }
        let mut clipped = String::new();
        let (mut seen, mut in_sequence) = (0, false);
        for c in line.chars() {
            if c == '\x1b' {
                in_sequence = true;
            } else if in_sequence {
                in_sequence = c != 'm';
            } else {
                seen += 1;
                if seen > width {
                    break;
                }
            }
            clipped.push(c);
        }
        if self == Self::Coloured {
            clipped.push_str("\x1b[0m");
        }
        clipped
    }
}

/// Characters of `text` without sequences of [`Paint::colour`].
fn visible(text: &str) -> usize {
    let mut in_sequence = false;
    let is_seen = |c: &char| {
        let was = in_sequence;
        in_sequence = *c == '\x1b' || (in_sequence && *c != 'm');
        !was && !in_sequence
    };
    text.chars().filter(is_seen).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_have_no_width() {
        let text = Paint::Coloured.colour(Colour::Red, "abc");
        assert_eq!(text, "\x1b[31mabc\x1b[0m");
        assert_eq!(Paint::Coloured.pad(&text, 5), "\x1b[31mabc\x1b[0m  ");
        assert_eq!(Paint::Coloured.clip(&text, 2), "\x1b[31mab\x1b[0m");
        assert_eq!(Paint::Coloured.clip(&text, 3), text);
    }

    #[test]
    fn plain_text_has_no_sequences() {
        assert_eq!(Paint::Plain.colour(Colour::Red, "abc"), "abc");
        assert_eq!(Paint::Plain.clip("äöü", 2), "äö");
    }
}
