//! An optimizer's step on CubeCL tensors, dense or packed: one kernel.

use burn_backend::{DType, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Metadata;
use cubecl::stream_id::StreamId;
use lct_kernels::launch::{self, DenseLayout, PackedForm};
use lct_kernels::optim::Update;
use lct_kernels::{PackedLayout, Profile};

use super::cube::{CubePacked, Form, PackedBuffers, buffer, confirm};
use super::cube_layout::{lay_out, memory_rows, span_bytes};
use super::reserve::Reserve;
use super::{Operands, Origin, PackRequest};
use crate::report::{Footprint, KeptDense};

/// A code is chosen anew when the records take so much more than they did under it at first: one part of so many.
const STALE_PARTS: u32 = 32;

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

impl<R: CubeRuntime> CubePacked<R> {
    /// Whether a step can be done on these packed forms as they are: all lie alike, are this thread's, and their codes still fit.
    pub(super) fn updatable(old: &[&Self], request: &PackRequest) -> bool {
        let Some((first, rest)) = old.split_first() else {
            return false;
        };
        let fits = |packed: &&Self| {
            packed.buffers().is_some_and(|buffers| {
                buffers.layout.profile() == Profile::Auto
                    && buffers.blob.stream == StreamId::current()
                    && !is_stale(&buffers)
            })
        };
        // A verified form is compared with a dense tensor, of which there is none here.
        !request.verify
            && !overlaps(&first.0.meta)
            && rest.iter().all(|packed| packed.0.meta == first.0.meta)
            && old.iter().all(fits)
    }

    /// The new packed forms. If they cannot be made from the old ones, as one has been given up for its dense tensor
    /// meanwhile or the launch is refused, the step is done on dense tensors, which are then kept.
    pub(super) fn update(
        update: &Update,
        gradient: CubeTensor<R>,
        old: &[&Self],
        request: &PackRequest,
    ) -> Vec<Self> {
        let gradient = lay_out(gradient, &old[0].0.meta);
        if let Some(new) = Self::update_buffers(update, &gradient, old, request) {
            return new;
        }
        let mut dense = old.iter().map(|packed| packed.unpack());
        let operands = Operands {
            gradient,
            weight: dense.next().expect("the weight is there"),
            states: dense.collect(),
        };
        let keep = |(index, (tensor, old)): (usize, (CubeTensor<R>, &&Self))| {
            let logical = 2 * tensor.shape().num_elements() as u64;
            let footprint = Footprint::kept_dense(&request.stats, logical, KeptDense::Failed);
            Self::like(old, Origin::updated(index), footprint, Form::Dense(tensor))
        };
        let new = self::update(update, operands);
        new.into_iter().zip(old).enumerate().map(keep).collect()
    }

    fn update_buffers(
        update: &Update,
        gradient: &CubeTensor<R>,
        old: &[&Self],
        request: &PackRequest,
    ) -> Option<Vec<Self>> {
        let first = old.first()?;
        let reserve = Reserve::<R>::of(&first.0.device);
        let values = first.buffers()?.layout.values();
        let layout = PackedLayout::new(values, Profile::Auto).ok()?;
        let layouts: Vec<PackedLayout> = {
            let predictions = reserve.predictions();
            let fit = |index| predictions.fit(Origin::updated(index), layout);
            (0..old.len()).map(fit).collect()
        };
        let bounds = layouts.iter().map(PackedLayout::spill_bound_bytes);
        // This may settle old encodes, so their forms are looked at later.
        reserve.make_room(bounds.sum(), request.spill_reserve);
        let buffers = old.iter().map(|packed| packed.buffers());
        let buffers: Vec<PackedBuffers> = buffers.collect::<Option<_>>()?;
        let client = &first.0.client;
        let form = |buffers: &PackedBuffers| PackedForm {
            layout: buffers.layout,
            blob: buffers.blob.clone(),
            spill: buffers.spill.clone(),
        };
        let before: Vec<PackedForm> = buffers.iter().map(form).collect();
        let mut pieces = Vec::new();
        let after: Vec<PackedForm> = (layouts.into_iter())
            .map(|layout| {
                let (blob, piece) = reserve.blob(client, layout.blob_bytes(), request);
                pieces.push(piece);
                PackedForm {
                    layout,
                    blob,
                    spill: Some(buffer(client, layout.spill_bound_bytes().max(4))),
                }
            })
            .collect();
        if request.confirm {
            let all = after
                .iter()
                .flat_map(|form| [Some(&form.blob), form.spill.as_ref()]);
            confirm(client, all.flatten())
                .inspect_err(|reason| tracing::error!(reason, "packed tensors are updated densely"))
                .ok()?;
        }
        let serial = launch::update_packed(
            client,
            update,
            gradient.handle.clone(),
            buffers[0].rows,
            &before,
            &after,
            &reserve.tickets(),
        )
        .inspect_err(|error| tracing::error!(%error, "packed tensors are updated densely"))
        .ok()?;
        let parts = after.into_iter().zip(pieces).zip(buffers).zip(old);
        let finish = |(index, (((after, piece), before), old)): (
            usize,
            (((PackedForm, _), PackedBuffers), &&Self),
        )| {
            let PackedForm {
                layout,
                blob,
                spill,
            } = after;
            let bound = layout.spill_bound_bytes();
            let footprint = Footprint::packed(
                &request.stats,
                layout.dense_bytes(),
                layout.blob_bytes(),
                bound,
            );
            let new = PackedBuffers {
                layout,
                serial,
                rows: before.rows,
                blob,
                piece,
                spill,
                end: None,
                end_of_choice: before.end_of_choice,
            };
            let form = Form::Packed(new);
            let new = Self::like(old, Origin::updated(index), footprint, form);
            reserve.watch(&new.0, bound);
            new
        };
        Some(parts.enumerate().map(finish).collect())
    }
}

/// Whether the values have changed so much since the code was chosen that another would be better.
fn is_stale(buffers: &PackedBuffers) -> bool {
    match (buffers.end, buffers.end_of_choice) {
        (Some(end), Some(first)) => end > first + first / STALE_PARTS,
        _ => false,
    }
}
