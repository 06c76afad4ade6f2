//! Lists of pods in the messages of conditions and Events.

/// Pods that a message names.
const MAX_NAMED: usize = 5;

/// The first of these, and how many more there are.
pub fn join_first(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    let more = more.map(|more| format!("and {more} more"));
    all.take(MAX_NAMED).chain(more).collect::<Vec<_>>().join(between)
}

/// The first of these pods, each with its problem.
pub fn named_pods(pods: &[(String, String)], between: &str) -> String {
    join_first(pods.iter().map(|(pod, problem)| format!("{pod} {problem}")), between)
}
