//! What the person at the terminal sees.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// A progress bar on a terminal, a few lines elsewhere, nothing when quiet.
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    /// Steps between two lines where there is no bar.
    stride: usize,
}

impl Progress {
    /// Progress over `steps`, of which `done` are done.
    pub fn new(steps: usize, done: usize, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(steps as u64)
        };
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}<{eta} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(done as u64);
        bar.reset_eta();
        Self {
            bar,
            lines: !quiet && !terminal,
            stride: (steps / 10).max(1),
        }
    }

    /// One more step is done.
    pub fn step(&self, step: usize, message: impl FnOnce() -> String) {
        if self.lines && step.is_multiple_of(self.stride) {
            eprintln!("step {step}: {}", message());
        } else if !self.bar.is_hidden() {
            self.bar.set_message(message());
        }
        self.bar.set_position(step as u64);
    }

    /// A line that stays.
    pub fn note(&self, line: &str) {
        if self.lines {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// The end.
    pub fn finish(&self) {
        self.bar.finish();
    }
}
