//! The CubeCL kernels. One cube of 256 units works on a block at a time, one unit on a stream.
//!
//! They work on 32-bit words, as BF16 does not exist on every runtime. Nor do 64-bit integers: only
//! [`bits`] uses them, where they exist.
//! `&&` and `||` evaluate both sides here, so conditions that guard an access are nested.

// CubeCL generates undocumented items for every kernel; nothing in here is public.
#![allow(missing_docs)]
// Kernels have no `is_multiple_of`, and no `div_ceil` without a trait of another crate.
#![allow(clippy::manual_div_ceil, clippy::manual_is_multiple_of)]

mod bits;
pub(crate) mod codebook;
pub(crate) mod codes;
pub(crate) mod decode;
pub(crate) mod dense;
pub(crate) mod encode;
pub(crate) mod geometry;
mod huffman;
