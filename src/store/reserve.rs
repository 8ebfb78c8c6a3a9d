//! Bounds the worst-case spill of encodes whose outcome the host does not know yet.
//!
//! An encode may spill up to a bound that is known beforehand, and rarely spills anything but the first of its size. So the bound is
//! reserved, and given back when the encode's status has been read. Statuses are read in batches: one batch gathers
//! while the device works towards the one before. The host waits only when both are full, which also bounds how
//! far it runs ahead of the device. Whenever the program waits for a result itself, a loss for instance, the statuses come
//! with it: a batch on its way keeps the memory that it is read from.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn_backend::DeviceOps;
use burn_cubecl::CubeRuntime;
use cubecl::{bytes::Bytes, client::ComputeClient, server::ServerError, stream_id::StreamId};
use lct_kernels::launch::Tickets;

use super::cube::Shared;
use super::predict::Predictions;
use crate::per_device;

type Statuses = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, ServerError>> + Send>>;

/// The encodes of one device that wait for their status.
pub(super) struct Reserve<R: CubeRuntime> {
    client: ComputeClient<R>,
    batches: Mutex<Batches<R>>,
    /// Encodes of one stream follow one another, and so may share them.
    tickets: Mutex<HashMap<StreamId, Tickets>>,
    predictions: Mutex<Predictions>,
}

struct Batches<R: CubeRuntime> {
    gathering: Vec<Weak<Shared<R>>>,
    gathering_bytes: u64,
    reading: Option<Reading<R>>,
    /// The first error that came with a status.
    error: Option<String>,
}

/// A batch whose statuses are on their way.
struct Reading<R: CubeRuntime> {
    watched: Vec<Weak<Shared<R>>>,
    bytes: u64,
    statuses: Statuses,
}

impl<R: CubeRuntime> Reserve<R> {
    /// The reserve of a device.
    pub(super) fn of(device: &R::CubeDevice) -> &'static Self {
        per_device::get(device.id(), || Self {
            client: R::client(device),
            batches: Mutex::new(Batches {
                gathering: Vec::new(),
                gathering_bytes: 0,
                reading: None,
                error: None,
            }),
            tickets: Mutex::default(),
            predictions: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Batches<R>> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tickets of this thread's stream.
    pub(super) fn tickets(&self) -> Tickets {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets
            .entry(StreamId::current())
            .or_insert_with(|| Tickets::new(&self.client))
            .clone()
    }

    /// What is known of earlier encodes.
    pub(super) fn predictions(&self) -> MutexGuard<'_, Predictions> {
        (self.predictions.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for `bytes` more of worst-case spill, within `limit` for both batches.
    ///
    /// A single encode that needs more than the limit gets it when no other is outstanding.
    pub(super) fn make_room(&'static self, bytes: u64, limit: u64) {
        let mut batches = self.lock();
        if batches.gathering_bytes + bytes > limit / 2 {
            batches.finish_reading();
            batches.start_reading(&self.client);
            if bytes > limit / 2 {
                batches.finish_reading();
            }
        }
    }

    /// Remembers an encode whose worst case of `bytes` is reserved.
    pub(super) fn watch(&self, packed: &Arc<Shared<R>>, bytes: u64) {
        let mut batches = self.lock();
        batches.gathering.push(Arc::downgrade(packed));
        batches.gathering_bytes += bytes;
    }

    /// The first error of the device that came with a status, once: reading it has taken it from those who wait for results.
    pub(super) fn take_error(&self) -> Option<String> {
        self.lock().error.take()
    }

    /// Asks for the statuses that gathered, if none are on their way.
    pub(super) fn ask(&'static self) {
        let mut batches = self.lock();
        if batches.reading.is_none() {
            batches.start_reading(&self.client);
        }
    }

    /// Takes in the statuses that are on their way.
    pub(super) fn take(&self) {
        self.lock().finish_reading();
    }

    /// Waits for every status.
    pub(super) fn settle_all(&'static self) {
        let mut batches = self.lock();
        batches.finish_reading();
        batches.start_reading(&self.client);
        batches.finish_reading();
    }
}

impl<R: CubeRuntime> Batches<R> {
    /// Asks for the statuses of the batch that gathered, without waiting for them.
    fn start_reading(&mut self, client: &'static ComputeClient<R>) {
        let bytes = std::mem::take(&mut self.gathering_bytes);
        let (watched, handles): (Vec<_>, Vec<_>) = std::mem::take(&mut self.gathering)
            .into_iter()
            .filter_map(|watched| {
                let status = watched.upgrade()?.status()?;
                Some((watched, status))
            })
            .unzip();
        if !watched.is_empty() {
            self.reading = Some(Reading {
                watched,
                bytes,
                statuses: Box::pin(client.read_async(handles)),
            });
        }
    }

    /// Waits for the batch that is being read, and gives back its reserves.
    fn finish_reading(&mut self) {
        let Some(reading) = self.reading.take() else {
            return;
        };
        let Reading {
            watched,
            bytes,
            statuses,
        } = reading;
        let _span = tracing::trace_span!("lct_settle", encodes = watched.len()).entered();
        match cubecl::future::block_on(statuses) {
            Ok(statuses) => {
                for (watched, status) in watched.iter().zip(statuses) {
                    if let Some(shared) = watched.upgrade() {
                        shared.settle(&status);
                    }
                }
            }
            // Reading reports what went wrong on the stream before, perhaps in another kernel, and so takes it from whoever
            // waits for a result next: it is kept for them. The statuses are asked for once more later; until then the
            // reserves stay.
            Err(error) => {
                tracing::error!(%error, encodes = watched.len(), "encode statuses could not be read");
                self.error.get_or_insert_with(|| error.to_string());
                self.gathering.extend(watched);
                self.gathering_bytes += bytes;
            }
        }
    }
}
