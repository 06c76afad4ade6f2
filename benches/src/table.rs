//! Markdown tables, as in `docs/benchmarks.md`.

use comfy_table::{Cell, CellAlignment, Table, presets};

use crate::stats::Spread;

/// A table: texts left-aligned, numbers right-aligned.
pub(crate) fn table_text(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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

/// A number with this many digits, or a dash if it was not measured.
pub(crate) fn format_number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Smallest and largest value with this many digits, or a dash if nothing was measured.
pub(crate) fn format_range(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.digits$}–{:.digits$}", spread.min, spread.max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_both_ends() {
        assert_eq!(format_range(Spread::from_values(&[1.204, 1.1, 1.3]), 2), "1.10–1.30");
        assert_eq!(format_range(None, 2), "-");
    }

    #[test]
    fn missing_number_is_a_dash() {
        assert_eq!(format_number(Some(1.256), 2), "1.26");
        assert_eq!(format_number(None, 2), "-");
    }

    #[test]
    fn names_are_left_aligned_and_numbers_right_aligned() {
        let text = table_text(
            &["", "MiB"],
            [vec!["a".into(), "1".into()], vec!["bc".into(), "10".into()]],
        );
        assert!(text.contains("| a  |   1 |") && text.contains("| bc |  10 |"), "{text}");
    }
}
