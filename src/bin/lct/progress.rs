//! What the person at the terminal sees meanwhile.

use burn_lct::inspect::TensorReport;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar on stderr, over bytes; nothing where stderr is no terminal. It vanishes when dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Progress over so many bytes.
    pub fn new(bytes: u64) -> Self {
        let bar = ProgressBar::new(bytes);
        let style = ProgressStyle::with_template(
            "{bar:30} {bytes}/{total_bytes} {elapsed}<{eta} {wide_msg}",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// One more tensor is done.
    pub fn done(&self, tensor: &TensorReport) {
        self.bar.set_message(tensor.name.clone());
        self.bar.inc(tensor.bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
