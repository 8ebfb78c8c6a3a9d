//! Safetensors files, tensor by tensor.

use std::fs::File;
use std::path::Path;

use half::{bf16, f16};
use lct_kernels::Profile;
use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};

use super::{InspectError, Measurement, Outcome, PassedThrough, TensorReport, kind};

/// Bytes that state the header's length, before the header.
const LENGTH_BYTES: usize = 8;

/// A safetensors file, mapped into memory. Nothing may write to the file meanwhile.
#[derive(Debug)]
pub struct TensorFile {
    file: String,
    map: Mmap,
    metadata: Metadata,
    /// Where the tensors' bytes begin.
    start: usize,
}

impl TensorFile {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// [`InspectError::Read`] or [`InspectError::Format`].
    pub fn open(path: &Path) -> Result<Self, InspectError> {
        let file = path.display().to_string();
        let map = File::open(path).and_then(|file| {
            // SAFETY: the map is only read. That nobody changes the file while it is mapped is this type's documented
            // condition, as it is of every program that maps a file.
            unsafe { Mmap::map(&file) }
        });
        let map = map.map_err(|source| InspectError::Read {
            file: file.clone(),
            source,
        })?;
        match SafeTensors::read_metadata(&map) {
            Ok((header, metadata)) => Ok(Self {
                file,
                map,
                metadata,
                start: LENGTH_BYTES + header,
            }),
            Err(source) => Err(InspectError::Format { file, source }),
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.metadata.data_len() as u64
    }

    /// Inspects the tensors one after the other, in the order in which they lie in the file.
    pub fn tensors<'a>(
        &'a self,
        profiles: &'a [Profile],
    ) -> impl Iterator<Item = Result<TensorReport, InspectError>> + 'a {
        let names = self.metadata.offset_keys().into_iter();
        names.filter_map(move |name| {
            let info = self.metadata.info(&name)?;
            Some(self.tensor(name, info, profiles))
        })
    }

    fn tensor(
        &self,
        name: String,
        info: &TensorInfo,
        profiles: &[Profile],
    ) -> Result<TensorReport, InspectError> {
        let (begin, end) = info.data_offsets;
        let bytes = &self.map[self.start..][begin..end];
        let outcome = match bf16_bits(info.dtype, bytes) {
            None => Outcome::PassedThrough(PassedThrough::Dtype),
            Some(values) if values.is_empty() => Outcome::PassedThrough(PassedThrough::Empty),
            Some(values) => match Measurement::of(&values, profiles) {
                Ok(measured) => Outcome::Measured(measured),
                Err(source) => {
                    return Err(InspectError::Coding {
                        file: self.file.clone(),
                        tensor: name,
                        source,
                    });
                }
            },
        };
        Ok(TensorReport {
            file: self.file.clone(),
            kind: kind(&name),
            name,
            dtype: info.dtype.to_string(),
            shape: info.shape.clone(),
            bytes: bytes.len() as u64,
            rounded: matches!(outcome, Outcome::Measured(_)) && info.dtype != Dtype::BF16,
            outcome,
        })
    }
}

/// Values as BF16 bit patterns, rounded to nearest, ties to even; `None` for types that are not trained in BF16.
fn bf16_bits(dtype: Dtype, bytes: &[u8]) -> Option<Vec<u16>> {
    fn each<const N: usize>(bytes: &[u8], bits: impl Fn([u8; N]) -> u16) -> Vec<u16> {
        bytes.as_chunks::<N>().0.iter().copied().map(bits).collect()
    }
    match dtype {
        Dtype::BF16 => Some(each(bytes, u16::from_le_bytes)),
        Dtype::F16 => Some(each(bytes, |value| {
            bf16::from_f32(f16::from_le_bytes(value).to_f32()).to_bits()
        })),
        Dtype::F32 => Some(each(bytes, |value| {
            bf16::from_f32(f32::from_le_bytes(value)).to_bits()
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_nearest_and_ties_to_even() {
        // Between 1 and 1 + 2^-7, the next BF16, lies 1 + 2^-8.
        let tie = 1.0 + f32::powi(2.0, -8);
        let above = tie + f32::EPSILON;
        let odd = 1.0 + 3.0 * f32::powi(2.0, -8);
        let bytes: Vec<u8> = [1.0, tie, above, odd, f32::NEG_INFINITY]
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        let bits = [0x3f80, 0x3f80, 0x3f81, 0x3f82, 0xff80];
        assert_eq!(bf16_bits(Dtype::F32, &bytes).unwrap(), bits);

        let half = f16::from_f32(1.0 + f32::powi(2.0, -8) + f32::powi(2.0, -10));
        let bits = bf16_bits(Dtype::F16, &half.to_le_bytes()).unwrap();
        assert_eq!(bits, [0x3f81]);
    }

    #[test]
    fn bf16_stays_as_it_is_and_other_types_are_left_alone() {
        let patterns: Vec<u16> = (0..=u16::MAX).collect();
        let bytes: Vec<u8> = patterns
            .iter()
            .flat_map(|bits| bits.to_le_bytes())
            .collect();
        assert_eq!(bf16_bits(Dtype::BF16, &bytes).unwrap(), patterns);
        for dtype in [Dtype::I64, Dtype::F64, Dtype::U8, Dtype::F8_E4M3] {
            assert_eq!(bf16_bits(dtype, &bytes), None);
        }
    }
}
