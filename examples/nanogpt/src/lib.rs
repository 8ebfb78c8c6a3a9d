//! A small GPT trained on real text, written as any program on Burn is: generic over the backend.
//!
//! Nothing in this library knows of a particular backend. What it shares with the other example trainings, the choice of
//! the backend included, is in `trainer`.

pub mod capture;
pub mod cli;
pub mod devices;
pub mod generate;
pub mod model;
mod nothing;
pub mod observe;
pub mod preset;
pub mod train;

pub use trainer::{
    Error, checkpoint, compare, data, digest, memory, optim, report, schedule, timeline, tokenizer,
};
