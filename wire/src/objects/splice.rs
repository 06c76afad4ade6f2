//! Copies bytes of which parts are replaced or left out.

use std::borrow::Cow;
use std::ops::Range;

/// Replaces a range of bytes.
#[derive(Debug, Clone)]
pub(super) struct Splice<'a> {
    pub(super) range: Range<usize>,
    pub(super) with: Cow<'a, [u8]>,
}

impl Splice<'_> {
    /// Leaves the range out.
    pub(super) const fn removal(range: Range<usize>) -> Self {
        Self {
            range,
            with: Cow::Borrowed(&[]),
        }
    }
}

/// Appends bytes with replacements of ranges that do not overlap, in any order.
pub(super) fn put_spliced(out: &mut Vec<u8>, bytes: &[u8], mut splices: Vec<Splice<'_>>) {
    splices.sort_by_key(|splice| splice.range.start);
    let mut copied = 0;
    for splice in splices {
        out.extend_from_slice(bytes.get(copied..splice.range.start).unwrap_or_default());
        out.extend_from_slice(&splice.with);
        copied = splice.range.end;
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_replaced_in_any_order() {
        let replacement = |range: Range<usize>, with: &'static str| Splice {
            range,
            with: Cow::Borrowed(with.as_bytes()),
        };
        let cases = [
            (vec![], "abcdef"),
            (vec![Splice::removal(0..6)], ""),
            (vec![replacement(4..6, "X"), Splice::removal(0..1)], "bcdX"),
            (vec![replacement(2..4, "long"), Splice::removal(1..2)], "alongef"),
        ];
        for (splices, expected) in cases {
            let mut out = b"> ".to_vec();
            put_spliced(&mut out, b"abcdef", splices);
            assert_eq!(out, [b"> ", expected.as_bytes()].concat());
        }
    }
}
