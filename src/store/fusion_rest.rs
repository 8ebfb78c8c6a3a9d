//! How tensors leave a fusion stream without a trace in it.
//!
//! burn-fusion looks for what to fuse among a handful of independent blocks at a time. Whatever stands in the stream is one of
//! them, so an operation of ours in it, wherever it stands, can end a search early; the same operations are then cut into
//! other kernels, which may give other bits. So nothing of ours stands there: an operation on a stream of its own, where
//! nothing is ever fused, takes the tensors out of the container of handles.
//!
//! It may do so only when no operation that is still queued needs them. All those came before the tensors were to go, and a
//! stream is executed in order: once the result of a later operation is there, a *witness*, they have been executed. Until
//! then the tensors wait, and whoever needs one has it [back](Waiting::reclaim) as it was.

use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use burn_backend::{DType, Shape, StreamId};
use burn_cubecl::CubeRuntime;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_fusion::client::GlobalFusionClient;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{FusionHandle, FusionTensor};
use burn_ir::{
    BackendIr, CustomOpIr, HandleContainer, OperationIr, TensorId, TensorIr, TensorStatus,
};
use burn_std::Metadata;

use super::PackRequest;
use super::cube::CubePacked;
use crate::lock::lock;
use crate::per_device;
use crate::report::Stats;

type Client<R> = GlobalFusionClient<FusionCubeRuntime<R>>;
type Handles<R> = HandleContainer<FusionHandle<FusionCubeRuntime<R>>>;

/// The most results that are looked for as witnesses of one departure: the last ones, as most results do not live long.
const WITNESSES: usize = 16;
/// After so many results it is tried for the first time whether the tensors can leave, then after twice as many each time:
/// an attempt takes burn-fusion's thread as long as an operation, whatever comes of it.
const FIRST_TRY: usize = 8;
/// In the end it is tried again after so many further results.
const LAST_TRIES: usize = 64;
/// Ids that a stream forgets in one operation, always the same number, so that burn-fusion needs one plan for all.
const FORGOTTEN: usize = 64;

/// What happens to a tensor that goes to rest, and where it is left.
pub(super) enum Fate<R: CubeRuntime> {
    /// It is kept, outside of the stream.
    Lift(Arc<OnceLock<CubeTensor<R>>>),
    /// Nothing but its layout is kept.
    Release(Arc<OnceLock<Metadata>>),
    Pack(Arc<OnceLock<CubePacked<R>>>, PackRequest),
    /// Nothing is kept. It waits in here.
    Discard(#[expect(dead_code, reason = "kept until it leaves")] Arc<Waiting<R>>),
}

/// Bytes that are counted as queued while this lives.
pub(super) struct Queued {
    stats: Arc<Stats>,
    bytes: u64,
}

impl Queued {
    pub(super) fn new(stats: &Arc<Stats>, bytes: u64) -> Self {
        stats.queue_add(bytes);
        Self {
            stats: stats.clone(),
            bytes,
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.stats.queue_sub(self.bytes);
    }
}

/// A tensor that is to leave its stream, until it has.
pub struct Waiting<R: CubeRuntime>(Mutex<Option<Gathered<R>>>);

/// The tensor, and what is counted as long as it waits.
struct Gathered<R: CubeRuntime> {
    tensor: FusionTensor<FusionCubeRuntime<R>>,
    queued: Option<Queued>,
}

impl<R: CubeRuntime> Waiting<R> {
    fn new(tensor: FusionTensor<FusionCubeRuntime<R>>, queued: Option<Queued>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Gathered { tensor, queued }))))
    }

    /// The tensor, which then does not leave; `None` if it has left.
    pub(super) fn reclaim(&self) -> Option<FusionTensor<FusionCubeRuntime<R>>> {
        let gathered = lock(&self.0).take()?;
        Some(gathered.tensor)
    }
}

/// Tensors that leave together, and what becomes of each. What is dropped meanwhile does not leave.
type Tensors<R> = Vec<(Weak<Waiting<R>>, Fate<R>)>;

/// The tensors that go to rest at one time.
pub struct FusionBatch<R: CubeRuntime> {
    tensors: Tensors<R>,
    client: Option<Client<R>>,
}

impl<R: CubeRuntime> Default for FusionBatch<R> {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            client: None,
        }
    }
}

impl<R: CubeRuntime> FusionBatch<R> {
    pub(super) fn add(
        &mut self,
        tensor: FusionTensor<FusionCubeRuntime<R>>,
        queued: Option<Queued>,
        fate: Fate<R>,
    ) -> Arc<Waiting<R>> {
        self.client.get_or_insert_with(|| tensor.client.clone());
        let waiting = Waiting::new(tensor, queued);
        self.tensors.push((Arc::downgrade(&waiting), fate));
        waiting
    }

    pub(super) fn discard(
        &mut self,
        tensor: FusionTensor<FusionCubeRuntime<R>>,
    ) -> Arc<Waiting<R>> {
        self.client.get_or_insert_with(|| tensor.client.clone());
        let waiting = Waiting::new(tensor, None);
        let fate = Fate::Discard(waiting.clone());
        self.tensors.push((Arc::downgrade(&waiting), fate));
        waiting
    }

    /// Lets the tensors leave this thread's stream as soon as a witness is there.
    pub(super) fn submit(self) {
        let Some(client) = &self.client else {
            return;
        };
        let gate = Gate::<R>::of(client.device());
        lock(&gate.streams)
            .entry(StreamId::current())
            .or_default()
            .departures
            .push(Departure {
                work: Arc::new(Mutex::new(Some(self.tensors))),
                witnesses: VecDeque::new(),
                results: 0,
            });
        gate.departures.fetch_add(1, Relaxed);
    }
}

/// The tensors of a batch, until they have left.
struct Departure<R: CubeRuntime> {
    work: Arc<Mutex<Option<Tensors<R>>>>,
    /// Results of operations that were queued after all that need the tensors.
    witnesses: VecDeque<TensorId>,
    /// How many there were.
    results: usize,
}

/// Whether it is tried after so many results whether tensors can leave.
fn is_due(results: usize) -> bool {
    results >= FIRST_TRY && results.is_power_of_two() || results.is_multiple_of(LAST_TRIES)
}

impl<R: CubeRuntime> Departure<R> {
    /// Remembers a further result. Returns whether it is time to try whether the tensors can leave.
    fn sees(&mut self, result: TensorId) -> bool {
        if self.witnesses.len() == WITNESSES {
            self.witnesses.pop_front();
        }
        self.witnesses.push_back(result);
        self.results += 1;
        is_due(self.results)
    }

    fn attempt(&self) -> Attempt<R> {
        let witnesses = self.witnesses.iter().copied().collect();
        (self.work.clone(), Some(witnesses))
    }
}

/// What waits to leave a device's streams.
pub(super) struct Gate<R: CubeRuntime> {
    /// The stream on which nothing is fused.
    pub(super) idle: StreamId,
    streams: Mutex<HashMap<StreamId, Stream<R>>>,
    /// Of all streams.
    departures: AtomicUsize,
}

struct Stream<R: CubeRuntime> {
    departures: Vec<Departure<R>>,
    /// Those that have left, of which the stream still knows.
    gone: Arc<Mutex<Vec<TensorId>>>,
}

impl<R: CubeRuntime> Default for Stream<R> {
    fn default() -> Self {
        Self {
            departures: Vec::new(),
            gone: Arc::default(),
        }
    }
}

impl<R: CubeRuntime> Gate<R> {
    pub(super) fn of(device: &R::CubeDevice) -> &'static Self {
        use burn_backend::DeviceOps;
        per_device::get(device.id(), || Self {
            // A stream belongs to a thread; this one's has ended when others use it.
            idle: std::thread::spawn(StreamId::current)
                .join()
                .expect("asking for a thread's stream does not panic"),
            streams: Mutex::default(),
            departures: AtomicUsize::new(0),
        })
    }

    /// This thread's stream is going to compute `result`: a witness of what waits already. Lets go what can.
    pub(super) fn queued<B: Backend<R>>(&self, result: &FusionTensor<FusionCubeRuntime<R>>) {
        if self.departures.load(Relaxed) == 0 {
            return;
        }
        let owner = StreamId::current();
        let (tried, gone): (Vec<Attempt<R>>, _);
        {
            let mut streams = lock(&self.streams);
            let Some(stream) = streams.get_mut(&owner) else {
                return;
            };
            let before = stream.departures.len();
            stream
                .departures
                .retain(|waits| lock(&waits.work).is_some());
            let left = before - stream.departures.len();
            self.departures.fetch_sub(left, Relaxed);
            let mut is_due = false;
            for waits in &mut stream.departures {
                is_due |= waits.sees(result.id);
            }
            // One operation does for all.
            let departures = stream.departures.iter().filter(|_| is_due);
            tried = departures.map(Departure::attempt).collect();
            gone = stream.gone.clone();
        }
        if !tried.is_empty() {
            let leave = Leave::<B, R>::new(tried, owner, gone);
            self.idle.executes(|| leave.register(&result.client));
        }
    }

    /// Lets all that waits for a stream leave it through the stream itself, in whose queue it stands then.
    pub(super) fn force<B: Backend<R>>(&self, client: &Client<R>, owner: StreamId) {
        let (tried, gone): (Vec<_>, _) = {
            let mut streams = lock(&self.streams);
            let Some(stream) = streams.get_mut(&owner) else {
                return;
            };
            let departures = std::mem::take(&mut stream.departures);
            self.departures.fetch_sub(departures.len(), Relaxed);
            let tried = departures.into_iter().map(|waits| (waits.work, None));
            (tried.collect(), stream.gone.clone())
        };
        if !tried.is_empty() {
            let leave = Leave::<B, R>::new(tried, owner, gone);
            owner.executes(|| leave.register(client));
        }
    }

    /// The tensor as the backend inside has it, if it has been computed: no stream is executed for that.
    pub(super) fn look<B: Backend<R>>(
        &self,
        tensor: &FusionTensor<FusionCubeRuntime<R>>,
    ) -> Option<CubeTensor<R>> {
        let found = Arc::new(OnceLock::new());
        let look = Look {
            tensor: TensorIr {
                id: tensor.id,
                shape: tensor.shape.clone(),
                status: TensorStatus::ReadOnly,
                dtype: tensor.dtype,
            },
            found: found.clone(),
            backend: PhantomData::<B>,
        };
        let client = &tensor.client;
        self.idle.executes(|| {
            client.register(
                OperationStreams::default(),
                OperationIr::Custom(CustomOpIr::new("lct_look", &[], &[])),
                look,
            );
            client.sync(|| ());
        });
        found.get().cloned()
    }

    /// This thread's stream has been executed to its end, so that what is queued now cuts nothing: all that waits leaves, and
    /// the stream forgets the ids of what has left.
    pub(super) fn idle<B: Backend<R>>(&self, client: &Client<R>) {
        let owner = StreamId::current();
        self.force::<B>(client, owner);
        let gone = lock(&self.streams).get(&owner).map(|it| it.gone.clone());
        let Some(gone) = gone else {
            return;
        };
        loop {
            let ids = {
                let mut gone = lock(&gone);
                if gone.len() < FORGOTTEN {
                    return;
                }
                let keep = gone.len() - FORGOTTEN;
                gone.split_off(keep)
            };
            let consumed = |id| TensorIr {
                id,
                shape: Shape::new([1]),
                status: TensorStatus::ReadWrite,
                dtype: DType::BF16,
            };
            let inputs: Vec<TensorIr> = ids.into_iter().map(consumed).collect();
            client.register(
                OperationStreams::default(),
                OperationIr::Custom(CustomOpIr::new("lct_forget", &inputs, &[])),
                Nothing,
            );
        }
    }
}

/// A backend whose tensors can leave.
pub(super) trait Backend<R: CubeRuntime>:
    BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>
{
}

impl<R: CubeRuntime, B> Backend<R> for B where
    B: BackendIr<Handle = FusionHandle<FusionCubeRuntime<R>>, FloatTensorPrimitive = CubeTensor<R>>
{
}

/// A departure, with the witnesses of which one has to be there, `None` if the operation stands in the tensors' stream.
type Attempt<R> = (Arc<Mutex<Option<Tensors<R>>>>, Option<Vec<TensorId>>);

/// Lets tensors leave.
struct Leave<B, R: CubeRuntime> {
    tried: Vec<Attempt<R>>,
    /// The stream whose tensors they are.
    owner: StreamId,
    gone: Arc<Mutex<Vec<TensorId>>>,
    backend: PhantomData<B>,
}

impl<B: Backend<R>, R: CubeRuntime> Leave<B, R> {
    fn new(tried: Vec<Attempt<R>>, owner: StreamId, gone: Arc<Mutex<Vec<TensorId>>>) -> Self {
        Self {
            tried,
            owner,
            gone,
            backend: PhantomData,
        }
    }

    /// Queues it on this thread's stream.
    fn register(self, client: &Client<R>) {
        // The tensors are not its inputs, so that burn-fusion sees nothing that two streams share.
        client.register(
            OperationStreams::default(),
            OperationIr::Custom(CustomOpIr::new("lct_leave", &[], &[])),
            self,
        );
    }

    fn leave(&self, tensors: Tensors<R>, handles: &mut Handles<R>) {
        for (waiting, fate) in tensors {
            let Some(waiting) = waiting.upgrade() else {
                continue;
            };
            let Some(Gathered { tensor, queued }) = lock(&waiting.0).take() else {
                continue;
            };
            let ir = tensor.into_ir();
            let tensor = handles.get_float_tensor::<B>(&ir);
            match fate {
                Fate::Lift(slot) => {
                    slot.get_or_init(|| tensor);
                }
                Fate::Release(slot) => {
                    slot.get_or_init(|| *tensor.meta);
                }
                Fate::Pack(slot, request) => {
                    slot.get_or_init(|| CubePacked::pack(tensor, &request));
                }
                Fate::Discard(_) => {}
            }
            drop(queued);
            if ir.status == TensorStatus::ReadWrite {
                lock(&self.gone).push(ir.id);
            }
        }
    }
}

impl<B: Backend<R>, R: CubeRuntime> Operation<FusionCubeRuntime<R>> for Leave<B, R> {
    fn execute(&self, handles: &mut Handles<R>) {
        for (work, witnesses) in &self.tried {
            let is_there = |id: &TensorId| handles.has_handle(id);
            if witnesses
                .as_ref()
                .is_none_or(|ids| ids.iter().any(is_there))
            {
                let Some(tensors) = lock(work).take() else {
                    continue;
                };
                // On the stream whose memory it is.
                self.owner.executes(|| self.leave(tensors, handles));
            }
        }
    }
}

impl<B, R: CubeRuntime> std::fmt::Debug for Leave<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leave")
            .field("departures", &self.tried.len())
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// Looks for a tensor, and leaves it where it is.
struct Look<B, R: CubeRuntime> {
    tensor: TensorIr,
    found: Arc<OnceLock<CubeTensor<R>>>,
    backend: PhantomData<B>,
}

impl<B: Backend<R>, R: CubeRuntime> Operation<FusionCubeRuntime<R>> for Look<B, R> {
    fn execute(&self, handles: &mut Handles<R>) {
        if handles.has_handle(&self.tensor.id) {
            let found = || handles.get_float_tensor::<B>(&self.tensor);
            self.found.get_or_init(found);
        }
    }
}

impl<B, R: CubeRuntime> std::fmt::Debug for Look<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look")
            .field("tensor", &self.tensor)
            .finish_non_exhaustive()
    }
}

/// An operation that does nothing.
#[derive(Debug)]
pub(super) struct Nothing;

impl<R: CubeRuntime> Operation<FusionCubeRuntime<R>> for Nothing {
    fn execute(&self, _handles: &mut Handles<R>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_and_never_end() {
        let due: Vec<usize> = (1..400).filter(|&results| is_due(results)).collect();
        assert_eq!(due, [8, 16, 32, 64, 128, 192, 256, 320, 384]);
    }
}
