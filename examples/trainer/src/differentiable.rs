//! Operations whose gradient is written by hand, for those that would keep too much if it were not.
//!
//! Automatic differentiation keeps, of each elementary operation, what its gradient needs. An [`Operation`] is many of
//! them as one, and keeps its inputs and what it chooses itself; the rest is computed again. It is written once, as a
//! pair of functions over any backend. Here is what makes an operation of a backend with gradients of it.

#[cfg(not(feature = "distributed"))]
use crate::backend::OnCpu;
use burn::tensor::backend::Backend;
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{
        base::Checkpointer, retro_forward::RetroForward, state::BackwardStates,
        strategy::CheckpointStrategy,
    },
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::{Fusion, FusionBackend};
use burn_lct::{LctBackend, PackedStore};
use std::{fmt::Debug, marker::PhantomData};

/// An operation of `N` float tensors and `I` integer tensors, with its gradient.
pub trait Operation<const N: usize, const I: usize>: Clone + Debug + Send + 'static {
    /// Whether doing it again costs so little that `BalancedCheckpointing` shall not keep its result.
    const CHEAP: bool;

    /// The result, and what of it the backward pass wants kept beside the inputs.
    fn forward<B: Backend>(
        &self,
        floats: [FloatTensor<B>; N],
        ints: [IntTensor<B>; I],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>);

    /// The gradients of the float inputs from that of the result; `None` for a constant, which has none.
    fn backward<B: Backend>(
        &self,
        floats: [FloatTensor<B>; N],
        ints: [IntTensor<B>; I],
        kept: Vec<FloatTensor<B>>,
        gradient: FloatTensor<B>,
    ) -> [Option<FloatTensor<B>>; N];
}

/// A backend that does [operations](Operation): every one of these programs.
pub trait Differentiable: Backend {
    /// Does an operation.
    fn apply<O: Operation<N, I>, const N: usize, const I: usize>(
        operation: O,
        floats: [FloatTensor<Self>; N],
        ints: [IntTensor<Self>; I],
    ) -> FloatTensor<Self> {
        operation.forward::<Self>(floats, ints).0
    }
}

#[cfg(not(feature = "distributed"))]
impl Differentiable for OnCpu {}
impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> Differentiable
    for CubeBackend<R, F, I, BT>
{
}
impl<B: FusionBackend> Differentiable for Fusion<B> {}
impl<B: PackedStore> Differentiable for LctBackend<B> {}

impl<B: Backend, C: CheckpointStrategy> Differentiable for Autodiff<B, C> {
    fn apply<O: Operation<N, I>, const N: usize, const I: usize>(
        operation: O,
        floats: [FloatTensor<Self>; N],
        ints: [IntTensor<Self>; I],
    ) -> FloatTensor<Self> {
        let nodes = floats.each_ref().map(|tensor| tensor.node.clone());
        let inputs = floats.each_ref().map(|tensor| match tensor.is_tracked() {
            true => Input::Node(tensor.node.id),
            false => Input::Constant(tensor.primitive.clone()),
        });
        let tracked = || floats.iter().filter(|tensor| tensor.is_tracked());
        let step = HandWritten(operation.clone(), PhantomData::<B>);
        let prepared = step.prepare::<C>(nodes);
        let prepared = if O::CHEAP {
            let again = Again {
                operation: operation.clone(),
                inputs: inputs.clone(),
                ints: ints.clone(),
            };
            prepared
                .memory_bound()
                .retro_forward(again)
                .parents(tracked())
        } else {
            prepared.compute_bound()
        };
        match prepared.stateful() {
            OpsKind::Tracked(mut prepared) => {
                tracked().for_each(|tensor| _ = prepared.checkpoint(tensor));
                let floats = floats.map(|tensor| tensor.primitive);
                let (output, kept) = operation.forward::<B>(floats, ints.clone());
                let state = State { inputs, ints, kept };
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => {
                let floats = floats.map(|tensor| tensor.primitive);
                prepared.finish(operation.forward::<B>(floats, ints).0)
            }
        }
    }
}

/// Where an input is found in the backward pass.
#[derive(Clone, Debug)]
enum Input<B: Backend> {
    /// At the node that made it, which may have to make it again.
    Node(NodeId),
    /// Here, as nothing that has a gradient made it.
    Constant(FloatTensor<B>),
}

impl<B: Backend> Input<B> {
    fn take(self, of_node: impl FnOnce(NodeId) -> FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Node(id) => of_node(id),
            Self::Constant(tensor) => tensor,
        }
    }
}

/// What an operation keeps until the backward pass.
#[derive(Clone, Debug)]
struct State<B: Backend, const N: usize, const I: usize> {
    inputs: [Input<B>; N],
    ints: [IntTensor<B>; I],
    kept: Vec<FloatTensor<B>>,
}

/// The backward step of an operation.
#[derive(Debug)]
struct HandWritten<O, B, const I: usize>(O, PhantomData<B>);

impl<B: Backend, O: Operation<N, I>, const N: usize, const I: usize> Backward<B, N>
    for HandWritten<O, B, I>
{
    type State = State<B, N, I>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let State { inputs, ints, kept } = ops.state;
        let floats = inputs.map(|input| input.take(|id| checkpointer.retrieve_node_output(id)));
        let gradients = self.0.backward::<B>(floats, ints, kept, gradient);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

/// Does a cheap operation again in the backward pass.
#[derive(Debug)]
struct Again<O, B: Backend, const N: usize, const I: usize> {
    operation: O,
    inputs: [Input<B>; N],
    ints: [IntTensor<B>; I],
}

impl<O: Operation<N, I>, B: Backend, const N: usize, const I: usize> RetroForward
    for Again<O, B, N, I>
{
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let inputs = self.inputs.clone();
        let floats = inputs.map(|input| input.take(|id| states.get_state(&id)));
        let (output, _) = self.operation.forward::<B>(floats, self.ints.clone());
        states.save(out_node, output);
    }
}
