//! Compares the picture with the one on file, and checks what must hold for every picture.

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::status::Status;
use ctrlmesh_manager_api::API_VERSION;
use serde_json::json;

use super::*;
use crate::demo::progress::TITLES;
use crate::demo::report::Report;
use crate::demo::widget::{Widget, WidgetKey, WidgetSpec, WidgetStatus, api_resource};

const PICTURE: &str = include_str!("picture.txt");

fn test_widget(key: &WidgetKey, handled_by: Option<Replica>, generation: i64) -> Widget {
    let mut widget = Widget::new(&key.name, &api_resource(), WidgetSpec { size: 1 }).within(&key.namespace);
    widget.metadata.generation = Some(generation);
    widget.status = handled_by.map(|replica| WidgetStatus {
        handled_by: replica.name().to_owned(),
        observed_generation: 1,
    });
    widget
}

fn test_entry(name: &str, state: EntryState, faults: u64) -> EntryStatus {
    let plugin = Digest::of(name.as_bytes());
    EntryStatus {
        name: name.to_owned(),
        plugin,
        settings_hash: String::new(),
        state,
        faults,
        error: None,
        until: None,
        reports: Default::default(),
        reuse: None,
    }
}

/// A move in progress: fraud is being taken over, one change is not handled, and replica 1's marker is quarantined.
fn test_observations() -> Observations {
    let mut observations = Observations::default();
    for key in WidgetKey::all_keys() {
        let replica = match key.namespace.as_str() {
            "orders" | "payouts" => Some(Replica::One),
            "fraud" if key.name.as_str() < "widget-10" => Some(Replica::One),
            "identity" if key.name.as_str() > "widget-20" => None,
            _ => Some(Replica::Zero),
        };
        let generation = if key.name == "widget-07" && key.namespace == "billing" {
            2
        } else {
            1
        };
        observations.audit.record_write(&test_widget(&key, replica, generation));
    }
    for (replica, state, faults) in [
        (Replica::Zero, EntryState::Active, 0),
        (Replica::One, EntryState::Quarantined, 6),
    ] {
        let (namespace, name) = ("fraud".to_owned(), "widget-00".to_owned());
        observations.record_report(
            replica,
            Report::Reconciled {
                namespace,
                name,
                wrote: true,
                began: 1,
                ended: 2,
            },
        );
        let sidecar = observations.sidecars.get_mut(replica);
        sidecar.requests = 1234;
        sidecar.status = Status::default();
        sidecar.status.chain.generation = 4;
        sidecar.status.chain.entries = vec![
            test_entry(marker_entry(replica), state, faults),
            test_entry(shard_entry(replica), EntryState::Active, 0),
        ];
    }
    observations.record_report(
        Replica::One,
        Report::RequestFailed {
            message: "500".to_owned(),
        },
    );
    show_conditions(&mut observations);
    observations.updates = 321;
    observations.command = "apply ShardingConfig/widgets-0".to_owned();
    observations
}

/// One shard is enforced, the other waits.
fn show_conditions(observations: &mut Observations) {
    let enforced = ("Enforced", "True", "Enforced", "1/1");
    let waits = (
        "Distributed",
        "False",
        "HandingOver",
        "gets its objects when others have given them up",
    );
    for (replica, (kind, status, reason, message)) in [(Replica::Zero, enforced), (Replica::One, waits)] {
        let condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2,
        });
        let object = json!({
            "apiVersion": API_VERSION, "kind": "ShardingConfig",
            "metadata": { "name": shard_name(replica), "generation": 2 },
            "status": { "conditions": [condition] },
        });
        observations
            .objects
            .record_object(&serde_json::from_value(object).unwrap());
    }
}

fn test_steps() -> Vec<Step> {
    let step = |title, state, detail: &str| Step {
        title,
        state,
        detail: detail.to_owned(),
        ..Step::default()
    };
    let mut steps = vec![
        step(
            "no rules",
            StepState::Done,
            "200 of 200 widgets handled by both replicas",
        ),
        step("shard by namespace", StepState::Failed, "handled by both: 3"),
        step("move two namespaces", StepState::Running, "replica-0 lets go"),
    ];
    steps.extend(TITLES[3..].iter().map(|title| step(title, StepState::Waiting, "")));
    steps
}

/// The smallest terminal in use.
const SMALL: TerminalSize = TerminalSize { width: 80, height: 24 };
const LARGE: TerminalSize = TerminalSize { width: 100, height: 50 };

#[test]
fn picture_matches_file() {
    let picture = render_picture(&test_observations(), &test_steps(), 7.26, Paint::Plain, SMALL);
    assert_eq!(picture, PICTURE.trim_end(), "the picture is now:\n{picture}\n");
}

/// All steps; those up to `begun` have begun.
fn all_steps(begun: usize) -> Vec<Step> {
    let state = |at: usize| match at.cmp(&begun) {
        std::cmp::Ordering::Less => StepState::Done,
        std::cmp::Ordering::Equal => StepState::Running,
        std::cmp::Ordering::Greater => StepState::Waiting,
    };
    let step = |at| Step {
        title: TITLES[at - 1],
        state: state(at),
        ..Step::default()
    };
    (1..=TITLES.len()).map(step).collect()
}

#[test]
fn all_steps_are_on_screen_from_the_start() {
    for begun in 0..=TITLES.len() + 1 {
        for room in [SMALL, LARGE] {
            let picture = render_picture(&test_observations(), &all_steps(begun), 7.26, Paint::Plain, room);
            for (at, title) in TITLES.iter().enumerate() {
                let sign = match (at + 1).cmp(&begun) {
                    std::cmp::Ordering::Less => "✔",
                    std::cmp::Ordering::Equal => "▶",
                    std::cmp::Ordering::Greater => "·",
                };
                let cell = format!("{} {sign} {title}", at + 1);
                assert!(picture.contains(&cell), "{begun}: {cell} is missing in\n{picture}");
            }
        }
    }
}

#[test]
fn long_lines_wrap_and_are_never_cut() {
    let long = "the API server ends its watches, as it does every few minutes; the next ones expire, and the controllers list again";
    let mut steps = test_steps();
    steps[2].detail = long.to_owned();
    let mut observations = test_observations();
    observations.command =
        "apply ShardingConfig/widgets-0 ShardingConfig/widgets-1 CircuitBreaker/widgets-with-a-long-name".to_owned();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for (width, height) in [(80, 24), (80, 50), (120, 50), (60, 24), (100, 40)] {
        let picture = render_picture(
            &observations,
            &steps,
            7.26,
            Paint::Plain,
            TerminalSize { width, height },
        );
        let shown = words(&picture);
        let all_words = words(long);
        let begin = shown.windows(3).position(|window| window == &all_words[..3]).unwrap();
        // Beside the detail there may be words of other columns, but only on other lines.
        let kept: Vec<_> = shown[begin..]
            .iter()
            .filter(|word| all_words.contains(word))
            .cloned()
            .collect();
        assert!(kept.starts_with(&all_words), "{width}×{height}:\n{picture}");
        assert!(picture.lines().all(|line| line.chars().count() <= width), "{picture}");
    }
    let picture = render_picture(&observations, &steps, 7.26, Paint::Plain, SMALL);
    assert!(picture.lines().count() <= 24, "{picture}");
}

#[test]
fn picture_fits_into_24_lines_of_80_characters() {
    assert!(PICTURE.lines().count() <= 24);
    assert!(PICTURE.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [40, 60, 79] {
        let picture = render_picture(
            &test_observations(),
            &test_steps(),
            7.26,
            Paint::Plain,
            TerminalSize { width, height: 24 },
        );
        assert!(picture.lines().all(|line| line.chars().count() <= width), "{picture}");
    }
}

#[test]
fn colours_do_not_change_text() {
    let coloured = render_picture(&test_observations(), &test_steps(), 7.26, Paint::Coloured, SMALL);
    let mut plain = String::new();
    for (at, part) in coloured.split('\x1b').enumerate() {
        plain.push_str(if at == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(plain, PICTURE.trim_end());
}
