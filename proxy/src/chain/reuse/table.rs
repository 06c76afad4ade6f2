//! Remembered calls of one plugin instance, found by what they read.
//!
//! A call reads step by step, and what it asks next depends on the values that it has read so far. So the table is a tree: a node is the
//! next step of the plugin after these values, its edges are the values, and a leaf is what the plugin decided then. A look-up asks the
//! same questions in the same order. Pure; what a leaf holds, and when it may be used, is in `reuse.rs`.

use crate::wasm::{Read, Seen, Step, Value};

/// Maximum number of leaves. A controller sends some tens of kinds of requests; a plugin that reads names needs a leaf for each.
const MAX_LEAVES: usize = 512;
/// Maximum size of a table in bytes, by estimate.
const MAX_BYTES: usize = 256 << 10;
/// The share of leaves that is removed when the table is full: removing one by one would search all leaves for each new one.
const REMOVED_PART: usize = 4;
/// Estimated bytes of a node or an edge besides its texts.
const NODE_BYTES: usize = 128;

/// Tree of reads with leaves of type `L`.
#[derive(Debug)]
pub(super) struct Table<L> {
    root: Option<Child<L>>,
    size: Size,
    /// Counts look-ups, to tell which leaf was used last.
    clock: u64,
}

/// Leaves of a tree, and their size in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    leaves: usize,
    bytes: usize,
}

#[derive(Debug)]
enum Child<L> {
    Node(Box<Node<L>>),
    Leaf(Box<Leaf<L>>),
}

#[derive(Debug)]
struct Node<L> {
    step: Step<Box<str>>,
    /// Sorted by value. A cell has one.
    edges: Vec<(Value, Child<L>)>,
    /// For a cell: the number of the state's changes when it had the value of its edge. Until the next change it still has.
    checked_at: Option<u64>,
}

#[derive(Debug)]
struct Leaf<L> {
    value: L,
    bytes: usize,
    used: u64,
}

/// The end of some reads in the table.
#[derive(Debug)]
pub(super) enum Known<'t, L> {
    Leaf(&'t L),
    /// Another question after the same values, or an end.
    Contradiction,
    Unknown,
}

/// The plugin asked another question after the same values: it does not depend on its reads alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contradiction;

impl<L> Default for Table<L> {
    fn default() -> Self {
        Self {
            root: None,
            size: Size::default(),
            clock: 0,
        }
    }
}

impl<L> Table<L> {
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.size.leaves
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            clock: self.clock,
            ..Self::default()
        };
    }

    /// The leaf that a plugin would reach if it were called. `evaluate` answers a step. `changes` returns the number of changes of the
    /// state so far: while it stays the same, so do the answers about cells.
    pub(super) fn find<'v>(
        &mut self,
        mut evaluate: impl FnMut(Step<&str>) -> Seen<'v>,
        mut changes: impl FnMut() -> u64,
    ) -> Option<&mut L> {
        self.clock += 1;
        let mut child = self.root.as_mut()?;
        loop {
            match child {
                Child::Leaf(leaf) => {
                    leaf.used = self.clock;
                    return Some(&mut leaf.value);
                }
                Child::Node(node) => {
                    let changes = matches!(node.step, Step::Cell(_)).then(&mut changes);
                    let at = if changes.is_some() && node.checked_at == changes {
                        0
                    } else {
                        let seen = evaluate(node.step.as_ref());
                        let at = node.edges.binary_search_by(|(value, _)| value.cmp_seen(&seen)).ok()?;
                        node.checked_at = changes;
                        at
                    };
                    child = &mut node.edges.get_mut(at)?.1;
                }
            }
        }
    }

    /// Looks a call with these reads up in the table.
    pub(super) fn look_up(&self, reads: &[Read]) -> Known<'_, L> {
        self.root
            .as_ref()
            .map_or(Known::Unknown, |root| match follow_reads(root, reads) {
                Followed::Leaf(leaf) => Known::Leaf(&leaf.value),
                Followed::Contradiction(_) => Known::Contradiction,
                Followed::Unknown => Known::Unknown,
            })
    }

    /// Adds a leaf, or replaces the one with the same reads; a leaf that is too large is left out. `bytes`: the leaf's size. `is_timed`:
    /// the leaf holds for a time only, so a later call may go on differently after the same values.
    ///
    /// # Errors
    /// A leaf in the table contradicts the new one. The table is unchanged.
    pub(super) fn insert(
        &mut self,
        reads: Vec<Read>,
        leaf: L,
        bytes: usize,
        is_timed: impl Fn(&L) -> bool,
    ) -> Result<(), Contradiction> {
        let bytes = bytes + reads.iter().map(read_bytes).sum::<usize>();
        if bytes > MAX_BYTES / REMOVED_PART {
            return Ok(());
        }
        let known = self.root.as_ref().map(|root| follow_reads(root, &reads));
        if let Some(Followed::Contradiction(known)) = known
            && !is_timed(&leaf)
            && !known.all_leaves(&is_timed)
        {
            return Err(Contradiction);
        }
        // Large leaves may need the room of more small ones than are removed at once.
        while self.size.leaves >= MAX_LEAVES || self.size.bytes + bytes > MAX_BYTES {
            self.remove_oldest();
        }
        self.clock += 1;
        let leaf = Leaf {
            value: leaf,
            bytes,
            used: self.clock,
        };
        let mut removed = Size::default();
        self.root = Some(with_leaf(self.root.take(), reads.into_iter(), leaf, &mut removed));
        self.size.leaves = self.size.leaves + 1 - removed.leaves;
        self.size.bytes = self.size.bytes + bytes - removed.bytes;
        Ok(())
    }

    /// Removes the leaves that were not used for longest, at least one if there are any.
    fn remove_oldest(&mut self) {
        let mut used = Vec::with_capacity(self.size.leaves);
        if let Some(root) = &self.root {
            root.for_each_leaf(&mut |leaf| used.push(leaf.used));
        }
        let at = used.len() / REMOVED_PART;
        if at < used.len() {
            let (_, newest_removed, _) = used.select_nth_unstable(at);
            let newest_removed = *newest_removed;
            self.root = self
                .root
                .take()
                .and_then(|root| root.without_leaves_until(newest_removed));
        }
        self.size = self.root.as_ref().map(Child::size).unwrap_or_default();
    }
}

impl<L> Child<L> {
    fn for_each_leaf(&self, visit: &mut impl FnMut(&Leaf<L>)) {
        match self {
            Self::Leaf(leaf) => visit(leaf),
            Self::Node(node) => node.edges.iter().for_each(|(_, child)| child.for_each_leaf(visit)),
        }
    }

    fn size(&self) -> Size {
        let mut size = Size::default();
        self.for_each_leaf(&mut |leaf| {
            size.leaves += 1;
            size.bytes += leaf.bytes;
        });
        size
    }

    fn all_leaves(&self, condition: &impl Fn(&L) -> bool) -> bool {
        let mut all = true;
        self.for_each_leaf(&mut |leaf| all &= condition(&leaf.value));
        all
    }

    /// The tree without the leaves that were last used at this time or before; `None` if nothing is left.
    fn without_leaves_until(self, time: u64) -> Option<Self> {
        match self {
            Self::Leaf(leaf) => (leaf.used > time).then_some(Self::Leaf(leaf)),
            Self::Node(mut node) => {
                let edges = std::mem::take(&mut node.edges).into_iter();
                let kept = edges.filter_map(|(value, child)| Some((value, child.without_leaves_until(time)?)));
                node.edges = kept.collect();
                (!node.edges.is_empty()).then_some(Self::Node(node))
            }
        }
    }
}

enum Followed<'t, L> {
    Leaf(&'t Leaf<L>),
    /// The part of the tree that asks something else after the same values.
    Contradiction(&'t Child<L>),
    Unknown,
}

fn follow_reads<'t, L>(root: &'t Child<L>, reads: &[Read]) -> Followed<'t, L> {
    let (mut child, mut reads) = (root, reads.iter());
    loop {
        match (child, reads.next()) {
            (Child::Leaf(leaf), None) => return Followed::Leaf(leaf),
            (Child::Node(node), Some((step, value))) if node.step == *step => {
                match node.edge(value).ok().and_then(|at| node.edges.get(at)) {
                    Some((_, next)) => child = next,
                    None => return Followed::Unknown,
                }
            }
            _ => return Followed::Contradiction(child),
        }
    }
}

/// The tree with a leaf at the end of the reads. What contradicts it is removed and added to `removed`.
fn with_leaf<L>(
    child: Option<Child<L>>,
    mut reads: std::vec::IntoIter<Read>,
    leaf: Leaf<L>,
    removed: &mut Size,
) -> Child<L> {
    let Some((step, value)) = reads.next() else {
        removed.add(child.as_ref());
        return Child::Leaf(Box::new(leaf));
    };
    let mut node = match child {
        Some(Child::Node(node)) if node.step == step => node,
        other => {
            removed.add(other.as_ref());
            Box::new(Node {
                step,
                edges: Vec::new(),
                checked_at: None,
            })
        }
    };
    match node.edge(&value) {
        Ok(at) => {
            let (value, child) = node.edges.remove(at);
            let child = with_leaf(Some(child), reads, leaf, removed);
            node.edges.insert(at, (value, child));
        }
        Err(_) if matches!(node.step, Step::Cell(_)) => {
            // The number of a write never comes back.
            removed.add(node.edges.iter().map(|(_, child)| child));
            node.edges = vec![(value, with_leaf(None, reads, leaf, removed))];
            node.checked_at = None;
        }
        Err(at) => node.edges.insert(at, (value, with_leaf(None, reads, leaf, removed))),
    }
    Child::Node(node)
}

impl Size {
    fn add<'t, L: 't>(&mut self, trees: impl IntoIterator<Item = &'t Child<L>>) {
        for size in trees.into_iter().map(Child::size) {
            self.leaves += size.leaves;
            self.bytes += size.bytes;
        }
    }
}

impl<L> Node<L> {
    /// Index of the edge with this value, or where it belongs.
    fn edge(&self, value: &Value) -> Result<usize, usize> {
        let seen = value.as_seen();
        self.edges.binary_search_by(|(known, _)| known.cmp_seen(&seen))
    }
}

fn read_bytes((step, value): &Read) -> usize {
    let name = match step.as_ref() {
        Step::Header(name) | Step::Query(name) | Step::Cell(name) => name.len(),
        _ => 0,
    };
    NODE_BYTES + name + value.text_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value {
        Value::Text(value.into())
    }

    fn is_timed(leaf: &u32) -> bool {
        *leaf >= 100
    }

    /// Looks up a request whose group, resource, name and cell have these values.
    fn find(table: &mut Table<u32>, [group, resource, name]: [&'static str; 3], cell: u64) -> Option<u32> {
        let answer = |step: Step<&str>| match step {
            Step::Group => Seen::Text(group.into()),
            Step::Resource => Seen::Text(resource.into()),
            Step::Name => Seen::Text(name.into()),
            Step::Cell(_) => Seen::Number(cell),
            _ => Seen::Absent,
        };
        table.find(answer, || cell).copied()
    }

    #[test]
    fn plugin_that_reads_adaptively_gets_its_own_path() {
        let mut table = Table::default();
        let pods = vec![(Step::Resource, text("pods")), (Step::Name, text("a"))];
        table.insert(pods, 1, 8, is_timed).unwrap();
        table
            .insert(vec![(Step::Resource, text("leases"))], 2, 8, is_timed)
            .unwrap();
        assert_eq!(find(&mut table, ["", "pods", "a"], 0), Some(1));
        assert_eq!(find(&mut table, ["", "pods", "b"], 0), None, "another name was read");
        assert_eq!(find(&mut table, ["", "leases", "b"], 0), Some(2), "no name was read");
        assert_eq!(find(&mut table, ["", "services", "a"], 0), None);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn other_question_after_same_answers_is_a_contradiction() {
        let mut table = Table::default();
        table
            .insert(vec![(Step::Resource, text("pods"))], 1, 8, is_timed)
            .unwrap();
        let longer = vec![(Step::Resource, text("pods")), (Step::Name, text("a"))];
        assert_eq!(table.insert(longer.clone(), 2, 8, is_timed), Err(Contradiction));
        assert_eq!(
            table.insert(vec![(Step::Group, text(""))], 3, 8, is_timed),
            Err(Contradiction)
        );
        assert_eq!(table.insert(Vec::new(), 4, 8, is_timed), Err(Contradiction));
        assert_eq!(
            find(&mut table, ["", "pods", "a"], 0),
            Some(1),
            "the table is unchanged"
        );
        // A verdict that holds for a time only may be followed by any other.
        table.insert(longer.clone(), 100, 8, is_timed).unwrap();
        assert_eq!(find(&mut table, ["", "pods", "b"], 0), None);
        table
            .insert(vec![(Step::Resource, text("pods"))], 5, 8, is_timed)
            .unwrap();
        assert_eq!((find(&mut table, ["", "pods", "b"], 0), table.len()), (Some(5), 1));
    }

    #[test]
    fn leaf_with_same_reads_is_replaced() {
        let mut table = Table::default();
        for leaf in [1, 2] {
            table.insert(vec![(Step::Name, text("a"))], leaf, 8, is_timed).unwrap();
        }
        assert_eq!((find(&mut table, ["", "", "a"], 0), table.len()), (Some(2), 1));
        assert_eq!(table.size.bytes, 8 + NODE_BYTES + 1);
        table.insert(Vec::new(), 9, 8, |_| true).unwrap();
        assert_eq!((find(&mut table, ["", "", "x"], 0), table.len()), (Some(9), 1));
        table.clear();
        assert_eq!((find(&mut table, ["", "", "x"], 0), table.len()), (None, 0));
    }

    #[test]
    fn cell_that_was_written_again_replaces_what_depends_on_it() {
        let mut table = Table::default();
        for write in [3, 4] {
            let reads = vec![(Step::Cell("k".into()), Value::Number(write)), (Step::Name, text("a"))];
            table.insert(reads, u32::try_from(write).unwrap(), 8, is_timed).unwrap();
        }
        assert_eq!(find(&mut table, ["", "", "a"], 3), None);
        assert_eq!((find(&mut table, ["", "", "a"], 4), table.len()), (Some(4), 1));
    }

    #[test]
    fn cell_is_evaluated_again_only_after_a_change() {
        let mut table = Table::default();
        let reads = |write| vec![(Step::Cell("k".into()), Value::Number(write)), (Step::Name, text("a"))];
        let find = |table: &mut Table<u32>, write: u64, changes: u64| {
            let mut evaluated = 0;
            let answer = |step: Step<&str>| match step {
                Step::Cell(_) => {
                    evaluated += 1;
                    Seen::Number(write)
                }
                _ => Seen::Text("a".into()),
            };
            let found = table.find(answer, || changes).copied();
            (found, evaluated)
        };
        table.insert(reads(3), 1, 8, is_timed).unwrap();
        assert_eq!(find(&mut table, 3, 10), (Some(1), 1));
        assert_eq!(find(&mut table, 3, 10), (Some(1), 0));
        assert_eq!(find(&mut table, 3, 11), (Some(1), 1), "another key has changed");
        for _ in 0..2 {
            assert_eq!(find(&mut table, 4, 12), (None, 1), "the cell was written");
        }
        table.insert(reads(4), 2, 8, is_timed).unwrap();
        assert_eq!(find(&mut table, 4, 12), (Some(2), 1));
        assert_eq!(find(&mut table, 4, 12), (Some(2), 0));
        table.insert(reads(5), 3, 8, is_timed).unwrap();
        assert_eq!(
            find(&mut table, 4, 12),
            (None, 1),
            "another call has seen a later write"
        );
    }

    /// Replaced are a leaf, leaves below another question, and leaves of an earlier write.
    #[test]
    fn size_is_kept_when_leaves_are_replaced() {
        let mut table = Table::default();
        let cell = |write| (Step::Cell("k".into()), Value::Number(write));
        let name = |value| (Step::Name, text(value));
        for (reads, bytes) in [
            (vec![cell(1), name("a")], 1),
            (vec![cell(1), name("b")], 20),
            (vec![cell(1), name("a")], 300),
            (vec![cell(2), name("c")], 4_000),
            (vec![cell(2), (Step::Group, text("apps"))], 5),
            (vec![cell(2)], 60),
            (vec![cell(2), name("a")], 7),
            (vec![name("a")], 8),
        ] {
            table.insert(reads, 1, bytes, |_| true).unwrap();
            assert_eq!(table.root.as_ref().map(Child::size), Some(table.size));
            assert!(table.size.leaves > 0);
        }
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn full_table_forgets_what_was_not_used_for_longest() {
        let mut table = Table::default();
        let names: Vec<&'static str> = (0..=MAX_LEAVES).map(|number| &*number.to_string().leak()).collect();
        for (number, name) in (0..).zip(&names) {
            let _ = find(&mut table, ["", "", "0"], 0);
            table
                .insert(vec![(Step::Name, text(name))], number, 8, is_timed)
                .unwrap();
            assert!(table.len() <= MAX_LEAVES);
        }
        assert_eq!(find(&mut table, ["", "", "0"], 0), Some(0), "it is used all the time");
        assert_eq!(find(&mut table, ["", "", "1"], 0), None);
        assert_eq!(find(&mut table, ["", "", names[MAX_LEAVES]], 0), Some(512));
        assert!(table.len() > MAX_LEAVES / 2);
    }

    #[test]
    fn table_is_bounded_in_bytes_and_leaves_out_what_is_too_large() {
        let mut table = Table::default();
        let long = "x".repeat(500);
        for number in 0..MAX_LEAVES {
            let name = format!("{long}{number}");
            table
                .insert(vec![(Step::Name, Value::Text(name.into()))], 1, 1000, is_timed)
                .unwrap();
            assert!(table.size.bytes <= MAX_BYTES, "{:?}", table.size);
        }
        assert!(table.len() > 10);
        let before = table.size;
        for bytes in [MAX_BYTES / 4 + 1, MAX_BYTES + 1] {
            table.insert(vec![(Step::Name, text("a"))], 1, bytes, is_timed).unwrap();
            assert_eq!(table.size, before);
        }
    }

    #[test]
    fn table_of_small_leaves_stays_within_its_bytes_when_large_ones_come() {
        let mut table = Table::default();
        let mut insert = |name: String, bytes| {
            let reads = vec![(Step::Name, Value::Text(name.into()))];
            table.insert(reads, 1, bytes, is_timed).unwrap();
            assert!(table.size.bytes <= MAX_BYTES, "{:?}", table.size);
            table.size.leaves
        };
        let small: Vec<usize> = (0..400).map(|number| insert(format!("small-{number}"), 8)).collect();
        assert_eq!(small.last(), Some(&400));
        let large: Vec<usize> = (0..20)
            .map(|number| insert(format!("large-{number}"), MAX_BYTES / 4 - 1000))
            .collect();
        assert!(large.iter().all(|leaves| *leaves > 1), "{large:?}");
        assert_eq!(insert("small".into(), 8), large.last().map_or(0, |leaves| leaves + 1));
    }
}
