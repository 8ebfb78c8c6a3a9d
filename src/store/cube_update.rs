//! An optimizer's step on CubeCL tensors: one kernel.

use burn_backend::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Metadata;
use lct_kernels::launch::{self, DenseLayout};
use lct_kernels::optim::Update;

use super::Operands;
use super::cube::{lay_out, memory_rows, span_bytes};

/// The new weight and states, each in the memory of the old one if nobody else holds that, and laid out as the weight is.
pub(super) fn update<R: CubeRuntime>(
    update: &Update,
    operands: Operands<CubeTensor<R>>,
) -> Vec<CubeTensor<R>> {
    let (weight, rows) = in_rows(operands.weight);
    let meta = (*weight.meta).clone();
    let gradient = lay_out(operands.gradient, &meta);
    let mut old = vec![weight];
    old.extend(
        operands
            .states
            .into_iter()
            .map(|state| lay_out(state, &meta)),
    );
    let client = old[0].client.clone();
    let fresh = || {
        CubeTensor::new(
            client.clone(),
            client.empty(span_bytes(rows)),
            meta.clone(),
            old[0].device.clone(),
            DType::BF16,
        )
    };
    let new: Vec<CubeTensor<R>> = (0..1 + update.chain.states())
        .map(|tensor| match old.get(tensor) {
            Some(old) if old.can_mut() => old.clone(),
            _ => fresh(),
        })
        .collect();
    let handles = |tensors: &[CubeTensor<R>]| -> Vec<_> {
        tensors.iter().map(|tensor| tensor.handle.clone()).collect()
    };
    let mut inputs = vec![gradient.handle];
    inputs.extend(handles(&old));
    launch::update(&client, update, &inputs, &handles(&new), rows)
        .unwrap_or_else(|error| panic!("an optimizer's step cannot be launched: {error}"));
    new
}

/// The tensor, copied if its values do not lie in equal rows, each value in a place of its own.
fn in_rows<R: CubeRuntime>(tensor: CubeTensor<R>) -> (CubeTensor<R>, DenseLayout) {
    let rows = |meta: &Metadata| memory_rows(meta).filter(|_| !overlaps(meta));
    match rows(&tensor.meta) {
        Some(rows) => (tensor, rows),
        None => {
            let tensor = into_contiguous(tensor);
            let rows = rows(&tensor.meta).expect("a row-major tensor with values lies in rows");
            (tensor, rows)
        }
    }
}

/// Whether a dimension shows the same memory again.
fn overlaps(meta: &Metadata) -> bool {
    let mut dims = meta.shape().iter().zip(meta.strides().iter());
    dims.any(|(&size, &stride)| size > 1 && stride == 0)
}
