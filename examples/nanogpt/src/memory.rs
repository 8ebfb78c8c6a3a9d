//! What the device's allocator says, without knowing the device.

use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The allocator's figures for the calling thread's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that living tensors hold.
    pub in_use: u64,
    /// Bytes that the allocator has taken from the device.
    pub reserved: u64,
    /// Bytes of the device that are taken as its driver sees it, the program's context and kernels among them.
    #[serde(default)]
    pub process: u64,
}

/// How the training loop asks about memory.
pub struct Probe {
    /// The allocator's figures for the training thread, from whatever thread asks; `None` where there is no such
    /// allocator, as on a CPU.
    pub usage: Reading,
    /// The report of the compression, where there is one.
    pub compression: Compression,
    /// A few words on memory while the training runs, where the allocator has none.
    pub words: Box<dyn Fn() -> Option<String>>,
}

/// Asks an allocator.
pub type Reading = Arc<dyn Fn() -> Option<Usage> + Send + Sync>;

/// Asks for a report of what compression saved, for people and for the record; `None` where nothing is compressed.
pub type Compression = Box<dyn Fn() -> Option<(String, serde_json::Value)>>;

impl Probe {
    /// A probe for a backend that reports nothing.
    pub fn none() -> Self {
        Self {
            usage: Arc::new(|| None),
            words: Box::new(|| None),
            compression: Box::new(|| None),
        }
    }
}

/// Reads the allocator every half millisecond from a thread of its own, as the peak lies somewhere within a step.
///
/// Only steps that are watched anyway are: asking takes time of the thread that drives the device.
pub struct Watch {
    done: Sender<()>,
    thread: JoinHandle<Option<Usage>>,
}

impl Watch {
    /// Starts to read.
    pub fn start(usage: Reading) -> Self {
        let (done, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut peak = None;
            loop {
                raise(&mut peak, usage());
                match ended.recv_timeout(Duration::from_micros(500)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return peak,
                }
            }
        });
        Self { done, thread }
    }

    /// Ends, with the largest figures that were read.
    pub fn end(self) -> Option<Usage> {
        drop(self.done);
        // A reading that panics is a reading that says nothing.
        self.thread.join().ok().flatten()
    }
}

/// The largest figures seen at each point of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peaks {
    /// After the forward pass, when everything kept for the backward pass is alive.
    pub after_forward: Option<Usage>,
    /// After the backward pass, when the gradients are alive.
    pub after_backward: Option<Usage>,
    /// After the optimizer's step.
    pub after_step: Option<Usage>,
    /// Anywhere within a step.
    pub within_step: Option<Usage>,
}

impl Peaks {
    /// The largest bytes in use of all.
    pub fn in_use(&self) -> Option<u64> {
        self.points().map(|usage| usage.in_use).max()
    }

    /// The largest bytes reserved of all.
    pub fn reserved(&self) -> Option<u64> {
        self.points().map(|usage| usage.reserved).max()
    }

    /// The largest bytes taken as the driver sees it.
    pub fn process(&self) -> Option<u64> {
        self.points().map(|usage| usage.process).max()
    }

    fn points(&self) -> impl Iterator<Item = Usage> {
        [
            self.after_forward,
            self.after_backward,
            self.after_step,
            self.within_step,
        ]
        .into_iter()
        .flatten()
    }
}

/// Raises a peak to a new reading.
pub fn raise(peak: &mut Option<Usage>, reading: Option<Usage>) {
    if let Some(new) = reading {
        let old = peak.unwrap_or_default();
        *peak = Some(Usage {
            in_use: old.in_use.max(new.in_use),
            reserved: old.reserved.max(new.reserved),
            process: old.process.max(new.process),
        });
    }
}

/// Bytes as MiB or GiB for people.
pub fn human(bytes: u64) -> String {
    const MIB: f64 = 1048576.0;
    let mib = bytes as f64 / MIB;
    if mib < 1024.0 {
        format!("{mib:.0} MiB")
    } else {
        format!("{:.2} GiB", mib / 1024.0)
    }
}
