//! The program: reads the command line, trains, prints what came out.

use clap::Parser;
use qwen3::{
    cli::{Cli, Command, TrainArgs},
    context::Context,
    train::Plan,
};
use std::process::ExitCode;
use trainer::{Error, backend, program};

fn main() -> ExitCode {
    program::exit_code(match Cli::parse().command {
        Command::Train(args) => train(*args),
        Command::Context {
            sequences,
            digests,
            args,
        } => context(*args, sequences, digests),
        Command::Compare(args) => program::compare(&args),
    })
}

fn train(args: TrainArgs) -> Result<ExitCode, Error> {
    let plan = Plan::new(args)?;
    program::conclude(&backend::run(&plan)?, &plan.args().run)
}

fn context(args: TrainArgs, sequences: Vec<usize>, digests: bool) -> Result<ExitCode, Error> {
    backend::run(&Context::new(args, sequences, digests)?)?;
    Ok(ExitCode::SUCCESS)
}
