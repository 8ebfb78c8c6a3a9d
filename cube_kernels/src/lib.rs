//! The codec of burn-lct: lossless compression of BF16 values, on the host and on the GPU.
//!
//! A BF16 value is a sign bit, eight exponent bits and seven fraction bits. Signs and fractions
//! are near noise and stay as they are, one byte a value. Exponents take 2.5 to 3 bits of their
//! eight under a fitting prefix code. They are dealt to 32 streams a block, whose words are
//! interleaved, so that a GPU warp reads and writes whole lines.
//!
//! - [`host`] is the reference: it defines the format's bytes, which `docs/FORMAT.md` specifies.
//! - `launch` (feature `cube`) runs the same codec as CubeCL kernels, on the same bytes.
//!
//! ```
//! use lct_kernels::{CodecConfig, host};
//!
//! let values: Vec<u16> = (0..100_000u32).map(|i| 0x3c00 + (i % 512) as u16).collect();
//! let packed = host::encode(&values, &CodecConfig::default())?;
//! assert!(packed.bytes() < values.len() * 2);
//! assert_eq!(host::decode(&packed)?, values);
//! # Ok::<(), lct_kernels::CodecError>(())
//! ```

#![deny(missing_docs)]

pub mod codebook;
mod config;
mod error;
pub mod header;
pub mod host;
#[cfg(feature = "cube")]
mod kernels;
#[cfg(feature = "cube")]
pub mod launch;
pub mod layout;
pub mod optim;
mod packed;

pub use config::{CodecConfig, Family, Profile};
pub use error::{CodecError, Mismatch, VerifyError};
pub use layout::PackedLayout;
pub use packed::Packed;
