//! Draws the picture: the steps, every widget under the replica that handled it last, and what controllers and sidecars report.
//! Pure: observations in, text out.

mod plugin_text;

use ctrlmesh_contract::status::{EntryState, EntryStatus};
use ctrlmesh_manager_planner::shard_hash;

use super::applied_objects::ObjectProgress;
use super::observations::Observations;
use super::plugin_documents::FAULT_INJECT_ENTRY;
use super::progress::{Step, StepState};
use super::replica::Replica;
use super::sharding_plan::{marker_entry, shard_entry, shard_name};
use super::widget::NAMESPACES;
use crate::paint::{Colour, Paint};

/// Width of the names on the left.
const NAME: usize = 14;
/// Width of a replica's column: two fit into a terminal of 80 …
const COLUMN: usize = 32;
/// … and this is more than a wide one needs.
const WIDE_COLUMN: usize = 44;
const TITLE: usize = 25;
/// Columns of steps when there is no room for a line each.
const STEP_COLUMNS: usize = 2;
/// Digits shown of a digest.
const DIGITS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// The whole picture, lines separated by newlines. No line is wider than the terminal: longer ones wrap.
/// All steps are shown from the start: with their results if there is room, else side by side, in at most 24 lines of 80 characters.
pub(crate) fn render_picture(
    observations: &Observations,
    steps: &[Step],
    seconds: f64,
    paint: Paint,
    room: TerminalSize,
) -> String {
    let wrapped = |lines: Vec<String>| -> Vec<String> {
        let wrap = |line: String| paint.wrap(&line, room.width);
        lines.into_iter().flat_map(wrap).collect()
    };
    let mut head = wrapped(vec![render_headline(observations, seconds, paint)]);
    let mut widgets = wrapped(widget_lines(observations, paint));
    let mut replicas = replica_lines(observations, paint, room.width);
    let command = wrapped(replicas.pop().into_iter().collect());
    let mut replicas = wrapped(replicas);
    let mut detailed = detailed_steps(steps, paint, room.width);
    let rest = head.len() + widgets.len() + replicas.len() + command.len();
    if rest + detailed.len() + 2 <= room.height {
        detailed.push(String::new());
        widgets.push(String::new());
    } else {
        detailed = brief_steps(steps, paint, room.width);
    }
    head.append(&mut detailed);
    head.append(&mut widgets);
    head.append(&mut replicas);
    // The last command can be left out.
    if head.len() + command.len() <= room.height {
        head.extend(command);
    }
    head.join("\n")
}

fn render_headline(observations: &Observations, seconds: f64, paint: Paint) -> String {
    let title = paint.bold("ctrlmesh demo");
    let (updates, behind) = (observations.updates, observations.audit.pending_changes());
    format!("{title} {seconds:5.1} s   200 widgets, {updates} changes by a user, {behind} not handled yet")
}

const fn state_symbol(state: StepState) -> (&'static str, Colour) {
    match state {
        StepState::Waiting => ("·", Colour::Dim),
        StepState::Running => ("▶", Colour::Yellow),
        StepState::Done => ("✔", Colour::Green),
        StepState::Failed => ("✘", Colour::Red),
        StepState::Inconclusive => ("?", Colour::Yellow),
    }
}

fn step_cell(number: usize, step: &Step, paint: Paint) -> String {
    let (sign, colour) = state_symbol(step.state);
    let title = match step.state {
        StepState::Waiting => paint.colour(Colour::Dim, step.title),
        _ => step.title.to_owned(),
    };
    format!("{number:>2} {} {title}", paint.colour(colour, sign))
}

/// One line per step, with its event or result.
fn detailed_steps(steps: &[Step], paint: Paint, width: usize) -> Vec<String> {
    /// Number, symbol, and the blanks after them.
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

/// The steps side by side, then the event of the current one.
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

const fn replica_symbol(replica: Replica) -> (&'static str, Colour) {
    match replica {
        Replica::Zero => ("■", Colour::Cyan),
        Replica::One => ("○", Colour::Magenta),
    }
}

fn render_legend(paint: Paint) -> String {
    let [zero, one] = Replica::BOTH.map(|replica| {
        let (sign, colour) = replica_symbol(replica);
        format!("{} {}", paint.colour(colour, sign), replica.name())
    });
    let head = paint.colour(Colour::Dim, &format!("{:<NAME$} hash", "namespace"));
    format!("{head}   handled last by   {zero}   {one}   · nobody")
}

fn widget_lines(observations: &Observations, paint: Paint) -> Vec<String> {
    let namespaces = NAMESPACES
        .iter()
        .map(|namespace| namespace_line(observations, namespace, paint));
    std::iter::once(render_legend(paint)).chain(namespaces).collect()
}

fn namespace_line(observations: &Observations, namespace: &str, paint: Paint) -> String {
    let state = observations.audit.namespace_state(namespace);
    let mut row = String::new();
    // Neighbours of one colour are painted together: a picture is redrawn many times a second.
    for group in state.handled_by.chunk_by(|a, b| a == b) {
        let (sign, colour) = group
            .first()
            .copied()
            .flatten()
            .map_or(("·", Colour::Dim), replica_symbol);
        row.push_str(&paint.colour(colour, &sign.repeat(group.len())));
    }
    let behind = match state.behind {
        0 => String::new(),
        behind => paint.colour(Colour::Dim, &format!("   {behind} to do")),
    };
    format!("{namespace:<NAME$} {:>4}   {row}{behind}", shard_hash(namespace))
}

fn replica_row(width: usize, paint: Paint, name: &str, cell: impl Fn(Replica) -> String) -> String {
    let column = (width.saturating_sub(NAME + 2) / 2).clamp(COLUMN, WIDE_COLUMN);
    let [zero, one] = Replica::BOTH.map(cell);
    format!("{name:<NAME$} {} {one}", paint.pad(&zero, column))
}

fn replica_lines(observations: &Observations, paint: Paint, width: usize) -> Vec<String> {
    let head = replica_row(width, paint, "", |replica| {
        let (_, colour) = replica_symbol(replica);
        paint.colour(colour, replica.name())
    });
    vec![
        head,
        replica_row(width, paint, "controller", |replica| {
            let controller = observations.controllers.get(replica);
            let failed = failure_text(controller.failures, paint);
            format!("{} reconciles, {failed}", controller.reconciles)
        }),
        replica_row(width, paint, "sidecar", |replica| {
            let sidecar = observations.sidecars.get(replica);
            let (generation, failed) = (sidecar.status.chain.generation, failure_text(sidecar.failures, paint));
            format!("chain {generation}, {} calls, {failed}", sidecar.requests)
        }),
        replica_row(width, paint, "shard-selector", |replica| {
            entry_text(observations, replica, shard_entry(replica), paint)
        }),
        match observations.added {
            Some(name) => {
                let plugin = name.split_once('/').map_or(name, |(plugin, _)| plugin);
                replica_row(width, paint, plugin, |replica| {
                    plugin_text::plugin_text(observations.sidecars.get(replica), name, paint)
                })
            }
            None => replica_row(width, paint, "marker", |replica| {
                entry_text(observations, replica, marker_entry(replica), paint)
            }),
        },
        status_line(observations, paint, width),
        format!("{:<NAME$} {}", "kubectl", observations.command),
    ]
}

/// The manager's report about the objects of the current step.
fn status_line(observations: &Observations, paint: Paint, width: usize) -> String {
    let object_state = |kind: &str, name: &str| {
        let known = observations.objects.get(kind, name);
        known.map_or_else(|| "–".to_owned(), ObjectProgress::short_text)
    };
    match observations.added {
        Some(entry) => {
            let kind = if entry == FAULT_INJECT_ENTRY {
                "FaultInjection"
            } else {
                "CircuitBreaker"
            };
            format!("{:<NAME$} {kind}/widgets {}", "status", object_state(kind, "widgets"))
        }
        None => replica_row(width, paint, "status", |replica| {
            let name = shard_name(replica);
            format!("{name} {}", object_state("ShardingConfig", name))
        }),
    }
}

fn failure_text(failures: u64, paint: Paint) -> String {
    let text = format!("{failures} failed");
    if failures == 0 {
        text
    } else {
        paint.colour(Colour::Red, &text)
    }
}

fn entry_text(observations: &Observations, replica: Replica, name: &str, paint: Paint) -> String {
    let entries = &observations.sidecars.get(replica).status.chain.entries;
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
