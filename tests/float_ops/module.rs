//! The operations of neural-network modules.

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConvOptions, InterpolateMode,
    InterpolateOptions, UnfoldOptions,
};
use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, TensorMetadata};

use crate::cases::Cases;

pub fn run<B: Backend>(cases: &mut Cases<B>) {
    linear(cases);
    attention(cases);
    convolution(cases);
    transposed_convolution(cases);
    deformable_convolution(cases);
    average_pooling(cases);
    maximum_pooling(cases);
    interpolation(cases);
    signals(cases);
}

/// A gradient for a result.
fn gradient<B: Backend>(cases: &Cases<B>, result: &FloatTensor<B>) -> FloatTensor<B> {
    cases.normal(result.shape(), 50)
}

fn linear<B: Backend>(cases: &mut Cases<B>) {
    let weights = cases.normal([256, 32], 51);
    let indices = cases.indices([4, 48], 256);
    let grad = cases.normal([4, 48, 32], 52);
    run!(
        cases,
        float,
        embedding(weights.clone(), indices.clone()),
        embedding_backward(weights, grad, indices),
    );

    let (x, weight, bias) = (
        cases.normal([2, 64, 64], 53),
        cases.normal([64, 96], 54),
        cases.normal([96], 55),
    );
    let grad = cases.normal([2, 64, 96], 56);
    run!(
        cases,
        float,
        linear(x.clone(), weight.clone(), Some(bias)),
        linear(x.clone(), weight.clone(), None),
        linear_x_backward(weight, grad.clone()),
        linear_weight_backward(x.clone(), grad.clone()),
        linear_bias_backward(grad),
        layer_norm(
            x.clone(),
            cases.normal([64], 57),
            Some(cases.normal([64], 58)),
            1e-5
        ),
        layer_norm(x, cases.normal([64], 57), None, 1e-3),
    );
}

fn attention<B: Backend>(cases: &mut Cases<B>) {
    let [query, key, value] = [61, 62, 63].map(|seed| cases.normal([2, 2, 32, 64], seed));
    let causal = AttentionModuleOptions {
        is_causal: true,
        ..Default::default()
    };
    let scaled = AttentionModuleOptions {
        scale: Some(0.3),
        softcap: Some(5.0),
        is_causal: false,
    };
    let mask = cases.mask([2, 2, 32, 32]);
    let bias = cases.normal([2, 2, 32, 32], 64);
    run!(
        cases,
        float,
        attention(
            query.clone(),
            key.clone(),
            value.clone(),
            None,
            None,
            causal
        ),
        attention(query, key, value, Some(mask), Some(bias), scaled),
    );
}

fn convolution<B: Backend>(cases: &mut Cases<B>) {
    let bias = cases.normal([4], 71);
    macro_rules! check {
        ($x:expr, $weight:expr, $options:expr, $conv:ident, $dx:ident, $dw:ident, $db:ident) => {{
            let (x, weight, options) = ($x, $weight, $options);
            let y = B::$conv(x.clone(), weight.clone(), None, options.clone());
            let grad = gradient(cases, &y);
            run!(
                cases,
                float,
                $conv(
                    x.clone(),
                    weight.clone(),
                    Some(bias.clone()),
                    options.clone()
                ),
                $dx(x.clone(), weight.clone(), grad.clone(), options.clone()),
                $dw(x.clone(), weight, grad.clone(), options),
                $db(x, bias.clone(), grad),
            );
        }};
    }
    check!(
        cases.normal([2, 2, 2048], 72),
        cases.normal([4, 1, 3], 73),
        ConvOptions::new([2], [1], [1], 2),
        conv1d,
        conv1d_x_backward,
        conv1d_weight_backward,
        conv1d_bias_backward
    );
    check!(
        cases.normal([2, 3, 40, 36], 74),
        cases.normal([4, 3, 3, 3], 75),
        ConvOptions::new([1, 1], [1, 1], [1, 1], 1),
        conv2d,
        conv2d_x_backward,
        conv2d_weight_backward,
        conv2d_bias_backward
    );
    check!(
        cases.normal([1, 2, 16, 17, 16], 76),
        cases.normal([4, 2, 2, 3, 2], 77),
        ConvOptions::new([1, 1, 1], [0, 1, 0], [1, 1, 1], 1),
        conv3d,
        conv3d_x_backward,
        conv3d_weight_backward,
        conv3d_bias_backward
    );
}

fn transposed_convolution<B: Backend>(cases: &mut Cases<B>) {
    let bias = cases.normal([4], 81);
    macro_rules! check {
        ($x:expr, $weight:expr, $options:expr, $conv:ident, $dx:ident, $dw:ident, $db:ident) => {{
            let (x, weight, options) = ($x, $weight, $options);
            let y = B::$conv(x.clone(), weight.clone(), None, options.clone());
            let grad = gradient(cases, &y);
            run!(
                cases,
                float,
                $conv(
                    x.clone(),
                    weight.clone(),
                    Some(bias.clone()),
                    options.clone()
                ),
                $dx(weight.clone(), grad.clone(), options.clone()),
                $dw(x.clone(), weight, grad.clone(), options),
                $db(x, bias.clone(), grad),
            );
        }};
    }
    check!(
        cases.normal([2, 2, 2048], 82),
        cases.normal([2, 4, 3], 83),
        ConvTransposeOptions::new([2], [1], [1], [1], 1),
        conv_transpose1d,
        conv_transpose1d_x_backward,
        conv_transpose1d_weight_backward,
        conv_transpose1d_bias_backward
    );
    check!(
        cases.normal([2, 2, 48, 44], 84),
        cases.normal([2, 4, 3, 2], 85),
        ConvTransposeOptions::new([1, 2], [1, 0], [0, 1], [1, 1], 1),
        conv_transpose2d,
        conv_transpose2d_x_backward,
        conv_transpose2d_weight_backward,
        conv_transpose2d_bias_backward
    );
    check!(
        cases.normal([1, 2, 16, 16, 16], 86),
        cases.normal([2, 4, 2, 2, 2], 87),
        ConvTransposeOptions::new([1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1),
        conv_transpose3d,
        conv_transpose3d_x_backward,
        conv_transpose3d_weight_backward,
        conv_transpose3d_bias_backward
    );
}

fn deformable_convolution<B: Backend>(cases: &mut Cases<B>) {
    let x = cases.normal([1, 2, 64, 64], 91);
    let offset = cases.normal([1, 18, 62, 62], 92);
    let weight = cases.normal([3, 2, 3, 3], 93);
    let mask = cases.positive([1, 9, 62, 62], 94);
    let bias = cases.normal([3], 95);
    let options = DeformConvOptions::new([1, 1], [0, 0], [1, 1], 1, 1);
    for (mask, bias) in [(None, None), (Some(mask), Some(bias))] {
        let y = B::deform_conv2d(
            x.clone(),
            offset.clone(),
            weight.clone(),
            mask.clone(),
            bias.clone(),
            options.clone(),
        );
        let grads = B::deform_conv2d_backward(
            x.clone(),
            offset.clone(),
            weight.clone(),
            mask,
            bias,
            gradient(cases, &y),
            options.clone(),
        );
        cases.float("deform_conv2d", y);
        cases.floats(
            "deform_conv2d_backward",
            [grads.x_grad, grads.offset_grad, grads.weight_grad]
                .into_iter()
                .chain(grads.mask_grad)
                .chain(grads.bias_grad),
        );
    }
    let windows = UnfoldOptions::new([1, 2], [1, 0], [1, 1]);
    run!(cases, float, unfold4d(x, [2, 2], windows));
}

fn average_pooling<B: Backend>(cases: &mut Cases<B>) {
    let line = cases.normal([2, 4, 1024], 101);
    let plane = cases.normal([2, 4, 32, 36], 102);
    let pooled = B::avg_pool1d(line.clone(), 3, 2, 1, true, false);
    let grad = gradient(cases, &pooled);
    run!(
        cases,
        float,
        avg_pool1d_backward(line.clone(), grad, 3, 2, 1, true, false)
    );
    cases.float("avg_pool1d", pooled);

    let pooled = B::avg_pool2d(plane.clone(), [3, 2], [2, 2], [1, 0], false, true);
    let grad = gradient(cases, &pooled);
    run!(
        cases,
        float,
        avg_pool2d_backward(plane.clone(), grad, [3, 2], [2, 2], [1, 0], false, true),
    );
    cases.float("avg_pool2d", pooled);

    let pooled = B::adaptive_avg_pool1d(line.clone(), 600);
    let grad = gradient(cases, &pooled);
    run!(cases, float, adaptive_avg_pool1d_backward(line, grad));
    cases.float("adaptive_avg_pool1d", pooled);

    let pooled = B::adaptive_avg_pool2d(plane.clone(), [20, 21]);
    let grad = gradient(cases, &pooled);
    run!(cases, float, adaptive_avg_pool2d_backward(plane, grad));
    cases.float("adaptive_avg_pool2d", pooled);
}

fn maximum_pooling<B: Backend>(cases: &mut Cases<B>) {
    let line = cases.normal([2, 4, 1024], 111);
    let plane = cases.normal([2, 4, 32, 36], 112);
    run!(
        cases,
        float,
        max_pool1d(line.clone(), 3, 2, 1, 1, false),
        max_pool2d(plane.clone(), [3, 2], [2, 2], [1, 0], [1, 1], true),
    );

    let pooled = B::max_pool1d_with_indices(line.clone(), 3, 2, 1, 1, false);
    let grad = gradient(cases, &pooled.output);
    let indices = pooled.indices.clone();
    let grads = B::max_pool1d_with_indices_backward(line, 3, 2, 1, 1, false, grad, indices);
    cases.float_and_int("max_pool1d_with_indices", (pooled.output, pooled.indices));
    cases.float("max_pool1d_with_indices_backward", grads.x_grad);

    let (kernel, stride, padding, dilation) = ([3, 2], [2, 2], [1, 0], [1, 1]);
    let pooled =
        B::max_pool2d_with_indices(plane.clone(), kernel, stride, padding, dilation, false);
    let grads = B::max_pool2d_with_indices_backward(
        plane,
        kernel,
        stride,
        padding,
        dilation,
        false,
        gradient(cases, &pooled.output),
        pooled.indices.clone(),
    );
    cases.float_and_int("max_pool2d_with_indices", (pooled.output, pooled.indices));
    cases.float("max_pool2d_with_indices_backward", grads.x_grad);
}

fn interpolation<B: Backend>(cases: &mut Cases<B>) {
    let x = cases.normal([1, 2, 64, 65], 121);
    for mode in [
        InterpolateMode::Nearest,
        InterpolateMode::Bilinear,
        InterpolateMode::Bicubic,
        InterpolateMode::Lanczos3,
    ] {
        let options = InterpolateOptions::new(mode);
        run!(cases, float, interpolate(x.clone(), [80, 72], options));
    }
    let grad = cases.normal([1, 2, 80, 72], 122);
    let options = InterpolateOptions::new(InterpolateMode::Nearest);
    run!(
        cases,
        float,
        interpolate_backward(x, grad, [80, 72], options)
    );
}

fn signals<B: Backend>(cases: &mut Cases<B>) {
    let (re, im) = B::rfft(cases.normal([8, 1024], 131), 1, None);
    run!(cases, float, irfft(re.clone(), im.clone(), 1, None));
    cases.floats("rfft", [re, im]);

    let log_probs = B::log_softmax(cases.normal([64, 8, 16], 132), 2);
    let targets = B::int_add_scalar(cases.indices([8, 5], 15), 1.into());
    let (inputs, lengths) = (
        cases.ints([8], [64, 60, 64, 33, 20, 64, 50, 12]),
        cases.ints([8], [5, 4, 3, 5, 1, 2, 5, 2]),
    );
    run!(
        cases,
        float,
        ctc_loss(log_probs, targets, inputs, lengths, 0)
    );
    run!(cases, answer, has_ctc_loss_backward());
}
