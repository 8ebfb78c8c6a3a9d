//! Operations of other kinds of tensors that take or give floats, and the transaction.

use burn_backend::ops::TransactionPrimitive;
use burn_backend::tensor::QuantizedTensor;
use burn_backend::tensor::quantization::QuantizationParametersPrimitive;
use burn_backend::{Backend, TensorPrimitive, read_sync};
use burn_std::quantization::{QuantScheme, QuantStore};
use burn_std::{BoolDType, IntDType};

use crate::cases::{Cases, SHAPE};

pub fn run<B: Backend>(cases: &mut Cases<B>) {
    let numbers = cases.indices(SHAPE, 1000);
    let mask = cases.mask(SHAPE);
    run!(
        cases,
        float,
        int_into_float(numbers.clone(), cases.dtype),
        bool_into_float(mask.clone(), cases.dtype),
    );
    run!(
        cases,
        int,
        int_add_scalar(numbers.clone(), 2.into()),
        bool_into_int(mask.clone(), int())
    );
    run!(
        cases,
        bool,
        int_greater_elem(numbers.clone(), 0.into(), BoolDType::Native)
    );
    run!(cases, int, int_cast(numbers.clone(), IntDType::I64));
    run!(cases, bool, bool_not(mask.clone()));
    run!(
        cases,
        int,
        int_matmul(numbers.clone(), B::int_transpose(numbers.clone()))
    );
    let places = read_sync(async { Ok::<_, ()>(B::bool_argwhere(mask.clone(), int()).await) });
    cases.int("bool_argwhere", places.expect("a plain value"));

    quantized(cases);

    let transaction = TransactionPrimitive::new(
        vec![cases.special(), B::float_transpose(cases.special())],
        vec![],
        vec![numbers],
        vec![mask],
    );
    let read = read_sync(B::tr_execute(transaction)).expect("the transaction succeeds");
    for data in [read.read_floats, read.read_ints, read.read_bools]
        .into_iter()
        .flatten()
    {
        cases.data("tr_execute", Ok::<_, ()>(data));
    }
}

fn quantized<B: Backend>(cases: &mut Cases<B>) {
    let scheme = QuantScheme::default().with_store(QuantStore::Native);
    let qparams = QuantizationParametersPrimitive {
        scales: cases.positive([1], 41),
    };
    let x = B::quantize_dynamic(cases.normal(SHAPE, 42), &scheme);
    let y = B::quantize_dynamic(cases.normal(SHAPE, 43), &scheme);

    give(cases, "quantize_dynamic", x.clone());
    give(
        cases,
        "quantize",
        B::quantize(cases.normal(SHAPE, 44), &scheme, qparams),
    );
    run!(cases, float, dequantize(x.clone(), cases.dtype));
    primitive(cases, "q_add", B::q_add(x.clone(), y.clone()));
    primitive(cases, "q_exp", B::q_exp(x.clone()));
    primitive(cases, "q_sum_dim", B::q_sum_dim(x.clone(), 1));
    let weights = TensorPrimitive::Float(cases.normal([128, 48], 45));
    primitive(
        cases,
        "q_matmul",
        B::q_matmul(TensorPrimitive::QFloat(x.clone()), weights),
    );
    let transposed = TensorPrimitive::QFloat(B::q_transpose(y));
    primitive(
        cases,
        "q_matmul",
        B::q_matmul(TensorPrimitive::QFloat(x), transposed),
    );
}

fn primitive<B: Backend>(cases: &mut Cases<B>, name: &'static str, tensor: TensorPrimitive<B>) {
    match tensor {
        TensorPrimitive::Float(tensor) => cases.float(name, tensor),
        TensorPrimitive::QFloat(tensor) => give(cases, name, tensor),
    }
}

fn give<B: Backend>(cases: &mut Cases<B>, name: &'static str, tensor: QuantizedTensor<B>) {
    cases.data(name, read_sync(B::q_into_data(tensor)));
}

fn int() -> IntDType {
    IntDType::I32
}
