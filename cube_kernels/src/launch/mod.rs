//! Launching the kernels: validation, launch geometry, and helpers that move packed tensors
//! between host and device.
//!
//! Nothing here waits for the device, except [`read`] and the transfers built on it.

mod bind;
mod decode;
mod encode;
mod error;
mod transfer;

pub use bind::{BUFFER_ALIGNMENT, DenseLayout};
pub use decode::decode;
pub use encode::encode;
pub use error::LaunchError;
pub use transfer::{decode_packed, encode_to_host, read, upload};
