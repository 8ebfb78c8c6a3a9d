//! [`PackedStore`] for `Flex`: the host codec, in memory.

use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, TensorMetadata};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_std::Bytes;
use lct_kernels::optim::{Update, Values, apply};
use lct_kernels::{Packed, host};

use super::{Cheap, Operands, PackRequest, PackedStore};
use crate::error::PackError;
use crate::report::{Footprint, KeptDense};

/// A Flex tensor in packed form.
#[derive(Debug)]
pub struct FlexPacked {
    form: Form,
    _footprint: Footprint,
}

#[derive(Debug)]
enum Form {
    /// The values of the tensor's buffer in memory order, and how the tensor lay in it.
    Packed {
        packed: Packed,
        layout: Layout,
    },
    Dense(FlexTensor),
}

impl PackedStore for Flex {
    type Packed = FlexPacked;
    type Eager = Self;
    type Layout = ();
    type Lifted = FlexTensor;
    type Leaving = ();
    type Batch = ();

    const LAZY: bool = false;

    fn pack((): &mut (), tensor: FlexTensor, request: &PackRequest) -> FlexPacked {
        pack_one(tensor, request)
    }

    fn again(op: Cheap, operands: Vec<FlexTensor>) -> FlexTensor {
        op.apply::<Self>(operands)
    }

    fn update(update: &Update, operands: Operands<FlexTensor>) -> Vec<FlexTensor> {
        let operands = operands.map(whole);
        let shape = operands.weight.shape();
        let mut tensors = vec![operands.weight];
        tensors.extend(operands.states);
        let states = update.chain.states();
        tensors.resize_with(1 + states, || FlexTensor::empty(shape.clone(), DType::BF16));
        let [weight, rest @ ..] = &mut tensors[..] else {
            unreachable!("the weight is there")
        };
        let mut states: [&mut [u16]; 3] = Default::default();
        for (bits, tensor) in states.iter_mut().zip(rest) {
            *bits = bits_mut(tensor);
        }
        let gradient: &[u16] = bytemuck::cast_slice(operands.gradient.bytes());
        let values = Values {
            weight: bits_mut(weight),
            states,
        };
        apply(update, gradient, values);
        tensors
    }

    fn from_eager(tensor: FlexTensor) -> FlexTensor {
        tensor
    }

    fn to_eager(tensor: FlexTensor) -> FlexTensor {
        tensor
    }

    fn lift((): &mut (), tensor: FlexTensor) -> FlexTensor {
        tensor
    }

    fn lifted(tensor: &FlexTensor) -> FlexTensor {
        tensor.clone()
    }

    fn derivable(tensor: &FlexTensor) -> bool {
        tensor.is_contiguous()
    }

    fn discard(_batch: &mut (), _tensor: FloatTensor<Self>) {}

    fn release((): &mut (), _tensor: FlexTensor) {}

    fn lay_out(tensor: FlexTensor, (): &()) -> FlexTensor {
        if tensor.is_contiguous() {
            tensor
        } else {
            tensor.to_contiguous()
        }
    }

    fn is_dense(packed: &FlexPacked) -> bool {
        matches!(packed.form, Form::Dense(_))
    }

    fn unpack(packed: &FlexPacked) -> FloatTensor<Self> {
        match &packed.form {
            Form::Dense(tensor) => tensor.clone(),
            Form::Packed { packed, layout } => {
                let values = host::decode(packed).unwrap_or_else(|error| {
                    panic!("a packed tensor was damaged in memory: {error}")
                });
                FlexTensor::new(Bytes::from_elems(values), layout.clone(), DType::BF16)
            }
        }
    }
}

fn pack_one(tensor: FlexTensor, request: &PackRequest) -> FlexPacked {
    let keep = |tensor: FlexTensor, why| FlexPacked {
        _footprint: Footprint::kept_dense(&request.stats, dense_bytes(&tensor), why),
        form: Form::Dense(tensor),
    };
    let Some((range, layout)) = packable(&tensor) else {
        return keep(tensor, KeptDense::Layout);
    };
    let values: &[u16] = &bytemuck::cast_slice(tensor.bytes())[range];
    let shape = || tensor.shape().as_slice().to_vec();
    let packed = host::encode(values, &request.codec);
    #[cfg(test)]
    let packed = super::inject::into_packed(packed, request.fault);
    let packed = match packed {
        Ok(packed) => packed,
        Err(error) => {
            request.stats.on_error(PackError::Refused {
                shape: shape(),
                reason: error.to_string(),
                memory: request.stats.memory(None, None),
            });
            return keep(tensor, KeptDense::Failed);
        }
    };
    let spill = 4 * packed.spill.len() as u64;
    let blob = 4 * packed.blob.len() as u64;
    if !PackRequest::pays(blob + spill, 2 * values.len() as u64) {
        return keep(tensor, KeptDense::Incompressible);
    }
    if request.verify
        && let Err(reason) = host::verify(&packed, values)
    {
        request.stats.on_error(PackError::Mismatch {
            shape: shape(),
            dtype: DType::BF16,
            reason,
        });
        return keep(tensor, KeptDense::Failed);
    }
    let footprint = Footprint::packed(&request.stats, 2 * values.len() as u64, blob, 0);
    footprint.set_spill(spill);
    FlexPacked {
        form: Form::Packed { packed, layout },
        _footprint: footprint,
    }
}

/// The part of the buffer to pack, in values, and the layout of the tensor in a buffer of just that part.
///
/// A tensor that spans its whole buffer keeps its layout, whatever it is (permuted, flipped, broadcast):
/// Flex chooses its matrix kernels by strides. A contiguous piece of a larger buffer is packed alone.
fn packable(tensor: &FlexTensor) -> Option<(std::ops::Range<usize>, Layout)> {
    let buffer = tensor.bytes().len() / 2;
    let layout = tensor.layout();
    if buffer <= layout.num_elements() {
        return Some((0..buffer, layout.clone()));
    }
    let (start, end) = layout.contiguous_offsets()?;
    Some((start..end, Layout::contiguous(layout.shape().clone())))
}

/// The tensor in row-major order, in a buffer that holds nothing else.
fn whole(tensor: FlexTensor) -> FlexTensor {
    let is_whole =
        tensor.is_contiguous() && tensor.bytes().len() == 2 * tensor.layout().num_elements();
    if is_whole {
        return tensor;
    }
    let tensor = tensor.to_contiguous();
    match packable(&tensor) {
        Some((range, layout)) if 2 * range.len() < tensor.bytes().len() => {
            let values: &[u16] = &bytemuck::cast_slice(tensor.bytes())[range];
            FlexTensor::new(Bytes::from_elems(values.to_vec()), layout, DType::BF16)
        }
        _ => tensor,
    }
}

/// The bits of a [whole](self::whole) BF16 tensor; those of a shared one are copied first.
fn bits_mut(tensor: &mut FlexTensor) -> &mut [u16] {
    bytemuck::cast_slice_mut(tensor.storage_mut::<half::bf16>())
}

/// What a tensor that is kept dense counts: its elements.
fn dense_bytes(tensor: &FlexTensor) -> u64 {
    2 * tensor.shape().num_elements() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lct_kernels::{CodecConfig, Mismatch};

    use super::*;
    use crate::report::Stats;
    use crate::samples;
    use crate::store::Origin;
    use crate::store::inject::{FLIPPED, Fault};

    fn tensor() -> FlexTensor {
        FlexTensor::from_data(samples::data(0, [64, 300]))
    }

    fn packed(verify: bool, fault: Option<Fault>) -> (FlexPacked, Arc<Stats>) {
        let request = PackRequest {
            codec: CodecConfig::default(),
            origin: Origin::default(),
            verify,
            spill_reserve: 1 << 20,
            confirm: false,
            slab_bytes: 0,
            stats: Arc::new(Stats::default()),
            fault,
        };
        (pack_one(tensor(), &request), request.stats)
    }

    #[test]
    fn a_sound_form_verifies() {
        let (packed, stats) = packed(true, None);
        assert!(!Flex::is_dense(&packed));
        assert_eq!(stats.errors(), []);
        assert_eq!(Flex::unpack(&packed).bytes(), tensor().bytes());
    }

    #[test]
    fn a_flipped_bit_is_found_and_named_and_the_tensor_stays_dense() {
        let (other, stats) = packed(false, Some(Fault::FlippedBit));
        assert_eq!(stats.errors(), [], "nobody looked");
        assert_ne!(Flex::unpack(&other).bytes(), tensor().bytes());

        let (packed, stats) = packed(true, Some(Fault::FlippedBit));
        let mismatch = Mismatch {
            values: 1,
            first: FLIPPED,
            block: 1,
            stream: 26,
        };
        let reported = PackError::Mismatch {
            shape: vec![64, 300],
            dtype: DType::BF16,
            reason: mismatch.into(),
        };
        assert_eq!(stats.errors(), [reported]);
        let report = stats.report();
        assert_eq!((report.failed_encodes, report.mismatched_encodes), (1, 1));
        assert_eq!(report.kept_dense_bytes, 2 * 64 * 300);
        assert!(Flex::is_dense(&packed));
        assert_eq!(Flex::unpack(&packed).bytes(), tensor().bytes());
    }

    #[test]
    fn what_the_codec_refuses_stays_dense() {
        let (packed, stats) = packed(false, Some(Fault::Refused));
        assert!(matches!(&stats.errors()[..], [PackError::Refused { .. }]));
        assert_eq!(stats.report().failed_encodes, 1);
        assert_eq!(Flex::unpack(&packed).bytes(), tensor().bytes());
    }

    #[test]
    #[should_panic(expected = "damaged in memory")]
    fn what_is_damaged_at_rest_has_no_value() {
        let (mut packed, _) = packed(false, None);
        let Form::Packed { packed: form, .. } = &mut packed.form else {
            unreachable!("it shrinks")
        };
        form.blob[0] ^= 1;
        Flex::unpack(&packed);
    }
}
