//! Activation functions. A fusing backend breaks them up into float operations and fuses those, which
//! only stays one kernel when it is the one to break them up.

use burn_backend::Scalar;
use burn_backend::ops::ActivationOps;

use crate::LctBackend;
use crate::store::PackedStore;

impl<B: PackedStore> ActivationOps<Self> for LctBackend<B> {
    forward! { cheap; (tensor: FloatTensor) -> FloatTensor: relu = Relu, gelu = Gelu }
    forward! { (tensor: FloatTensor) -> FloatTensor: sigmoid, log_sigmoid }
    forward! { (tensor: FloatTensor, dim: usize) -> FloatTensor: softmax, log_softmax, softmin }
    forward! { (tensor: FloatTensor, negative_slope: Scalar) -> FloatTensor: leaky_relu }
    forward! { (tensor: FloatTensor, alpha: FloatTensor) -> FloatTensor: prelu }
    forward! { (tensor: FloatTensor, alpha: Scalar, beta: Scalar) -> FloatTensor: hard_sigmoid }

    // The gradients: of the output for relu and sigmoid, of the input for the others.
    forward! {
        (saved: FloatTensor, grad: FloatTensor) -> FloatTensor:
        relu_backward, gelu_backward, sigmoid_backward, log_sigmoid_backward
    }
}
