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
            Form::Managed(storage, view) => Some((Arc::downgrade(storage), view.clone())),
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
