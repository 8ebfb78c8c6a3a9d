//! The operations of neural-network modules. Nearly all end a fused kernel and so announce a natural
//! break; the gradients of biases, which are sums, and the layer norm do not. Their results that come
//! as a struct are wrapped field by field.

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, InterpolateOptions, MaxPool1dBackward, MaxPool1dWithIndices,
    MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};
use burn_backend::tensor::{FloatTensor, IntTensor};

use crate::LctBackend;
use crate::store::PackedStore;
use crate::tensor::{LctTensor, natural_break};

/// A convolution, and its gradients by input and weights.
macro_rules! convolution {
    ($options:ty: $forward:ident, $x_backward:ident, $weight_backward:ident) => {
        forward! {
            break(x);
            (
                x: FloatTensor,
                weight: FloatTensor,
                bias: (Option<FloatTensor>),
                options: $options,
            ) -> FloatTensor:
            $forward
        }
        forward! {
            break(x);
            (
                x: FloatTensor,
                weight: FloatTensor,
                output_grad: FloatTensor,
                options: $options,
            ) -> FloatTensor:
            $x_backward, $weight_backward
        }
    };
}

/// A transposed convolution, whose gradient by the input does not need the input.
macro_rules! transposed_convolution {
    ($options:ty: $forward:ident, $x_backward:ident, $weight_backward:ident) => {
        forward! {
            break(x);
            (
                x: FloatTensor,
                weight: FloatTensor,
                bias: (Option<FloatTensor>),
                options: $options,
            ) -> FloatTensor:
            $forward
        }
        forward! {
            break(weight);
            (weight: FloatTensor, output_grad: FloatTensor, options: $options) -> FloatTensor:
            $x_backward
        }
        forward! {
            break(x);
            (
                x: FloatTensor,
                weight: FloatTensor,
                output_grad: FloatTensor,
                options: $options,
            ) -> FloatTensor:
            $weight_backward
        }
    };
}

/// Average pooling with windows of a given kind of size.
macro_rules! average_pooling {
    ($size:ty: $forward:ident, $backward:ident, $adaptive:ident) => {
        forward! {
            break(x);
            (
                x: FloatTensor,
                kernel_size: $size,
                stride: $size,
                padding: $size,
                count_include_pad: bool,
                ceil_mode: bool,
            ) -> FloatTensor:
            $forward
        }
        forward! {
            break(x);
            (
                x: FloatTensor,
                grad: FloatTensor,
                kernel_size: $size,
                stride: $size,
                padding: $size,
                count_include_pad: bool,
                ceil_mode: bool,
            ) -> FloatTensor:
            $backward
        }
        forward! {
            break(x);
            (x: FloatTensor, output_size: $size) -> FloatTensor:
            $adaptive
        }
    };
}

impl<B: PackedStore> ModuleOps<Self> for LctBackend<B> {
    // Embedding, linear layer and attention.
    forward! {
        break(weights);
        (weights: FloatTensor, indices: IntTensor) -> FloatTensor:
        embedding
    }

    fn embedding_backward(
        weights: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        output_grad.touch();
        natural_break::<B>(&weights.device());
        // Of the weights Burn 0.21 and its backends ask for shape and device only, and a decode would take as much memory as
        // the gradient.
        let result = B::embedding_backward(weights.outline(), output_grad.dense(), indices);
        B::queued(&result);
        wrap!(embedding_backward: FloatTensor, result)
    }

    forward! {
        break(x);
        (x: FloatTensor, weight: FloatTensor, bias: (Option<FloatTensor>)) -> FloatTensor:
        linear
    }
    forward! {
        break(weight);
        (weight: FloatTensor, output_grad: FloatTensor) -> FloatTensor:
        linear_x_backward
    }
    forward! {
        break(x);
        (x: FloatTensor, output_grad: FloatTensor) -> FloatTensor:
        linear_weight_backward
    }
    forward! { (output_grad: FloatTensor) -> FloatTensor: linear_bias_backward }
    forward! {
        break(query);
        (
            query: FloatTensor,
            key: FloatTensor,
            value: FloatTensor,
            mask: (Option<BoolTensor>),
            attn_bias: (Option<FloatTensor>),
            options: AttentionModuleOptions,
        ) -> FloatTensor:
        attention
    }
    forward! {
        (
            tensor: FloatTensor,
            gamma: FloatTensor,
            beta: (Option<FloatTensor>),
            epsilon: f64,
        ) -> FloatTensor:
        layer_norm
    }

    // Convolution.
    convolution! { ConvOptions<1>: conv1d, conv1d_x_backward, conv1d_weight_backward }
    convolution! { ConvOptions<2>: conv2d, conv2d_x_backward, conv2d_weight_backward }
    convolution! { ConvOptions<3>: conv3d, conv3d_x_backward, conv3d_weight_backward }
    forward! {
        (x: FloatTensor, bias: FloatTensor, output_grad: FloatTensor) -> FloatTensor:
        conv1d_bias_backward, conv2d_bias_backward, conv3d_bias_backward,
        conv_transpose1d_bias_backward, conv_transpose2d_bias_backward,
        conv_transpose3d_bias_backward
    }
    forward! {
        break(x);
        (
            x: FloatTensor,
            offset: FloatTensor,
            weight: FloatTensor,
            mask: (Option<FloatTensor>),
            bias: (Option<FloatTensor>),
            options: (DeformConvOptions<2>),
        ) -> FloatTensor:
        deform_conv2d
    }

    fn deform_conv2d_backward(
        x: FloatTensor<Self>,
        offset: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mask: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        output_grad: FloatTensor<Self>,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Self> {
        [&x, &offset, &weight, &output_grad]
            .into_iter()
            .chain(&mask)
            .chain(&bias)
            .for_each(LctTensor::touch);
        natural_break::<B>(&x.device());
        let grads = B::deform_conv2d_backward(
            x.dense(),
            offset.dense(),
            weight.dense(),
            mask.map(LctTensor::dense),
            bias.map(LctTensor::dense),
            output_grad.dense(),
            options,
        );
        DeformConv2dBackward::new(
            LctTensor::new(grads.x_grad),
            LctTensor::new(grads.offset_grad),
            LctTensor::new(grads.weight_grad),
            grads.mask_grad.map(LctTensor::new),
            grads.bias_grad.map(LctTensor::new),
        )
    }

    // Transposed convolution.
    transposed_convolution! {
        ConvTransposeOptions<1>:
        conv_transpose1d, conv_transpose1d_x_backward, conv_transpose1d_weight_backward
    }
    transposed_convolution! {
        ConvTransposeOptions<2>:
        conv_transpose2d, conv_transpose2d_x_backward, conv_transpose2d_weight_backward
    }
    transposed_convolution! {
        ConvTransposeOptions<3>:
        conv_transpose3d, conv_transpose3d_x_backward, conv_transpose3d_weight_backward
    }
    forward! {
        break(x);
        (x: FloatTensor, kernel_size: [usize; 2], options: UnfoldOptions) -> FloatTensor:
        unfold4d
    }

    // Average pooling.
    average_pooling! { usize: avg_pool1d, avg_pool1d_backward, adaptive_avg_pool1d }
    average_pooling! { [usize; 2]: avg_pool2d, avg_pool2d_backward, adaptive_avg_pool2d }
    forward! {
        break(x);
        (x: FloatTensor, grad: FloatTensor) -> FloatTensor:
        adaptive_avg_pool1d_backward, adaptive_avg_pool2d_backward
    }

    // Maximum pooling.
    forward! {
        break(x);
        (
            x: FloatTensor,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            dilation: usize,
            ceil_mode: bool,
        ) -> FloatTensor:
        max_pool1d
    }
    forward! {
        break(x);
        (
            x: FloatTensor,
            kernel_size: [usize; 2],
            stride: [usize; 2],
            padding: [usize; 2],
            dilation: [usize; 2],
            ceil_mode: bool,
        ) -> FloatTensor:
        max_pool2d
    }

    fn max_pool1d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> MaxPool1dWithIndices<Self> {
        x.touch();
        natural_break::<B>(&x.device());
        let pooled = B::max_pool1d_with_indices(
            x.dense(),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool1dWithIndices::new(LctTensor::new(pooled.output), pooled.indices)
    }

    fn max_pool2d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Self> {
        x.touch();
        natural_break::<B>(&x.device());
        let pooled = B::max_pool2d_with_indices(
            x.dense(),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
        );
        MaxPool2dWithIndices::new(LctTensor::new(pooled.output), pooled.indices)
    }

    fn max_pool1d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool1dBackward<Self> {
        x.touch();
        output_grad.touch();
        natural_break::<B>(&x.device());
        let grads = B::max_pool1d_with_indices_backward(
            x.dense(),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad.dense(),
            indices,
        );
        MaxPool1dBackward::new(LctTensor::new(grads.x_grad))
    }

    fn max_pool2d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool2dBackward<Self> {
        x.touch();
        output_grad.touch();
        natural_break::<B>(&x.device());
        let grads = B::max_pool2d_with_indices_backward(
            x.dense(),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad.dense(),
            indices,
        );
        MaxPool2dBackward::new(LctTensor::new(grads.x_grad))
    }

    // Interpolation.
    forward! {
        break(x);
        (x: FloatTensor, output_size: [usize; 2], options: InterpolateOptions) -> FloatTensor:
        interpolate
    }
    forward! {
        break(x);
        (
            x: FloatTensor,
            grad: FloatTensor,
            output_size: [usize; 2],
            options: InterpolateOptions,
        ) -> FloatTensor:
        interpolate_backward
    }

    // CTC loss.
    forward! {
        break(log_probs);
        (
            log_probs: FloatTensor,
            targets: IntTensor,
            input_lengths: IntTensor,
            target_lengths: IntTensor,
            blank: usize,
        ) -> FloatTensor:
        ctc_loss
    }
    forward! { () -> bool: has_ctc_loss_backward }
    forward! {
        break(log_probs);
        (
            log_probs: FloatTensor,
            targets: IntTensor,
            input_lengths: IntTensor,
            target_lengths: IntTensor,
            grad_loss: FloatTensor,
            blank: usize,
        ) -> FloatTensor:
        ctc_loss_backward
    }

    // Fourier transform.
    forward! {
        break(signal);
        (signal: FloatTensor, dim: usize, n: (Option<usize>)) -> (FloatTensor, FloatTensor):
        rfft
    }
    forward! {
        break(spectrum_re);
        (
            spectrum_re: FloatTensor,
            spectrum_im: FloatTensor,
            dim: usize,
            n: (Option<usize>),
        ) -> FloatTensor:
        irfft
    }
}
