//! A small GPT trained on real text, written as any program on Burn is: generic over the backend.
//!
//! Nothing in this library knows of a particular backend. The program's `backend.rs` chooses the type, and that is
//! the only place where losslessly compressed tensors are mentioned.

pub mod capture;
pub mod checkpoint;
pub mod cli;
pub mod compare;
pub mod data;
pub mod devices;
pub mod digest;
pub mod error;
pub mod generate;
pub mod memory;
pub mod model;
pub mod observe;
pub mod optim;
pub mod preset;
pub mod progress;
pub mod report;
pub mod rng;
pub mod schedule;
pub mod timeline;
pub mod tokenizer;
pub mod train;

pub use error::Error;
