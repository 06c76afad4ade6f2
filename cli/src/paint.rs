//! Terminal colours. Widths are counted in visible characters.

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
    const fn sgr_code(self) -> u8 {
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

/// Whether output is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Coloured,
    /// A pipe, a file, or a user who set `NO_COLOR`.
    Plain,
}

impl Paint {
    pub(crate) fn colour(self, colour: Colour, text: &str) -> String {
        match self {
            Self::Coloured => format!("\x1b[{}m{text}\x1b[0m", colour.sgr_code()),
            Self::Plain => text.to_owned(),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.colour(Colour::Bold, text)
    }

    /// Fills `text` up with spaces to `width` visible characters.
    pub(crate) fn pad(self, text: &str, width: usize) -> String {
        let missing = width.saturating_sub(visible_width(text));
        format!("{text}{}", " ".repeat(missing))
    }

    /// Wraps `line` at blanks, if there are any, into pieces of at most `width` visible characters. Each keeps its colours.
    pub(crate) fn wrap(self, line: &str, width: usize) -> Vec<String> {
        if visible_width(line) <= width || width == 0 {
            return vec![line.to_owned()];
        }
        let (letters, rest) = visible_chars(line);
        let (mut lines, mut open, mut left) = (Vec::new(), String::new(), &letters[..]);
        while !left.is_empty() {
            let end = left.len().min(width);
            let is_blank = |(_, letter): &(String, char)| *letter == ' ';
            let fits = left.len() <= width || left.get(end).is_some_and(is_blank);
            let blank = left.iter().take(end).rposition(is_blank).filter(|at| *at > 0 && !fits);
            let (piece, after) = left.split_at(blank.unwrap_or(end));
            let mut line = open.clone();
            for (sequences, letter) in piece {
                line.push_str(sequences);
                line.push(*letter);
                update_open_colours(&mut open, sequences);
            }
            let (blanks, after) = after.split_at(after.iter().take_while(|letter| is_blank(letter)).count());
            left = after;
            if left.is_empty() {
                line.push_str(&rest);
            } else if !open.is_empty() {
                line.push_str(RESET);
            }
            blanks
                .iter()
                .for_each(|(sequences, _)| update_open_colours(&mut open, sequences));
            lines.push(line);
        }
        lines
    }
}

/// Resets all colours.
const RESET: &str = "\x1b[0m";

/// Updates the sequences that are still open after these; empty for none.
fn update_open_colours(open: &mut String, sequences: &str) {
    if let Some(last) = sequences.rfind('\x1b').and_then(|at| sequences.get(at..)) {
        *open = if last == RESET { String::new() } else { last.to_owned() };
    }
}

/// The visible characters of a line, each with the sequences before it, and the sequences after the last one.
fn visible_chars(line: &str) -> (Vec<(String, char)>, String) {
    let (mut letters, mut sequences, mut in_sequence) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        in_sequence |= c == '\x1b';
        if in_sequence {
            sequences.push(c);
            in_sequence = c != 'm';
        } else {
            letters.push((std::mem::take(&mut sequences), c));
        }
    }
    (letters, sequences)
}

fn visible_width(text: &str) -> usize {
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
        assert_eq!(
            Paint::Coloured.wrap(&text, 2),
            ["\x1b[31mab\x1b[0m", "\x1b[31mc\x1b[0m"]
        );
        assert_eq!(Paint::Coloured.wrap(&text, 3), [text]);
    }

    #[test]
    fn lines_wrap_at_blanks_and_lose_nothing_else() {
        let wrap = |text: &str, width| Paint::Plain.wrap(text, width);
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 9), ["one two", "three"]);
        assert_eq!(wrap("onetwothree", 4), ["onet", "woth", "ree"]);
        assert_eq!(wrap("", 4), [""]);
        let red = Paint::Coloured.colour(Colour::Red, "two three");
        let expected = ["one \x1b[31mtwo\x1b[0m", "\x1b[31mthree\x1b[0m four"];
        assert_eq!(Paint::Coloured.wrap(&format!("one {red} four"), 10), expected);
    }

    #[test]
    fn plain_text_has_no_sequences() {
        assert_eq!(Paint::Plain.colour(Colour::Red, "abc"), "abc");
        assert_eq!(Paint::Plain.wrap("äöü", 2), ["äö", "ü"]);
    }
}
