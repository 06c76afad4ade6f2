//! Divides the virtual ranges among the shards of a root.
//!
//! Guarantees:
//! - Each range belongs to exactly one shard, and each shard has at least one. Shards of equal weight differ by one range at most.
//! - One more shard at the end takes ranges, and no others move. Without the last shard, its ranges alone move. With equal weights
//!   that is one range of `n`.
//! - The division depends on the weights alone, in their order. Nothing is remembered, so a manager that takes over, a root that is
//!   made again, and the validation of an object get the same one.
//!
//! The division among `n` shards is made from that among the first `n - 1`. How many ranges each shard gives up follows from the
//! method of Sainte-Laguë: with a divisor method, another party takes seats from others and gives none to them. Which ranges are
//! given up is chosen so that the ranges of a shard lie together, because each gap is another range in the predicate on objects.
//! Up to 28 shards of equal weight have at most 16 gapless parts each, and up to 64 have 19.
//!
//! A changed weight moves more than necessary, because all later shards are divided from there. Only the last shard's moves nothing
//! else.

use std::cmp::Reverse;

use ctrlmesh_wire::objects::VIRTUAL_RANGES;

use crate::range_set::RangeSet;

/// The ranges of each shard, in the order of their weights, of which there are at most as many as ranges.
#[must_use]
pub fn divide_ranges(weights: &[u32]) -> Vec<RangeSet> {
    let mut owners = vec![0; usize::from(VIRTUAL_RANGES)];
    let mut counts = vec![owners.len()];
    for new in 1..weights.len() {
        let next = range_counts(weights.get(..=new).unwrap_or_default());
        let pairs = counts.iter().zip(&next);
        let mut surplus: Vec<usize> = pairs.map(|(before, after)| before.saturating_sub(*after)).collect();
        while let Some(piece) = next_piece(&owners, &surplus, new) {
            owners
                .iter_mut()
                .skip(piece.first)
                .take(piece.count)
                .for_each(|owner| *owner = new);
            if let Some(surplus) = surplus.get_mut(piece.owner) {
                *surplus = surplus.saturating_sub(piece.count);
            }
        }
        counts = next;
    }
    let ranges_of = |shard: usize| -> RangeSet {
        let own = (0..VIRTUAL_RANGES).zip(&owners).filter(|(_, owner)| **owner == shard);
        own.map(|(range, _)| range).collect()
    };
    (0..weights.len()).map(ranges_of).collect()
}

/// Number of ranges of each shard: one for each, and the others one by one to the shard whose weight, divided by one more than twice
/// its ranges, is largest. Of equal shards the first one gets it.
fn range_counts(weights: &[u32]) -> Vec<usize> {
    let divisor = |count: usize| u64::try_from(2 * count + 1).unwrap_or(u64::MAX);
    let product = |weight: u32, count: usize| u64::from(weight).saturating_mul(divisor(count));
    let mut counts = vec![1_usize; weights.len()];
    for _ in weights.len()..usize::from(VIRTUAL_RANGES) {
        // `min_by` returns the first of equal elements.
        let neediest = counts
            .iter_mut()
            .zip(weights)
            .min_by(|(count, weight), (other, other_weight)| {
                product(**other_weight, **count).cmp(&product(**weight, **other))
            });
        if let Some((count, _)) = neediest {
            *count += 1;
        }
    }
    counts
}

/// Neighbouring ranges of one shard.
struct Run {
    first: usize,
    count: usize,
    owner: usize,
}

/// An end of a run, or all of it, that the new shard may take. The smallest one is taken: fields are compared in their order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    /// How many runs more the new shard has with this piece.
    new_runs: i8,
    /// The owner has to give up more than this piece.
    leaves_surplus: bool,
    /// No neighbour on this side has anything to give up that would make the piece longer.
    is_alone: bool,
    /// The owner keeps a part of the run.
    leaves_rest: bool,
    /// Number of runs of the owner, most first.
    runs_of_owner: Reverse<usize>,
    first_of_run: usize,
    is_at_end: bool,
    first: usize,
    count: usize,
    owner: usize,
}

/// The piece that the new shard takes next. `surplus`: how many ranges each earlier shard has yet to give up. `None`: none has any.
fn next_piece(owners: &[usize], surplus: &[usize], new: usize) -> Option<Piece> {
    let runs = runs_of(owners);
    let mut run_counts = vec![0_usize; surplus.len()];
    for run in &runs {
        if let Some(count) = run_counts.get_mut(run.owner) {
            *count += 1;
        }
    }
    let surplus_of = |owner: usize| surplus.get(owner).copied().unwrap_or_default();
    let is_new = |run: Option<&Run>| run.is_some_and(|run| run.owner == new);
    let pieces = runs.iter().enumerate().flat_map(|(index, run)| {
        let left = index.checked_sub(1).and_then(|left| runs.get(left));
        let right = runs.get(index + 1);
        let surplus = surplus_of(run.owner);
        let count = surplus.min(run.count);
        let runs_of_owner = run_counts.get(run.owner).copied().unwrap_or_default();
        [(left, false), (right, true)].map(|(neighbour, is_at_end)| Piece {
            new_runs: if count == run.count {
                1 - i8::from(is_new(left)) - i8::from(is_new(right))
            } else {
                1 - i8::from(is_new(neighbour))
            },
            leaves_surplus: count < surplus,
            is_alone: neighbour.is_none_or(|neighbour| surplus_of(neighbour.owner) == 0),
            leaves_rest: count < run.count,
            runs_of_owner: Reverse(runs_of_owner),
            first_of_run: run.first,
            is_at_end,
            first: if is_at_end {
                run.first + run.count - count
            } else {
                run.first
            },
            count,
            owner: run.owner,
        })
    });
    pieces.filter(|piece| piece.count > 0).min()
}

fn runs_of(owners: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, owner) in owners.iter().copied().enumerate() {
        match runs.last_mut() {
            Some(run) if run.owner == owner => run.count += 1,
            _ => runs.push(Run { first, count: 1, owner }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn equal_shards(shards: usize) -> Vec<RangeSet> {
        divide_ranges(&vec![1; shards])
    }

    /// Whether each range is in exactly one of the sets.
    fn is_partition(sets: &[RangeSet]) -> bool {
        (0..VIRTUAL_RANGES).all(|range| sets.iter().filter(|set| set.contains(range)).count() == 1)
    }

    fn is_within(set: &RangeSet, other: &RangeSet) -> bool {
        set.difference(other).is_empty()
    }

    #[test]
    fn divisions_among_few_shards_are_known() {
        // Objects move if these change: another release of the manager must divide in the same way.
        let texts = |shards: usize| -> Vec<Vec<String>> { equal_shards(shards).iter().map(RangeSet::texts).collect() };
        assert_eq!(texts(1), [["0-1023"]]);
        assert_eq!(texts(2), [["512-1023"], ["0-511"]]);
        assert_eq!(texts(3), [["682-1023"], ["0-340"], ["341-681"]]);
        assert_eq!(
            texts(4),
            [
                vec!["768-1023"],
                vec!["0-255"],
                vec!["426-681"],
                vec!["256-425", "682-767"]
            ]
        );
    }

    #[test]
    fn equal_shards_have_equal_parts_and_few_runs() {
        for shards in 1..=64 {
            let sets = equal_shards(shards);
            assert_eq!(sets.len(), shards);
            assert!(is_partition(&sets), "{shards}");
            let counts: Vec<u32> = sets.iter().map(RangeSet::count).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{shards}: {counts:?}");
            let runs = sets.iter().map(|set| set.texts().len()).max().unwrap();
            assert!(runs <= if shards <= 28 { 16 } else { 19 }, "{shards}: {runs} runs");
        }
    }

    #[test]
    fn one_more_shard_takes_its_part_and_moves_nothing_else() {
        let mut before = equal_shards(1);
        for shards in 2..=64 {
            let after = equal_shards(shards);
            let (new, others) = after.split_last().unwrap();
            assert!(
                others
                    .iter()
                    .zip(&before)
                    .all(|(after, before)| is_within(after, before)),
                "{shards}: a shard gains ranges of another old one"
            );
            let part = u32::from(VIRTUAL_RANGES) / u32::try_from(shards).unwrap();
            assert!((part..=part + 1).contains(&new.count()), "{shards}: {}", new.count());
            before = after;
        }
    }

    #[test]
    fn weights_decide_the_sizes_of_parts() {
        let counts = |weights: &[u32]| -> Vec<u32> { divide_ranges(weights).iter().map(RangeSet::count).collect() };
        assert_eq!(counts(&[1, 3]), [256, 768]);
        assert_eq!(counts(&[2, 1, 1]), [512, 256, 256]);
        // Every shard has something, however small its weight is.
        assert_eq!(counts(&[u32::MAX, 0, 1]), [1022, 1, 1]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn weighted_shards_are_divided_once_and_grow_at_the_end(
            weights in prop::collection::vec(1..=100_u32, 1..24),
            more in 1..=100_u32,
        ) {
            let before = divide_ranges(&weights);
            prop_assert!(is_partition(&before));
            let total: u32 = weights.iter().sum();
            for (set, weight) in before.iter().zip(&weights) {
                let fair = f64::from(VIRTUAL_RANGES) * f64::from(*weight) / f64::from(total);
                // Its own rounding, and its part of the rounding of all shards. Smaller shards are rounded up to one range.
                let shards = f64::from(u32::try_from(weights.len()).unwrap());
                let slack = if fair < 1.0 { 1.0 } else { 0.5 + shards * f64::from(*weight) / f64::from(total) };
                prop_assert!((f64::from(set.count()) - fair).abs() <= slack, "{} instead of {fair}", set.count());
            }
            let after = divide_ranges(&[weights, vec![more]].concat());
            prop_assert!(is_partition(&after));
            let (new, others) = after.split_last().unwrap();
            prop_assert!(others.iter().zip(&before).all(|(after, before)| is_within(after, before)));
            prop_assert!(!new.is_empty());
        }
    }
}
