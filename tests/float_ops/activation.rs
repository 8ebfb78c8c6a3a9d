//! Activation functions and their gradients.

use burn_backend::Backend;

use crate::cases::{Cases, SHAPE};

pub fn run<B: Backend>(cases: &mut Cases<B>) {
    let strided = B::float_swap_dims(cases.normal([128, 64], 31), 0, 1);
    for x in [cases.special(), cases.normal(SHAPE, 32), strided] {
        run_each!(cases, float, (x), relu, gelu, sigmoid, log_sigmoid);
        for dim in [0, 1] {
            run_each!(cases, float, (x, dim), softmax, log_softmax, softmin);
        }
        let grad = cases.normal(SHAPE, 33);
        run_each!(
            cases,
            float,
            (x, grad),
            relu_backward,
            gelu_backward,
            sigmoid_backward,
            log_sigmoid_backward
        );
        run!(
            cases,
            float,
            leaky_relu(x.clone(), 0.01.into()),
            hard_sigmoid(x.clone(), 0.2.into(), 0.5.into()),
            prelu(x, cases.normal([128], 34)),
        );
    }
}
