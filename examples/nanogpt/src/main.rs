//! The program: reads the command line, trains, prints what came out.

use clap::Parser;
use nanogpt::{
    Error,
    cli::{Cli, Command, TrainArgs},
    devices::Together,
    train::Plan,
};
use std::process::ExitCode;
use trainer::{backend, program};

fn main() -> ExitCode {
    program::exit_code(match Cli::parse().command {
        Command::Train(args) => train(*args),
        Command::Compare(args) => program::compare(&args),
    })
}

fn train(args: TrainArgs) -> Result<ExitCode, Error> {
    let plan = Plan::new(args)?;
    let report = match plan.args().strategy() {
        Some(strategy) => backend::run(&Together::new(&plan, strategy))?,
        None => backend::run(&plan)?,
    };
    program::conclude(&report, &plan.args().run)
}
