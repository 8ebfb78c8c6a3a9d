//! Full fine-tuning of Qwen3, written as any program on Burn is: generic over the backend.
//!
//! Nothing in this library knows of a particular backend. What it shares with the other example trainings, the choice of
//! the backend included, is in `trainer`.

pub mod cli;
pub mod config;
pub mod context;
pub mod model;
pub mod ops;
pub mod released;
pub mod train;
pub mod weights;
