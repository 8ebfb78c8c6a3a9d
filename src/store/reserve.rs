//! Bounds the worst-case spill of encodes whose outcome the host does not know yet.
//!
//! An encode may spill up to a bound that is known beforehand, and rarely spills anything but the first of its size. So the bound is
//! reserved, and given back when the encode's status has been read. Statuses are read in batches: one batch gathers
//! while the device works towards those before. The host waits only when all are full, for the oldest, which also bounds
//! how far it runs ahead of the device. Whenever the program waits for a result itself, a loss for instance, the statuses come
//! with it: a batch on its way keeps the memory that it is read from.
//!
//! No lock is held while the device works, but the one of those who wait for just that.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn_backend::DeviceOps;
use burn_cubecl::CubeRuntime;
use cubecl::{
    bytes::Bytes, client::ComputeClient, future::block_on, server::Handle, stream_id::StreamId,
};
use lct_kernels::launch::Tickets;

use super::PackRequest;
use super::cube::{Shared, buffer, confirm};
use super::pages::aligned;
use super::predict::Predictions;
use super::slab::{Piece, Shelf};
use super::streams;
use crate::lock::lock;
use crate::per_device;

/// What is known where CubeCL's thread panicked.
pub(super) const PANICKED: &str =
    "CubeCL's thread of the device panicked; its words are on the terminal";

/// Batches that share the reserve. With more of them the oldest has more likely been done when it is waited for; asking for
/// one has its price, too.
const BATCHES: u64 = 4;

/// The most streams whose tickets are kept.
const MOST_TICKETS: usize = 256;
/// From so many streams on those are forgotten that have no slab.
const MOST_STREAMS: usize = 256;

type Statuses = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, String>> + Send>>;

/// The encodes of one device that wait for their status.
pub(super) struct Reserve<R: CubeRuntime> {
    client: ComputeClient<R>,
    gathering: Mutex<Gathering<R>>,
    /// Batches whose statuses are on their way, the oldest first.
    reading: Mutex<VecDeque<Reading<R>>>,
    /// The worst case of all encodes whose outcome has not been taken in yet, those that were dropped meanwhile among them.
    outstanding: AtomicU64,
    /// Held by whoever waits for statuses, and wanted by nobody else.
    waiting: Mutex<()>,
    /// The first error that came with a status.
    error: Mutex<Option<String>>,
    /// Encodes of one stream follow one another, and so may share them.
    tickets: Mutex<HashMap<StreamId, Tickets>>,
    predictions: Mutex<Predictions>,
    /// The slabs of each stream.
    shelves: Mutex<HashMap<StreamId, Arc<Shelf>>>,
}

/// A batch whose statuses have not been asked for.
struct Gathering<R: CubeRuntime> {
    watched: Vec<Weak<Shared<R>>>,
    bytes: u64,
}

/// A batch whose statuses are on their way.
struct Reading<R: CubeRuntime> {
    /// The encodes, and how many buffers each has that say how it went.
    watched: Vec<(Weak<Shared<R>>, usize)>,
    /// Their worst case.
    bytes: u64,
    statuses: Statuses,
}

impl<R: CubeRuntime> Default for Gathering<R> {
    fn default() -> Self {
        Self {
            watched: Vec::new(),
            bytes: 0,
        }
    }
}

impl<R: CubeRuntime> Reserve<R> {
    /// The reserve of a device.
    pub(super) fn of(device: &R::CubeDevice) -> &'static Self {
        per_device::get(device.id(), || Self {
            client: R::client(device),
            gathering: Mutex::default(),
            reading: Mutex::default(),
            outstanding: AtomicU64::new(0),
            waiting: Mutex::default(),
            error: Mutex::default(),
            tickets: Mutex::default(),
            predictions: Mutex::default(),
            shelves: Mutex::default(),
        })
    }

    /// Memory of this thread's stream for a packed form of so many bytes, without its spill.
    pub(super) fn blob(
        &self,
        client: &ComputeClient<R>,
        bytes: u64,
        request: &PackRequest,
    ) -> (Handle, Option<Arc<Piece>>) {
        let slab = request.slab_bytes;
        // A slab that was refused would take all with it that is cut out of it.
        let fresh = |bytes| {
            let memory = client.empty(bytes);
            confirm(client, [&memory].into_iter()).ok().map(|()| memory)
        };
        if slab > 0
            && let room = aligned(bytes)
            && let Some((memory, piece)) = self.shelf(slab).cut(room, fresh)
        {
            return (memory.offset_end(room - bytes), Some(piece));
        }
        (buffer(client, bytes), None)
    }

    /// The slabs of this thread's stream, of so many bytes if there is none yet and buffers may have as many.
    fn shelf(&self, slab_bytes: u64) -> Arc<Shelf> {
        let (mut shelves, stream) = (lock(&self.shelves), StreamId::current());
        if shelves.len() >= MOST_STREAMS {
            // Threads come and go, and each has a stream.
            shelves.retain(|_, shelf| Arc::strong_count(shelf) > 1 || !shelf.is_empty());
        }
        let most = self.client.properties().memory.max_page_size;
        let fresh = || Arc::new(Shelf::new(slab_bytes.min(most)));
        shelves.entry(stream).or_insert_with(fresh).clone()
    }

    /// The tickets of this thread's stream.
    pub(super) fn tickets(&self) -> Tickets {
        let (mut tickets, stream) = (lock(&self.tickets), StreamId::current());
        if tickets.len() >= MOST_TICKETS && !tickets.contains_key(&stream) {
            // Threads come and go, and each has a stream. One that is still there gets new tickets.
            tickets.clear();
        }
        let fresh = || Tickets::new(&self.client);
        tickets.entry(stream).or_insert_with(fresh).clone()
    }

    /// What is known of earlier encodes.
    pub(super) fn predictions(&self) -> MutexGuard<'_, Predictions> {
        lock(&self.predictions)
    }

    /// Makes room for `bytes` more of worst-case spill, within `limit` for all batches.
    ///
    /// A single encode that needs more than the limit gets it when no other is outstanding.
    pub(super) fn make_room(&'static self, bytes: u64, limit: u64) {
        if lock(&self.gathering).bytes + bytes > limit / BATCHES {
            self.ask();
        }
        let is_full = || self.outstanding.load(Relaxed) + bytes > limit;
        while is_full() && self.take_oldest(is_full) {}
    }

    /// Remembers an encode whose worst case of `bytes` is reserved.
    pub(super) fn watch(&self, packed: &Arc<Shared<R>>, bytes: u64) {
        let mut gathering = lock(&self.gathering);
        gathering.watched.push(Arc::downgrade(packed));
        gathering.bytes += bytes;
        self.outstanding.fetch_add(bytes, Relaxed);
    }

    /// The worst case of all encodes whose outcome is not known, and the batches that are on their way.
    #[cfg(all(test, feature = "wgpu"))]
    pub(super) fn outstanding(&self) -> (u64, usize) {
        let batches = lock(&self.reading).len();
        (self.outstanding.load(Relaxed), batches)
    }

    /// The first error of the device that came with a status, once: reading it has taken it from those who wait for results.
    pub(super) fn take_error(&self) -> Option<String> {
        lock(&self.error).take()
    }

    /// Keeps an error that was read for those who wait for results, unless there is one already.
    pub(super) fn note(&self, error: String) {
        lock(&self.error).get_or_insert(error);
    }

    /// Asks for the statuses that gathered, without waiting for them.
    pub(super) fn ask(&'static self) {
        let Gathering {
            watched: gathered,
            bytes,
        } = std::mem::take(&mut *lock(&self.gathering));
        let (mut watched, mut handles) = (Vec::new(), Vec::new());
        for encode in gathered {
            if let Some(statuses) = encode.upgrade().and_then(|shared| shared.statuses()) {
                watched.push((encode, statuses.len()));
                handles.extend(statuses);
            }
        }
        if watched.is_empty() {
            self.outstanding.fetch_sub(bytes, Relaxed);
            return;
        }
        let statuses = self.read(handles);
        lock(&self.reading).push_back(Reading {
            watched,
            bytes,
            statuses,
        });
    }

    /// Takes in the statuses that are on their way.
    pub(super) fn take(&'static self) {
        while self.take_oldest(|| true) {}
    }

    /// Takes in the statuses of the oldest batch once it has come, if that is still wanted when others have had theirs.
    /// Returns whether there may be more.
    fn take_oldest(&'static self, wanted: impl Fn() -> bool) -> bool {
        let _waiting = lock(&self.waiting);
        if !wanted() {
            return true;
        }
        // Unlocked before the wait.
        let Some(reading) = lock(&self.reading).pop_front() else {
            return false;
        };
        self.finish(reading);
        true
    }

    /// Asks for the contents of buffers.
    fn read(&'static self, handles: Vec<Handle>) -> Statuses {
        // CubeCL lets this thread's stream wait for memory of another one that is younger than the last wait. A piece of a slab
        // is as old as the slab, whenever it was written.
        let pieces = handles
            .iter()
            .filter(|handle| handle.offset_start.is_some());
        let others: HashSet<StreamId> = pieces.map(|piece| piece.stream).collect();
        for other in others {
            streams::wait_for(&self.client, other);
        }
        // CubeCL panics, here too, where its own thread does: as it looks for memory that could not be had.
        match catch_unwind(AssertUnwindSafe(|| self.client.read_async(handles))) {
            Ok(read) => Box::pin(async { read.await.map_err(|error| error.to_string()) }),
            Err(_) => Box::pin(ready(Err(PANICKED.to_string()))),
        }
    }

    /// Waits for every status.
    pub(super) fn settle_all(&'static self) {
        self.ask();
        self.take();
    }

    /// Waits for a batch, and gives back its reserves.
    fn finish(&'static self, reading: Reading<R>) {
        let Reading {
            watched,
            bytes,
            statuses,
        } = reading;
        let _span = tracing::trace_span!("lct_settle", encodes = watched.len()).entered();
        match block_on(statuses) {
            Ok(statuses) => {
                let mut statuses = &statuses[..];
                for (encode, count) in watched {
                    let (own, others) = statuses.split_at(count);
                    statuses = others;
                    if let Some(shared) = encode.upgrade() {
                        shared.settle(own);
                    }
                }
            }
            // Reading reports what went wrong on the stream before, perhaps in another kernel, and so takes it from whoever
            // waits for a result next: it is kept for them. Or one encode never got its memory; then the others are well.
            Err(error) => {
                tracing::error!(%error, encodes = watched.len(), "encode statuses could not be read");
                self.note(error);
                for (encode, _) in watched {
                    if let Some(shared) = encode.upgrade() {
                        self.settle_one(&shared);
                    }
                }
            }
        }
        self.outstanding.fetch_sub(bytes, Relaxed);
    }

    /// Reads the status of one encode, which is lost if that is impossible.
    fn settle_one(&'static self, shared: &Shared<R>) {
        let Some(statuses) = shared.statuses() else {
            return;
        };
        match block_on(self.read(statuses)) {
            Ok(statuses) => shared.settle(&statuses),
            Err(error) => {
                if let Some(lost) = shared.fail(&error) {
                    // Says more than the first.
                    *lock(&self.error) = Some(lost);
                }
            }
        }
    }
}

#[cfg(all(test, feature = "wgpu"))]
mod tests {
    use burn_wgpu::{WgpuDevice, WgpuRuntime};

    use super::*;

    #[test]
    fn tickets_of_threads_that_are_gone_do_not_gather() {
        let reserve = Reserve::<WgpuRuntime>::of(&WgpuDevice::default());
        for _ in 0..2 * MOST_TICKETS {
            std::thread::spawn(|| reserve.tickets()).join().unwrap();
            assert!(lock(&reserve.tickets).len() <= MOST_TICKETS);
        }
    }
}
