//! Whether a packed form is what it was made from.

use crate::{Mismatch, Packed, VerifyError};

/// Decodes a packed tensor and compares it with the values that it was made from, bit for bit.
///
/// # Errors
/// [`VerifyError::Codec`] if it cannot be decoded or has another length, [`VerifyError::Mismatch`] if values differ.
///
/// ```
/// use lct_kernels::{CodecConfig, VerifyError, host};
///
/// let values: Vec<u16> = (0..10_000).collect();
/// let mut packed = host::encode(&values, &CodecConfig::default())?;
/// assert_eq!(host::verify(&packed, &values), Ok(()));
///
/// // A bit of a sign or a fraction.
/// let plane = packed.layout()?.plane_offset_words() as usize;
/// packed.blob[plane] ^= 1;
/// let Err(VerifyError::Mismatch(mismatch)) = host::verify(&packed, &values) else { unreachable!() };
/// assert_eq!((mismatch.values, mismatch.first, mismatch.block), (1, 0, 0));
/// # Ok::<(), lct_kernels::CodecError>(())
/// ```
pub fn verify(packed: &Packed, values: &[u16]) -> Result<(), VerifyError> {
    let mut decoded = vec![0; values.len()];
    super::decode_into(packed, &mut decoded)?;
    let others = || {
        (0..)
            .zip(decoded.iter().zip(values))
            .filter(|(_, (a, b))| a != b)
    };
    match others().next() {
        None => Ok(()),
        Some((first, _)) => {
            Err(Mismatch::new(&packed.layout()?, first, others().count() as u32).into())
        }
    }
}
