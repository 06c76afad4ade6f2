//! The hash of shards, and ranges of it.

use proptest::prelude::*;

use super::*;

const UID_PATH: &str = "object.metadata.uid";

fn range(start: u64, end: Option<u64>) -> HashRange {
    HashRange::new(start, end).unwrap()
}

#[test]
fn hash_is_fnv_1a() {
    for (text, expected) in [
        // An API server takes the empty text for the namespace of objects without one.
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("b", 0xaf63_df4c_8601_f1a5),
        ("foobar", 0x8594_4171_f739_67e8),
        ("default", 0xebad_a516_8620_c5fe),
        ("kube-system", 0xdf65_c7bc_1d82_b35e),
        ("\u{e4}", 0x0ac2_1207_b718_1582),
        ("d3b0a7c2-9f6e-4a53-8c1d-2f4e6a8b0c1d", 0xbc1b_6433_427f_5f62),
    ] {
        assert_eq!(fnv1a_64(text), expected, "{text:?}");
    }
}

#[test]
fn hash_is_constant() {
    const HASH: u64 = fnv1a_64("foobar");
    assert_eq!(HASH, 0x8594_4171_f739_67e8);
}

#[test]
fn start_is_in_range_and_end_is_not() {
    let middle = range(0x10, Some(0x20));
    for (hash, expected) in [
        (0, false),
        (0xf, false),
        (0x10, true),
        (0x1f, true),
        (0x20, false),
        (u64::MAX, false),
    ] {
        assert_eq!(middle.contains(hash), expected, "{hash:#x}");
    }
    assert!(!range(0x10, None).contains(0xf));
    assert!(range(0x10, None).contains(u64::MAX));
    assert!(!range(0, Some(u64::MAX)).contains(u64::MAX));
    assert!(HashRange::ALL.contains(0) && HashRange::ALL.contains(u64::MAX));
}

#[test]
fn bounds_are_read_like_upstream() {
    assert_eq!(
        HashRange::parse("0x0000000000000000", "0x10000000000000000"),
        Ok(HashRange::ALL)
    );
    assert_eq!(
        HashRange::parse("0x00000000000000ff", "0xffffffffffffffff"),
        Ok(range(0xff, Some(u64::MAX)))
    );
    let start = "0x0000000000000000";
    let end = "0x8000000000000000";
    for bad in [
        "",
        "0x",
        "0x0",
        "0x000000000000000",
        "0x00000000000000000",
        "0000000000000000",
        "0X0000000000000000",
        "0x00000000000000FF",
        "0x+000000000000000",
        "0x000000000000000g",
        "0x000000000000_000",
        " 0x0000000000000000",
        "'0x0000000000000000'",
        "0x10000000000000001",
        "0x20000000000000000",
        "0x010000000000000000",
    ] {
        assert_eq!(HashRange::parse(bad, end), Err(HashRangeError::Bound(bad.into())));
        assert_eq!(HashRange::parse(start, bad), Err(HashRangeError::Bound(bad.into())));
    }
    // 2^64 is no start.
    assert_eq!(
        HashRange::parse(END_OF_HASHES, END_OF_HASHES),
        Err(HashRangeError::Bound(END_OF_HASHES.into()))
    );
}

#[test]
fn empty_ranges_are_refused() {
    let empty = |start, end| Err(HashRangeError::Empty { start, end });
    assert_eq!(HashRange::new(5, Some(5)), empty(5, 5));
    assert_eq!(HashRange::new(6, Some(5)), empty(6, 5));
    assert_eq!(
        HashRange::parse("0x0000000000000001", "0x0000000000000000"),
        empty(1, 0)
    );
    assert_eq!(
        HashRangeError::Empty { start: 5, end: 5 }.to_string(),
        "the hash range from 0x0000000000000005 to 0x0000000000000005 is empty: the end must be above the start"
    );
}

#[test]
fn selector_has_the_form_that_servers_take() {
    assert_eq!(
        HashRange::selector_text(
            UID_PATH,
            &[range(0xabc, Some(0x4000_0000_0000_0000)), range(1 << 63, None)]
        ),
        "shardRange(object.metadata.uid, '0x0000000000000abc', '0x4000000000000000') || \
         shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
    );
    assert_eq!(HashRange::selector_text(UID_PATH, &[]), "");
}

#[test]
fn coverage_sees_gaps_and_overlaps() {
    let half = 1 << 63;
    for (ranges, expected) in [
        (vec![], false),
        (vec![HashRange::ALL], true),
        (vec![range(half, None), range(0, Some(half))], true),
        (vec![range(0, Some(half))], false),
        (vec![range(1, None)], false),
        (vec![range(0, Some(half)), range(half + 1, None)], false),
        (vec![range(0, Some(half)), range(half - 1, None)], false),
        (vec![range(0, Some(u64::MAX))], false),
        (vec![HashRange::ALL, HashRange::ALL], false),
        (vec![HashRange::ALL, range(half, None)], false),
    ] {
        assert_eq!(HashRange::covers_once(&ranges), expected, "{ranges:?}");
    }
}

#[test]
fn ranges_that_touch_or_overlap_are_merged() {
    for (ranges, expected) in [
        (vec![], vec![]),
        (vec![range(5, Some(9)), range(1, Some(5))], vec![range(1, Some(9))]),
        (vec![range(1, Some(9)), range(2, Some(3))], vec![range(1, Some(9))]),
        (vec![range(1, None), range(2, Some(3))], vec![range(1, None)]),
        (vec![range(2, Some(3)), range(1, None)], vec![range(1, None)]),
        (
            vec![range(6, Some(7)), range(1, Some(5))],
            vec![range(1, Some(5)), range(6, Some(7))],
        ),
    ] {
        let merged = HashRange::merge(ranges);
        assert!(HashRange::are_merged(&merged), "{merged:?}");
        assert_eq!(merged, expected);
    }
    assert!(!HashRange::are_merged(&[range(1, Some(2)), range(2, Some(3))]));
    assert!(!HashRange::are_merged(&[range(1, None), range(2, Some(3))]));
    assert!(!HashRange::are_merged(&[range(5, Some(6)), range(1, Some(2))]));
}

/// A small space makes ranges meet; the offset moves it, so that large hashes occur too.
fn any_range() -> impl Strategy<Value = HashRange> {
    let offset = prop::sample::select(vec![0, 0x7fff_ffff_ffff_fff0, u64::MAX - 40]);
    (offset, 0_u64..20, prop::option::of(1_u64..20))
        .prop_map(|(offset, start, length)| range(offset + start, length.map(|length| offset + start + length)))
}

proptest! {
    #[test]
    fn bounds_round_trip(start in any::<u64>(), end in prop::option::of(any::<u64>())) {
        prop_assume!(end.is_none_or(|end| start < end));
        let range = range(start, end);
        let text = range.to_string();
        let (first, last) = text.split_once(", ").unwrap();
        prop_assert_eq!(HashRange::parse(first.trim_matches('\''), last.trim_matches('\'')), Ok(range));
    }

    #[test]
    fn merged_ranges_contain_the_same_hashes(ranges in prop::collection::vec(any_range(), 0..8)) {
        let merged = HashRange::merge(ranges.clone());
        prop_assert!(HashRange::are_merged(&merged));
        for offset in [0, 0x7fff_ffff_ffff_fff0, u64::MAX - 40] {
            for hash in offset..=offset + 40 {
                let expected = ranges.iter().any(|range| range.contains(hash));
                prop_assert_eq!(HashRange::merged_contain(&merged, hash), expected, "{:#x}", hash);
            }
        }
    }

    #[test]
    fn cut_space_is_covered_once(
        cuts in prop::collection::btree_set(1_u64.., 0..40),
        hash in any::<u64>(),
        removed in any::<prop::sample::Index>(),
    ) {
        let starts: Vec<u64> = std::iter::once(0).chain(cuts).collect();
        let mut ranges: Vec<HashRange> = starts
            .iter()
            .enumerate()
            .map(|(index, start)| range(*start, starts.get(index + 1).copied()))
            .collect();
        ranges.reverse();
        prop_assert!(HashRange::covers_once(&ranges));
        prop_assert_eq!(ranges.iter().filter(|range| range.contains(hash)).count(), 1);
        prop_assert_eq!(HashRange::merge(ranges.clone()), vec![HashRange::ALL]);

        let twice = ranges[removed.index(ranges.len())];
        ranges.push(twice);
        prop_assert!(!HashRange::covers_once(&ranges));
        ranges.retain(|range| *range != twice);
        prop_assert!(!HashRange::covers_once(&ranges));
    }
}
