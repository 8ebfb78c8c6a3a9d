//! Where a training runs.

use crate::{memory::Probe, report::Card};
use std::sync::Arc;

/// A device, and how to ask it about memory.
pub struct Place<D> {
    /// The device.
    pub device: D,
    /// Its memory.
    pub probe: Probe,
    /// What it is.
    pub card: Card,
    /// Has what waits in the device's queues begun.
    pub nudge: Nudge,
}

impl<D> Place<D> {
    /// A device without queues.
    pub fn new(device: D, probe: Probe, card: Card) -> Self {
        Self {
            device,
            probe,
            card,
            nudge: Arc::new(|| ()),
        }
    }
}

/// Has what waits in a device's queues begun, whichever thread put it there.
pub type Nudge = Arc<dyn Fn() + Send + Sync>;
