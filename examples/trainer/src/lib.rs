//! What the example trainings share, written as any program on Burn is: generic over the backend.
//!
//! A program brings a model and its text as a [`Task`](train::Task). [`backend`] chooses the backend's type, and that and
//! [`differentiable`] are the only places where particular backends are named.

pub mod backend;
pub mod checkpoint;
pub mod cli;
pub mod compare;
pub mod data;
pub mod differentiable;
pub mod digest;
pub mod error;
pub mod losses;
pub mod memory;
pub mod optim;
pub mod place;
pub mod program;
pub mod progress;
pub mod report;
pub mod rng;
pub mod schedule;
pub mod timeline;
pub mod tokenizer;
pub mod train;

pub use error::Error;
