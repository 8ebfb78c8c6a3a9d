//! Tensors that need not be stored, because what they were computed from is there.
//!
//! Autodiff saves a softmax three times: the shifted scores, their exponentials and the quotients. The second and the
//! third follow from the first in one pass over memory each, which takes less time than a code and needs no room at
//! all. So a storage remembers which operation it came from, if that is a [cheap](Cheap) one, and when it has to leave
//! the hot window while its operands are alive, it keeps them instead of its values.

use std::sync::{Arc, Weak};

use burn_backend::tensor::FloatTensor;

use super::{Form, LctTensor, Storage, View};
use crate::store::{Cheap, PackedStore};

/// The longest chain of operations that are done again for one tensor: exponential and quotient of a softmax.
const MOST_STEPS: u32 = 2;

/// The bytes that a derivation may keep alive, in quarters of those that it saves. Others may give its operands up, and then
/// it alone would hold them.
const MOST_HELD_QUARTERS: u64 = 5;

/// The operation that a storage came from, as long as nobody relies on it: operands may be gone.
pub(crate) struct Recipe<B: PackedStore> {
    op: Cheap,
    operands: Vec<(Weak<Storage<B>>, View)>,
}

impl<B: PackedStore> Recipe<B> {
    /// `None` if an operand is not managed, and so cannot be asked for later.
    pub(crate) fn new(op: Cheap, operands: &[&LctTensor<B>]) -> Option<Self> {
        let operand = |tensor: &&LctTensor<B>| match &tensor.0 {
            Form::Managed(storage, view, _) => Some((Arc::downgrade(storage), view.clone())),
            Form::Passed(_) => None,
        };
        let operands = operands.iter().map(operand).collect::<Option<_>>()?;
        Some(Self { op, operands })
    }

    /// What a storage of so many bytes can be derived from now, if all operands are alive, no more than [`MOST_STEPS`] away
    /// themselves, and not much larger than what they give.
    pub(crate) fn derivation(&self, bytes: u64) -> Option<Derivation<B>> {
        let upgrade = |(storage, view): &(Weak<Storage<B>>, View)| {
            let storage = storage.upgrade()?;
            (storage.steps() < MOST_STEPS).then(|| (storage, view.clone()))
        };
        let operands = self.operands.iter().map(upgrade);
        let operands: Vec<(Arc<Storage<B>>, View)> = operands.collect::<Option<_>>()?;
        let held: u64 = operands.iter().map(|(storage, _)| storage.bytes()).sum();
        (held * 4 <= bytes * MOST_HELD_QUARTERS).then_some(Derivation {
            op: self.op,
            operands,
        })
    }
}

/// An operation and its operands, held in place of what it gives.
pub(crate) struct Derivation<B: PackedStore> {
    op: Cheap,
    operands: Vec<(Arc<Storage<B>>, View)>,
}

impl<B: PackedStore> Derivation<B> {
    /// The operations from here to a tensor that is stored.
    pub(crate) fn steps(&self) -> u32 {
        let operands = self.operands().map(|storage| storage.steps());
        1 + operands.max().unwrap_or(0)
    }

    pub(crate) fn operands(&self) -> impl Iterator<Item = &Arc<Storage<B>>> {
        self.operands.iter().map(|(storage, _)| storage)
    }

    /// Does the operation again.
    pub(crate) fn run(&self) -> FloatTensor<B::Eager> {
        let operands = self.operands.iter();
        let operands = operands.map(|(storage, view)| view.replay::<B::Eager>(storage.to_eager()));
        B::again(self.op, operands.collect())
    }
}

/// Derived tensors of a lazy backend, on a device that cannot compute in BF16: operations that give what they are given.
#[cfg(all(test, feature = "wgpu"))]
mod tests {
    use burn_backend::ops::FloatTensorOps;
    use burn_backend::tensor::Device;
    use burn_backend::{Backend, TensorData};
    use burn_wgpu::{Wgpu, WgpuDevice};

    use super::*;
    use crate::samples;
    use crate::store::Origin;
    use crate::tensor::{ViewOp, defer_evictions, natural_break};
    use crate::{HotWindow, LctBackend, LctConfig, MemoryReport};

    type P = Wgpu<f32, i32, u32>;
    type B = LctBackend<P>;

    /// 64 Ki values that shrink: 128 KiB.
    const BYTES: u64 = 128 << 10;

    fn data(seed: usize) -> TensorData {
        samples::data(seed, [64, 1024])
    }

    fn fresh(seed: usize, device: &Device<P>) -> LctTensor<P> {
        LctTensor::new(P::float_from_data(data(seed), device))
    }

    fn same(operand: &LctTensor<P>, seed: usize, device: &Device<P>) -> LctTensor<P> {
        let recipe = Recipe::new(Cheap::Same, &[operand]);
        LctTensor::with_recipe(
            Origin::default(),
            P::float_from_data(data(seed), device),
            recipe,
        )
    }

    fn bits(tensor: &LctTensor<P>) -> TensorData {
        cubecl::future::block_on(B::float_into_data(tensor.clone())).unwrap()
    }

    #[test]
    fn a_lazy_backend_lifts_operands_and_releases_results() {
        let device = WgpuDevice::default();
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1024);
        B::configure(&device, config).unwrap();
        let report = || -> MemoryReport { B::memory_report(&device) };
        for seed in 0..6 {
            let before = report();
            // Until the break: a window of nothing is exceeded before.
            let until_break = defer_evictions();
            let shifted = fresh(seed, &device);
            let exponential = same(&shifted, seed, &device);
            let quotient = same(&exponential, seed, &device);
            // A view of an operand, and a result of it.
            let rows = shifted.clone().view(ViewOp::SwapDims(0, 1));
            let turned = same(&rows.view(ViewOp::SwapDims(0, 1)), seed, &device);
            drop(until_break);
            natural_break::<P>(&device);
            let derived = report().derived_bytes - before.derived_bytes;
            assert_eq!(
                derived,
                3 * BYTES,
                "the exponential, the quotient, the turned one"
            );
            // The operand was lifted at this break, and is packed at the next one.
            assert_eq!(report().window_bytes, BYTES);
            if seed % 2 == 0 {
                natural_break::<P>(&device);
                assert_eq!(report().window_bytes, 0);
            }
            // Until the stream has been executed they wait, and are had back as they were.
            if seed % 3 == 0 {
                // It would rest again at once.
                let _stays = defer_evictions();
                assert_eq!(bits(&quotient), data(seed));
                assert_eq!(report().derives, before.derives);
                assert_eq!(report().derived_bytes - before.derived_bytes, 2 * BYTES);
                continue;
            }
            P::sync(&device).unwrap();
            P::idle(&device);
            P::sync(&device).unwrap();
            // The last first, as a backward pass asks; the operand's owner is gone by then.
            drop(shifted);
            for tensor in [&quotient, &exponential, &turned] {
                assert_eq!(bits(tensor), data(seed));
            }
            let used = report();
            assert!(used.derives >= before.derives + 3, "{used}");
            drop((quotient, exponential, turned));
            B::sync(&device).unwrap();
            let end = report();
            assert_eq!((end.logical_bytes, end.derived_bytes), (0, 0), "{end}");
            assert_eq!((end.window_bytes, end.failed_encodes), (0, 0), "{end}");
        }
    }
}
