//! The reference codec, and the path for CPU backends: blocks run in parallel on rayon.

mod decode;
mod encode;
mod verify;

pub use decode::{decode, decode_into};
pub use encode::encode;
pub use verify::verify;
