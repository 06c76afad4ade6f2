//! Output of the demo: a picture that is redrawn on a terminal, lines elsewhere, nothing for JSON.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ctrlmesh_logging::wants_colour;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::observations::SharedObservations;
use super::picture::{self, TerminalSize};
use super::progress::Progress;
use crate::args::Output;
use crate::paint::Paint;
use crate::print;

const REDRAW_EVERY: Duration = Duration::from_millis(120);

/// Indent of commands, below the text that follows the time.
const INDENT: usize = 12;

/// Size of a terminal that does not report it.
const WIDTH: u16 = 80;
const HEIGHT: u16 = 24;

#[derive(Debug)]
pub(crate) enum Screen {
    Live {
        /// The message of this progress bar is the picture.
        picture: ProgressBar,
        /// With or without colours.
        paint: Paint,
    },
    /// A pipe or a file: one line per event.
    Lines,
    /// JSON: only the result is printed.
    Silent,
}

impl Screen {
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
                    paint: detect_paint(),
                }
            }
        }
    }

    /// Prints the titles of the steps. On a terminal, the picture shows them.
    pub(crate) fn print_steps(&self, progress: &Progress) {
        if let Self::Lines = self {
            for (at, step) in progress.steps().iter().enumerate() {
                print::line(&format!("{:INDENT$}{:>2}  {}", "", at + 1, step.title));
            }
        }
    }

    /// Prints an event. On a terminal, the picture shows it.
    pub(crate) fn print_event(&self, progress: &Progress, text: &str) {
        if let Self::Lines = self {
            print::line(&format!("{:5.1} s  {text}", progress.elapsed_seconds()));
        }
    }

    /// Prints a command as a user would type it, with its input. On a terminal, the picture shows the command.
    pub(crate) fn print_command(&self, command: &str, input: &[&str]) {
        if let Self::Lines = self {
            print::line(&format!("{:INDENT$}$ {command}", ""));
            for line in input {
                print::line(&format!("{:INDENT$}  {line}", ""));
            }
        }
    }

    pub(crate) async fn redraw_until_dropped(&self, observations: &SharedObservations, progress: &Progress) {
        let mut tick = tokio::time::interval(REDRAW_EVERY);
        loop {
            tick.tick().await;
            self.draw_picture(observations, progress);
        }
    }

    pub(crate) fn draw_picture(&self, observations: &SharedObservations, progress: &Progress) {
        if let Self::Live { picture, paint } = self {
            let (steps, seconds) = (progress.steps(), progress.elapsed_seconds());
            picture.set_message(observations.with_observations(|observations| {
                picture::render_picture(observations, &steps, seconds, *paint, detect_size())
            }));
            picture.tick();
        }
    }

    /// Keeps the last picture on the screen; later output goes below it.
    pub(crate) fn leave_picture(&self) {
        if let Self::Live { picture, .. } = self {
            picture.abandon();
            print::line("");
        }
    }

    /// Colours for output below the picture.
    pub(crate) fn paint(&self) -> Paint {
        match self {
            Self::Live { paint, .. } => *paint,
            Self::Lines | Self::Silent => Paint::Plain,
        }
    }
}

fn detect_paint() -> Paint {
    // The picture is for terminals only.
    if wants_colour(true, std::env::var_os("NO_COLOR").as_deref()) {
        Paint::Coloured
    } else {
        Paint::Plain
    }
}

fn detect_size() -> TerminalSize {
    let (width, height) = terminal_size::terminal_size().map_or((WIDTH, HEIGHT), |(width, height)| (width.0, height.0));
    TerminalSize {
        width: usize::from(width),
        height: usize::from(height),
    }
}
