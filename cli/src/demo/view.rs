//! Draws the picture: the steps, every widget under the replica that handled it last, and what the controllers and sidecars say of
//! themselves. Pure: facts in, text out.

mod added;

use ctrlmesh_contract::status::{EntryState, EntryStatus};
use ctrlmesh_manager_planner::shard_hash;

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
/// Columns of steps where there is no room for a line each.
const STEP_COLUMNS: usize = 2;
/// Digits of a digest that are shown.
const DIGITS: usize = 8;

/// What a terminal has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// The whole picture, lines separated by newlines. No line is longer than the terminal is wide: what does not fit goes on in the next one.
/// All steps are there from the start: with what came of each if there is room, else side by side, in at most 24 lines of 80 characters.
pub(crate) fn picture(facts: &Facts, steps: &[Step], seconds: f64, paint: Paint, room: Room) -> String {
    let wrapped = |lines: Vec<String>| -> Vec<String> {
        let wrap = |line: String| paint.wrap(&line, room.width);
        lines.into_iter().flat_map(wrap).collect()
    };
    let mut head = wrapped(vec![headline(facts, seconds, paint)]);
    let mut widgets = wrapped(widget_lines(facts, paint));
    let mut replicas = wrapped(replica_lines(facts, paint, room.width));
    let mut detailed = detailed_steps(steps, paint, room.width);
    let rest = head.len() + widgets.len() + replicas.len();
    if rest + detailed.len() + 2 <= room.height {
        detailed.push(String::new());
        widgets.push(String::new());
    } else {
        detailed = brief_steps(steps, paint, room.width);
    }
    head.append(&mut detailed);
    head.append(&mut widgets);
    if head.len() + replicas.len() > room.height {
        // What was typed last can be missed.
        replicas.pop();
    }
    head.append(&mut replicas);
    head.join("\n")
}

fn headline(facts: &Facts, seconds: f64, paint: Paint) -> String {
    let title = paint.bold("ctrlmesh demo");
    let (updates, behind) = (facts.updates, facts.ledger.behind());
    format!("{title} {seconds:5.1} s   200 widgets, {updates} changes by a user, {behind} not handled yet")
}

const fn sign(state: StepState) -> (&'static str, Colour) {
    match state {
        StepState::Waiting => ("·", Colour::Dim),
        StepState::Running => ("▶", Colour::Yellow),
        StepState::Done => ("✔", Colour::Green),
        StepState::Failed => ("✘", Colour::Red),
        StepState::Inconclusive => ("?", Colour::Yellow),
    }
}

/// Number, sign and title.
fn step_cell(number: usize, step: &Step, paint: Paint) -> String {
    let (sign, colour) = sign(step.state);
    let title = match step.state {
        StepState::Waiting => paint.colour(Colour::Dim, step.title),
        _ => step.title.to_owned(),
    };
    format!("{number:>2} {} {title}", paint.colour(colour, sign))
}

/// Each step with what happens in it, or came of it.
fn detailed_steps(steps: &[Step], paint: Paint, width: usize) -> Vec<String> {
    /// Number, sign, and the blanks behind them.
    const BEFORE: usize = 5;
    let indent = BEFORE + TITLE + 1;
    let mut lines = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let cell = step_cell(at + 1, step, paint);
        let mut details = Paint::Plain
            .wrap(&step.detail, width.saturating_sub(indent).max(TITLE))
            .into_iter();
        let first = details.next().unwrap_or_default();
        let first = format!("{} {first}", paint.pad(&cell, indent - 1));
        lines.extend(paint.wrap(first.trim_end(), width));
        lines.extend(details.flat_map(|detail| paint.wrap(&format!("{:indent$}{detail}", ""), width)));
    }
    lines
}

/// The steps side by side, and what happens in the last one that has begun.
fn brief_steps(steps: &[Step], paint: Paint, width: usize) -> Vec<String> {
    let rows = steps.len().div_ceil(STEP_COLUMNS);
    let cell = |at: usize| {
        steps
            .get(at)
            .map(|step| step_cell(at + 1, step, paint))
            .unwrap_or_default()
    };
    let row = |row: usize| {
        let left = paint.pad(&cell(row), width / STEP_COLUMNS);
        paint.wrap(format!("{left}{}", cell(row + rows)).trim_end(), width)
    };
    let mut lines: Vec<String> = (0..rows).flat_map(row).collect();
    let begun = steps.iter().rfind(|step| step.state != StepState::Waiting);
    lines.extend(Paint::Plain.wrap(begun.map_or("", |step| step.detail.as_str()), width));
    lines
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

fn widget_lines(facts: &Facts, paint: Paint) -> Vec<String> {
    let namespaces = NAMESPACES
        .iter()
        .map(|namespace| namespace_line(facts, namespace, paint));
    std::iter::once(legend(paint)).chain(namespaces).collect()
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
    vec![
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
    ]
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
