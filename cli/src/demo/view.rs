//! Draws the picture: the steps, every widget under the replica that handled it last, and what the controllers and sidecars say of
//! themselves. Pure: facts in, text out.

mod added;

use ctrlmesh_contract::status::{EntryState, EntryStatus};
use ctrlmesh_manager::shard_hash;

use super::added::FAULT_INJECT_ENTRY;
use super::facts::Facts;
use super::kubectl::Progress;
use super::plan::{marker_entry, shard_entry, shard_name};
use super::replica::Replica;
use super::stage::{Step, StepState};
use super::widget::NAMESPACES;
use crate::paint::{Colour, Paint};

/// Width of the names at the left.
const NAME: usize = 14;
/// Width of a replica's column: this fits twice into a terminal of 80 …
const COLUMN: usize = 32;
/// … and is more than a wide one needs.
const WIDE_COLUMN: usize = 44;
/// Width of a step's title.
const TITLE: usize = 25;
/// Lines for steps.
const STEP_LINES: usize = 5;
/// Digits of a digest that are shown.
const DIGITS: usize = 8;

/// The whole picture, lines separated by newlines. No line is longer than `width`. It is made for 24 lines of 80 characters.
pub(crate) fn picture(facts: &Facts, steps: &[Step], seconds: f64, paint: Paint, width: usize) -> String {
    let mut lines = vec![headline(seconds, paint)];
    lines.extend(step_lines(steps, paint));
    lines.push(legend(paint));
    lines.extend(
        NAMESPACES
            .iter()
            .map(|namespace| namespace_line(facts, namespace, paint)),
    );
    lines.push(String::new());
    lines.extend(replica_lines(facts, paint, width));
    let lines: Vec<_> = lines.iter().map(|line| paint.clip(line, width)).collect();
    lines.join("\n")
}

fn headline(seconds: f64, paint: Paint) -> String {
    let title = paint.bold("ctrlmesh demo");
    format!("{title} {seconds:5.1} s   200 widgets, two replicas of one controller")
}

/// The steps around the last one that has begun. What came before them is told in one line.
fn step_lines(steps: &[Step], paint: Paint) -> Vec<String> {
    let begun = steps.iter().rposition(|step| step.state != StepState::Waiting);
    let end = (begun.unwrap_or(0) + 2).max(STEP_LINES).min(steps.len());
    let folded = match end.saturating_sub(STEP_LINES) {
        0 => 0,
        hidden => hidden + 1,
    };
    let mut lines = Vec::new();
    if let Some(past) = steps.get(..folded).filter(|past| !past.is_empty()) {
        let is_good = past.iter().all(|step| step.state == StepState::Done);
        let (sign, colour) = if is_good {
            ("✔", Colour::Green)
        } else {
            ("✘", Colour::Red)
        };
        let titles: Vec<_> = past.iter().map(|step| step.title).collect();
        let titles = paint.colour(Colour::Dim, &titles.join(", "));
        lines.push(format!("1–{folded} {} {titles}", paint.colour(colour, sign)));
    }
    let shown = steps.iter().enumerate().take(end).skip(folded);
    lines.extend(shown.map(|(at, step)| step_line(at + 1, step, paint)));
    lines
}

/// One step: number, sign, title, detail.
fn step_line(number: usize, step: &Step, paint: Paint) -> String {
    let (sign, colour) = match step.state {
        StepState::Waiting => ("·", Colour::Dim),
        StepState::Running => ("▶", Colour::Yellow),
        StepState::Done => ("✔", Colour::Green),
        StepState::Failed => ("✘", Colour::Red),
    };
    let sign = paint.colour(colour, sign);
    match step.state {
        StepState::Waiting => format!("{number} {sign} {}", paint.colour(Colour::Dim, step.title)),
        _ => format!("{number} {sign} {:<TITLE$} {}", step.title, step.detail),
    }
}

const fn mark(replica: Replica) -> (&'static str, Colour) {
    match replica {
        Replica::Zero => ("■", Colour::Cyan),
        Replica::One => ("○", Colour::Magenta),
    }
}

fn legend(paint: Paint) -> String {
    let [zero, one] = Replica::BOTH.map(|replica| {
        let (sign, colour) = mark(replica);
        format!("{} {}", paint.colour(colour, sign), replica.name())
    });
    let head = paint.colour(Colour::Dim, &format!("{:<NAME$} hash", "namespace"));
    format!("{head}   handled last by   {zero}   {one}   · nobody")
}

fn namespace_line(facts: &Facts, namespace: &str, paint: Paint) -> String {
    let state = facts.ledger.namespace(namespace);
    let mut row = String::new();
    // Neighbours of one colour are painted together: a picture is redrawn many times a second.
    for group in state.handled_by.chunk_by(|a, b| a == b) {
        let (sign, colour) = group.first().copied().flatten().map_or(("·", Colour::Dim), mark);
        row.push_str(&paint.colour(colour, &sign.repeat(group.len())));
    }
    let behind = match state.behind {
        0 => String::new(),
        behind => paint.colour(Colour::Dim, &format!("   {behind} to do")),
    };
    format!("{namespace:<NAME$} {:>4}   {row}{behind}", shard_hash(namespace))
}

/// A line with a cell for each replica.
fn cells(width: usize, paint: Paint, name: &str, cell: impl Fn(Replica) -> String) -> String {
    let column = (width.saturating_sub(NAME + 2) / 2).clamp(COLUMN, WIDE_COLUMN);
    let [zero, one] = Replica::BOTH.map(cell);
    format!("{name:<NAME$} {} {one}", paint.pad(&zero, column))
}

fn replica_lines(facts: &Facts, paint: Paint, width: usize) -> Vec<String> {
    let head = cells(width, paint, "", |replica| {
        let (_, colour) = mark(replica);
        paint.colour(colour, replica.name())
    });
    let mut lines = vec![
        head,
        cells(width, paint, "controller", |replica| {
            let controller = facts.controllers.of(replica);
            let failed = failed(controller.failures, paint);
            format!("{} reconciles, {failed}", controller.reconciles)
        }),
        cells(width, paint, "sidecar", |replica| {
            let sidecar = facts.sidecars.of(replica);
            let (generation, failed) = (sidecar.status.chain.generation, failed(sidecar.failures, paint));
            format!("chain {generation}, {} calls, {failed}", sidecar.requests)
        }),
        cells(width, paint, "shard-selector", |replica| {
            entry(facts, replica, shard_entry(replica), paint)
        }),
        match facts.added {
            Some(name) => {
                let plugin = name.split_once('/').map_or(name, |(plugin, _)| plugin);
                cells(width, paint, plugin, |replica| {
                    added::text(facts.sidecars.of(replica), name, paint)
                })
            }
            None => cells(width, paint, "marker", |replica| {
                entry(facts, replica, marker_entry(replica), paint)
            }),
        },
        status_line(facts, paint, width),
        format!("{:<NAME$} {}", "kubectl", facts.command),
    ];
    let (updates, behind) = (facts.updates, facts.ledger.behind());
    lines.push(format!(
        "{:<NAME$} {updates} changes of widgets by a user, {behind} not handled yet",
        "load"
    ));
    lines
}

/// What the manager says of the objects that the act is about.
fn status_line(facts: &Facts, paint: Paint, width: usize) -> String {
    let told = |kind: &str, name: &str| {
        let known = facts.objects.get(kind, name);
        known.map_or_else(|| "–".to_owned(), Progress::text)
    };
    match facts.added {
        Some(entry) => {
            let kind = if entry == FAULT_INJECT_ENTRY {
                "FaultInjection"
            } else {
                "CircuitBreaker"
            };
            format!("{:<NAME$} {kind}/widgets {}", "status", told(kind, "widgets"))
        }
        None => cells(width, paint, "status", |replica| {
            let name = shard_name(replica);
            format!("{name} {}", told("ShardingConfig", name))
        }),
    }
}

fn failed(failures: u64, paint: Paint) -> String {
    let text = format!("{failures} failed");
    if failures == 0 {
        text
    } else {
        paint.colour(Colour::Red, &text)
    }
}

fn entry(facts: &Facts, replica: Replica, name: &str, paint: Paint) -> String {
    let entries = &facts.sidecars.of(replica).status.chain.entries;
    entries
        .iter()
        .find(|entry| entry.name == name)
        .map_or_else(|| "–".to_owned(), |entry| entry_state(entry, paint))
}

fn entry_state(entry: &EntryStatus, paint: Paint) -> String {
    let digest: String = entry.plugin.hex().chars().take(DIGITS).collect();
    let (state, colour) = match entry.state {
        EntryState::Active => ("active", Colour::Green),
        EntryState::Failed => ("failing", Colour::Yellow),
        EntryState::Quarantined => ("quarantined", Colour::Red),
    };
    let state = paint.colour(colour, state);
    match entry.faults {
        0 => format!("{digest} {state}"),
        faults => format!("{digest} {state}, {faults} faults"),
    }
}

#[cfg(test)]
mod tests;
