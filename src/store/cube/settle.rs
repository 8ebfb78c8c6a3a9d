//! What becomes of a packed form once the device has said how its encode went.

use burn_backend::DType;
use burn_cubecl::CubeRuntime;
use cubecl::{bytes::Bytes, server::Handle};
use lct_kernels::header::{CAPACITY_WORD, RECORDS_END_WORD, SERIAL_WORD, fixed_words};
use lct_kernels::{PackedLayout, VerifyError, launch};

use super::buffers::{decode, trimmed};
use super::{Form, Original, PackedBuffers, Shared};
use crate::error::PackError;
use crate::report::KeptDense;
use crate::store::{PackRequest, Room, pages, reserve::Reserve};

impl<R: CubeRuntime> Shared<R> {
    /// Where the device says how the encode went: the start of the blob's header, which the encode writes, and the verdict
    /// if it is verified. `None` if there is nothing to learn.
    pub(in crate::store) fn statuses(&self) -> Option<Vec<Handle>> {
        let form = self.lock();
        let (buffers, verdict) = match &*form {
            Form::Packed(buffers) => (buffers, None),
            Form::Unverified(buffers, original) => (buffers, Some(original.verdict.clone())),
            Form::Dense(_) | Form::Lost(_) => return None,
        };
        let rest = buffers.blob.size_in_used() - STATUS_BYTES as u64;
        // On top of what rounding left.
        let header = buffers.blob.clone().offset_end(rest);
        Some([header].into_iter().chain(verdict).collect())
    }

    /// Gives back what the encode did not spill, or the whole packed form if it was not worth it or is not the tensor.
    pub(in crate::store) fn settle(&self, statuses: &[Bytes]) {
        let mut form = self.lock();
        let (buffers, original) = match &*form {
            Form::Packed(buffers) => (buffers.clone(), None),
            Form::Unverified(buffers, original) => (buffers.clone(), Some(original.clone())),
            Form::Dense(_) | Form::Lost(_) => return,
        };
        *form = self.settled(buffers, original, statuses);
    }

    /// The device's answer cannot be had: the tensor is lost, unless it is still dense. Returns how to say so.
    pub(in crate::store) fn fail(&self, reason: &str) -> Option<String> {
        let mut form = self.lock();
        let (buffers, original) = match &*form {
            Form::Packed(buffers) => (buffers.clone(), None),
            Form::Unverified(buffers, original) => (buffers.clone(), Some(original.clone())),
            Form::Dense(_) | Form::Lost(_) => return None,
        };
        *form = self.failed(&buffers.layout, original, reason.to_string());
        match &*form {
            Form::Lost(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// The form after the device's answer.
    fn settled(
        &self,
        mut buffers: PackedBuffers,
        original: Option<Box<Original<R>>>,
        statuses: &[Bytes],
    ) -> Form<R> {
        let layout = buffers.layout;
        let end = match records_end(&statuses[0], &layout, buffers.serial) {
            Ok(end) => end,
            Err(why) => return self.failed(&layout, original, why),
        };
        if let Some(original) = &original {
            let reason = match launch::verdict(&statuses[1], &layout) {
                Some(Ok(())) => None,
                Some(Err(mismatch)) => Some(mismatch.into()),
                None => Some(VerifyError::NotCompared {
                    reason: "it has not run the kernel; it may have run out of memory before"
                        .into(),
                }),
            };
            if let Some(reason) = reason {
                return self.mismatched(original, reason);
            }
        }
        buffers.end = Some(end);
        buffers.end_of_choice.get_or_insert(end);
        let spill_words = layout.spill_words(end);
        let spilled = 4 * spill_words;
        let pays = PackRequest::pays(layout.blob_bytes() + spilled, layout.dense_bytes());
        {
            let mut predictions = Reserve::<R>::of(&self.device).predictions();
            if pays {
                predictions.shrank(self.origin, &layout, end);
            } else {
                predictions.did_not_shrink(self.origin, &layout);
            }
        }
        if !pays {
            let dense = match original {
                Some(original) => Ok(original.tensor),
                None => decode(&self.client, &buffers).map(|handle| self.tensor(handle)),
            };
            return match dense {
                Ok(tensor) => {
                    self.footprint.give_up(KeptDense::Incompressible);
                    Form::Dense(tensor)
                }
                // It stays as it is, whole with its worst-case spill.
                Err(error) => {
                    tracing::error!(%error, "a packed tensor that does not pay cannot be decoded");
                    Form::Packed(buffers)
                }
            };
        }
        self.footprint.set_spill(spilled);
        let worst_case = buffers.spill.take();
        buffers.spill = worst_case
            .filter(|_| spill_words > 0)
            .map(|worst_case| trimmed(&self.client, worst_case, spill_words as usize));
        Form::Packed(buffers)
    }

    /// The form after an encode that the device did not do.
    fn failed(
        &self,
        layout: &PackedLayout,
        original: Option<Box<Original<R>>>,
        reason: String,
    ) -> Form<R> {
        if let Some(original) = &original {
            return self.mismatched(original, VerifyError::NotCompared { reason });
        }
        let needed = layout.blob_bytes() + layout.spill_bound_bytes();
        let stats = self.footprint.stats();
        let error = PackError::Lost {
            shape: self.meta.shape().as_slice().to_vec(),
            reason,
            memory: stats.memory(
                Some(needed),
                pages::room::<R>(&self.device).map(Room::bytes),
            ),
        };
        let why = error.to_string();
        stats.on_error(error);
        self.footprint.lose();
        Form::Lost(why)
    }

    /// The form of a tensor that its packed form does not give back.
    fn mismatched(&self, original: &Original<R>, reason: VerifyError) -> Form<R> {
        self.footprint.stats().on_error(PackError::Mismatch {
            shape: self.meta.shape().as_slice().to_vec(),
            dtype: DType::BF16,
            reason,
        });
        self.footprint.give_up(KeptDense::Failed);
        Form::Dense(original.tensor.clone())
    }
}

/// The header's words up to the last one that says how large the packed form is, and of which encode.
const STATUS_BYTES: usize = 4 * (SERIAL_WORD + 1);

/// Where the records end, if this encode has written a header that fits the tensor: an earlier one in the same memory may
/// have left one that does. A device that ran out of memory or refused a kernel leaves the buffer as it was, and says so
/// nowhere else.
fn records_end(status: &[u8], layout: &PackedLayout, serial: u32) -> Result<u32, String> {
    let word = |index: usize| bytemuck::pod_read_unaligned::<u32>(&status[4 * index..][..4]);
    let fixed = fixed_words(layout);
    let fixed = fixed.into_iter().enumerate();
    let expected = fixed.chain([(CAPACITY_WORD, layout.capacity()), (SERIAL_WORD, serial)]);
    for (index, expected) in expected {
        if word(index) != expected {
            return Err(format!(
                "the device did not run an encode: word {index} of the packed header is {:#010x} instead of {expected:#010x}; \
                 it may have run out of memory before",
                word(index),
            ));
        }
    }
    let end = word(RECORDS_END_WORD);
    let (words, bound) = (layout.spill_words(end), layout.spill_bound_words());
    if words > bound {
        return Err(format!(
            "an encode reports {words} spilled words, more than the {bound} that it can spill"
        ));
    }
    Ok(end)
}
