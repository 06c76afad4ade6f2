//! A table for people, in Markdown, as `docs/benchmarks.md` has it.

use comfy_table::{Cell, CellAlignment, Table, presets};

/// Writes a heading and a table: text on the left, numbers on the right.
#[expect(clippy::print_stdout, reason = "the tables are the program's output")]
pub(crate) fn print(title: &str, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    println!("## {title}\n\n{}\n", text(header, rows));
}

/// Writes a line of text.
#[expect(clippy::print_stdout, reason = "the tables are the program's output")]
pub(crate) fn note(text: &str) {
    println!("{text}\n");
}

fn text(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            Cell::new(text).set_alignment(if column == 0 {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            })
        }));
    }
    table.to_string()
}

/// A number with so many digits, or a dash for one that was not measured.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash() {
        assert_eq!(number(Some(1.256), 2), "1.26");
        assert_eq!(number(None, 2), "-");
    }

    #[test]
    fn names_stand_left_and_numbers_right() {
        let text = text(
            &["", "MiB"],
            [vec!["a".into(), "1".into()], vec!["bc".into(), "10".into()]],
        );
        assert!(text.contains("| a  |   1 |") && text.contains("| bc |  10 |"), "{text}");
    }
}
