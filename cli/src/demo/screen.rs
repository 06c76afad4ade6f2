//! Where the story is shown: a picture that is redrawn on a terminal, lines elsewhere, nothing for JSON.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::facts::Shared;
use super::stage::Stage;
use super::view::{self, Room};
use crate::args::Output;
use crate::paint::Paint;
use crate::print;

/// How often the picture is redrawn.
const REDRAW_EVERY: Duration = Duration::from_millis(120);

/// Commands begin below what is said, which comes after the time.
const INDENT: usize = 12;

/// Size of a terminal that does not tell.
const WIDTH: u16 = 80;
const HEIGHT: u16 = 24;

/// Where the story is shown.
#[derive(Debug)]
pub(crate) enum Screen {
    /// A terminal.
    Live {
        /// Its message is the picture.
        picture: ProgressBar,
        /// With or without colours.
        paint: Paint,
    },
    /// A pipe or a file: a line for each thing that happens.
    Lines,
    /// Only the result counts.
    Silent,
}

impl Screen {
    /// The screen for this kind of output.
    pub(crate) fn new(output: Output) -> Self {
        match output {
            Output::Json => Self::Silent,
            Output::Text if !io::stdout().is_terminal() => Self::Lines,
            Output::Text => {
                let picture = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
                picture.set_style(
                    ProgressStyle::default_spinner()
                        .template("{msg}")
                        .unwrap_or_else(|_| ProgressStyle::default_bar()),
                );
                Self::Live {
                    picture,
                    paint: paint(),
                }
            }
        }
    }

    /// Tells what there will be. On a terminal the picture shows it.
    pub(crate) fn list(&self, stage: &Stage) {
        if let Self::Lines = self {
            for (at, step) in stage.steps().iter().enumerate() {
                print::line(&format!("{:INDENT$}{:>2}  {}", "", at + 1, step.title));
            }
        }
    }

    /// Tells that something happened. On a terminal the picture shows it.
    pub(crate) fn say(&self, stage: &Stage, text: &str) {
        if let Self::Lines = self {
            print::line(&format!("{:5.1} s  {text}", stage.seconds()));
        }
    }

    /// Shows a command as a person would type it, and what it reads. On a terminal the picture shows the command.
    pub(crate) fn show(&self, command: &str, input: &[&str]) {
        if let Self::Lines = self {
            print::line(&format!("{:INDENT$}$ {command}", ""));
            for line in input {
                print::line(&format!("{:INDENT$}  {line}", ""));
            }
        }
    }

    /// Redraws the picture until dropped.
    pub(crate) async fn follow(&self, facts: &Shared, stage: &Stage) {
        let mut tick = tokio::time::interval(REDRAW_EVERY);
        loop {
            tick.tick().await;
            self.draw(facts, stage);
        }
    }

    /// Draws the picture once.
    pub(crate) fn draw(&self, facts: &Shared, stage: &Stage) {
        if let Self::Live { picture, paint } = self {
            let (steps, seconds) = (stage.steps(), stage.seconds());
            picture.set_message(facts.with(|facts| view::picture(facts, &steps, seconds, *paint, room())));
            picture.tick();
        }
    }

    /// Leaves the last picture where it is; what comes next is written below.
    pub(crate) fn leave(&self) {
        if let Self::Live { picture, .. } = self {
            picture.abandon();
            print::line("");
        }
    }

    /// How to paint what is written below the picture.
    pub(crate) fn paint(&self) -> Paint {
        match self {
            Self::Live { paint, .. } => *paint,
            Self::Lines | Self::Silent => Paint::Plain,
        }
    }
}

fn paint() -> Paint {
    // <https://no-color.org>
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_unwanted { Paint::Plain } else { Paint::Coloured }
}

fn room() -> Room {
    let (width, height) = terminal_size::terminal_size().map_or((WIDTH, HEIGHT), |(width, height)| (width.0, height.0));
    Room {
        width: usize::from(width),
        height: usize::from(height),
    }
}
