//! What the device's allocator and the compression say of memory, without knowing either.

use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
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

/// Bytes of the tensors that a compression manages, by the form that they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forms {
    /// Packed tensors, what they spilled included.
    pub packed: u64,
    /// What is held for spill whose size the host has not read yet.
    pub reserve: u64,
    /// Dense tensors in the hot window.
    pub window: u64,
    /// Tensors that stay dense.
    pub kept_dense: u64,
}

/// How the training loop asks about memory.
pub struct Probe {
    /// The allocator's figures for the training thread, from whatever thread asks; `None` where there is no such
    /// allocator, as on a CPU.
    pub usage: Reading<Usage>,
    /// The forms of the compressed tensors, from whatever thread asks and without waiting for the device; `None` where
    /// nothing is compressed.
    pub forms: Reading<Forms>,
    /// The report of the compression, where there is one.
    pub compression: Compression,
    /// A few words on memory while the training runs, where the allocator has none.
    pub words: Box<dyn Fn() -> Option<String> + Send>,
}

/// Asks an allocator or a compression.
pub type Reading<T> = Arc<dyn Fn() -> Option<T> + Send + Sync>;

/// Asks for a report of what compression saved, for people and for the record; `None` where nothing is compressed.
pub type Compression = Box<dyn Fn() -> Option<(String, serde_json::Value)> + Send>;

impl Probe {
    /// A probe for a backend that reports nothing.
    pub fn none() -> Self {
        Self {
            usage: Arc::new(|| None),
            forms: Arc::new(|| None),
            words: Box::new(|| None),
            compression: Box::new(|| None),
        }
    }

    /// A probe that reads the same figures, and reports nothing.
    pub fn readings(&self) -> Self {
        Self {
            usage: self.usage.clone(),
            forms: self.forms.clone(),
            ..Self::none()
        }
    }
}

/// The memory at one moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Milliseconds from the step's start.
    pub ms: f64,
    /// The allocator's figures, where there is an allocator.
    #[serde(flatten)]
    pub usage: Option<Usage>,
    /// The forms of the compressed tensors, where there are some.
    #[serde(flatten)]
    pub forms: Option<Forms>,
}

/// The memory within one step. Each pass ends when the device has done it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The number of the step, from 1.
    pub step: usize,
    /// Milliseconds from the step's start to the end of the forward pass.
    pub forward_end_ms: f64,
    /// The same to the end of the backward pass.
    pub backward_end_ms: f64,
    /// The same to the end of the optimizer's step.
    pub step_end_ms: f64,
    /// The readings in their order.
    pub moments: Vec<Moment>,
}

/// The most moments that are kept of a step. A slow step's are thinned out, so that its report stays small.
const MOST: usize = 4096;

/// Reads the allocator every tenth of a millisecond from a thread of its own, as the peak lies somewhere within a step.
///
/// Only steps that are watched anyway are: asking takes time of the thread that drives the device.
pub struct Watch {
    start: Instant,
    done: Sender<()>,
    thread: JoinHandle<Record>,
}

/// What a watch has read.
#[derive(Default)]
struct Record {
    peak: Option<Usage>,
    moments: Vec<Moment>,
    /// Readings so far.
    readings: usize,
    /// Every so many readings are kept, as a power of two.
    thinning: u32,
}

impl Record {
    fn keep(&mut self, moment: Moment) {
        if self.readings.is_multiple_of(1 << self.thinning) {
            self.moments.push(moment);
        }
        self.readings += 1;
        if self.moments.len() == MOST {
            self.moments = self.moments.iter().copied().step_by(2).collect();
            self.thinning += 1;
        }
    }
}

impl Watch {
    /// Starts to read; with `keep`, keeps what each moment showed.
    pub fn start(probe: &Probe, keep: bool) -> Self {
        let (done, ended) = mpsc::channel();
        let start = Instant::now();
        let mut record = Record::default();
        let (usage, forms) = (probe.usage.clone(), probe.forms.clone());
        let read = move |record: &mut Record| {
            let usage = usage();
            raise(&mut record.peak, usage);
            if keep {
                // After the allocator, which answers late when its thread is busy.
                let (ms, forms) = (since(start), forms());
                record.keep(Moment { ms, usage, forms });
            }
        };
        // Here, as the thread may start late.
        read(&mut record);
        let thread = thread::spawn(move || {
            let pause = Duration::from_micros(100);
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                read(&mut record);
            }
            record
        });
        Self {
            start,
            done,
            thread,
        }
    }

    /// Milliseconds since the start.
    pub fn ms(&self) -> f64 {
        since(self.start)
    }

    /// Ends, with the largest figures that were read and the moments that were kept.
    pub fn end(self) -> (Option<Usage>, Vec<Moment>) {
        drop(self.done);
        // A reading that panics is a reading that says nothing.
        let record = self.thread.join().unwrap_or_default();
        (record.peak, record.moments)
    }
}

fn since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
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
