//! What stands in a fusion stream for a tensor that was computed outside of it.

use std::sync::Mutex;

use burn_backend::{DType, DeviceOps, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::fusion::FusionCubeRuntime;
use burn_fusion::FusionTensor;
use burn_fusion::client::GlobalFusionClient;
use burn_fusion::stream::OperationStreams;
use burn_ir::{CustomOpIr, OperationIr, TensorIr, TensorStatus};

use super::fusion_rest::{Gate, Nothing};
use crate::lock::lock;
use crate::per_device;

type Client<R> = GlobalFusionClient<FusionCubeRuntime<R>>;

/// Fusion tensors without a value, made in advance.
///
/// Outside of burn-fusion a tensor can only be made as the output of an operation, and an operation in a stream may close a
/// fused run. So shells are made in bulk on a stream of their own, where nothing is ever fused, and given the id of a
/// registered handle and the stream of their user when they are needed.
pub(super) struct Shells<R: CubeRuntime>(Mutex<Vec<FusionTensor<FusionCubeRuntime<R>>>>);

impl<R: CubeRuntime> Shells<R> {
    /// How many are made at a time.
    const BATCH: usize = 256;

    pub(super) fn of(device: &R::CubeDevice) -> &'static Self {
        per_device::get(device.id(), || Self(Mutex::default()))
    }

    pub(super) fn take(&self, client: &Client<R>) -> FusionTensor<FusionCubeRuntime<R>> {
        let mut stock = lock(&self.0);
        if stock.is_empty() {
            let idle = Gate::<R>::of(client.device()).idle;
            *stock = idle.executes(|| make_shells(client, Self::BATCH));
        }
        stock.pop().expect("a fresh batch is not empty")
    }
}

fn make_shells<R: CubeRuntime>(
    client: &Client<R>,
    count: usize,
) -> Vec<FusionTensor<FusionCubeRuntime<R>>> {
    let mut outputs: Vec<TensorIr> = (0..count)
        .map(|_| TensorIr::uninit(client.create_empty_handle(), Shape::new([1]), DType::BF16))
        .collect();
    let shells = client.register(
        OperationStreams::default(),
        OperationIr::Custom(CustomOpIr::new("lct_shells", &[], &outputs)),
        Nothing,
    );
    // The ids with which the shells were made are consumed at once, so that the stream forgets them.
    for output in &mut outputs {
        output.status = TensorStatus::ReadWrite;
    }
    client.register(
        OperationStreams::default(),
        OperationIr::Custom(CustomOpIr::new("lct_shells_made", &outputs, &[])),
        Nothing,
    );
    shells
}
