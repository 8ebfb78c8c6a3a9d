//! Launching an optimizer's step on dense tensors.

use cubecl::ir::features::TypeUsage;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{Dense, DenseLayout};
use crate::kernels::REVISION;
use crate::kernels::UNITS;
use crate::kernels::dense::Access;
use crate::kernels::step::{NumbersLaunch, Plan};
use crate::kernels::update as kernel;
use crate::layout::GRANULE;
use crate::optim::Update;

/// Cubes for each multiprocessor; each goes over the tensors in strides.
const RESIDENT: u32 = 64;

/// Does an optimizer's step: reads the gradient, the weight and the states that [are known](crate::optim::Chain::known), and
/// writes the weight and all states of the rule. All lie as `dense` says. Returns at once; the work is queued on the stream.
///
/// `inputs` are gradient, weight and known states, `outputs` weight and states. An output may be the buffer of the input
/// that it replaces. Gaps between pitched rows are not written.
///
/// # Errors
/// [`LaunchError`] if sizes or offsets forbid the launch, or the number of buffers does not fit the update; nothing is
/// launched then.
pub fn update<R: Runtime>(
    client: &ComputeClient<R>,
    update: &Update,
    inputs: &[Handle],
    outputs: &[Handle],
    dense: DenseLayout,
) -> Result<(), LaunchError> {
    let chain = update.chain;
    for (what, needed, found) in [
        ("inputs", 2 + chain.known, inputs.len()),
        ("outputs", 1 + chain.states(), outputs.len()),
    ] {
        if needed != found {
            return Err(LaunchError::Operands {
                what,
                needed,
                found,
            });
        }
    }
    let check = |handle: &Handle| Dense::new(handle.clone(), dense);
    let inputs: Vec<Dense> = inputs.iter().map(check).collect::<Result<_, _>>()?;
    let outputs: Vec<Dense> = outputs.iter().map(check).collect::<Result<_, _>>()?;
    let values = dense.values();
    let Some(any) = inputs.first().filter(|_| values > 0) else {
        return Ok(());
    };
    // Vectors are read only where every buffer has a whole one.
    let aligned = inputs
        .iter()
        .chain(&outputs)
        .all(|buffer| buffer.access.aligned);
    let access = Access {
        aligned: aligned && values >= GRANULE as usize,
        ..any.access
    };
    let hardware = &client.properties().hardware;
    let multiprocessors = hardware.num_streaming_multiprocessors.unwrap_or(4);
    let granules = (values as u32).div_ceil(GRANULE);
    let cubes = granules
        .div_ceil(UNITS)
        .min(multiprocessors.max(1) * RESIDENT);
    // SAFETY: sizes were checked above, and the kernel's indices stay below them.
    unsafe {
        kernel::update::launch_unchecked::<R>(
            client,
            CubeCount::Static(cubes, 1, 1),
            CubeDim::new_1d(UNITS),
            inputs
                .iter()
                .map(|buffer| buffer.wide_or_narrow())
                .collect(),
            inputs.iter().map(|buffer| buffer.narrow()).collect(),
            outputs
                .iter()
                .map(|buffer| buffer.wide_or_narrow())
                .collect(),
            outputs.iter().map(|buffer| buffer.narrow()).collect(),
            values as u32,
            any.row_len,
            any.row_pitch,
            numbers(update),
            Plan {
                chain,
                native: converts_bf16(client),
            },
            access,
            REVISION,
        );
    }
    Ok(())
}

/// The numbers of a step as the kernels take them.
pub(super) fn numbers<R: Runtime>(update: &Update) -> NumbersLaunch<R> {
    let s = update.scalars;
    NumbersLaunch::new(
        s.decay,
        s.keep,
        s.fresh,
        s.keep_2,
        s.fresh_2,
        s.correct,
        s.correct_2,
        s.epsilon,
        s.rate,
        update.salt,
    )
}

/// Whether the device converts to BF16 itself, rounding to nearest, ties to even.
pub(super) fn converts_bf16<R: Runtime>(client: &ComputeClient<R>) -> bool {
    let float = ElemType::Float(FloatKind::BF16).into();
    let usage = client.properties().type_usage(float);
    // Other runtimes may have the type, but how they round is not known.
    R::name(client) == "cuda" && usage.contains(TypeUsage::Conversion)
}
