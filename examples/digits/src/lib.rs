//! An image classifier trained by burn-train, written as any program on Burn is: generic over the backend.
//!
//! Nothing in the training knows of compressed tensors, but for the metrics that the program may hand in. Its
//! `backend.rs` chooses the type of the backend.

pub mod cli;
pub mod data;
pub mod digest;
pub mod error;
pub mod loader;
pub mod log;
pub mod model;
pub mod renderer;
pub mod train;

pub use error::Error;
