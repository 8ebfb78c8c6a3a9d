//! What compression does to the tensors of a safetensors file (feature `cli`).
//!
//! Every tensor is coded by the host codec, the format's reference, under every profile asked for, decoded, and compared
//! with what went in: the sizes are those of packed forms that came back bit for bit.
//!
//! ```no_run
//! use burn_lct::{Profile, inspect};
//!
//! let file = inspect::TensorFile::open("model.safetensors".as_ref())?;
//! let tensors = file.tensors(&Profile::ALL).collect::<Result<_, _>>()?;
//! println!("{:?}", inspect::Report::new(tensors).total);
//! # Ok::<(), inspect::InspectError>(())
//! ```

mod error;
mod file;
mod kind;
mod measure;
mod report;

pub use error::{CodingError, InspectError};
pub use file::TensorFile;
pub use kind::kind;
pub use measure::{Allocation, Measurement};
pub use report::{Group, Outcome, PassedThrough, Report, TensorReport};
