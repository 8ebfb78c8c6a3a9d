//! The program: reads the command line, chooses the backend, prints what came out.

mod backend;

use clap::Parser;
use nanogpt::{
    Error,
    cli::{Cli, Command, TrainArgs},
    compare::Comparison,
    memory,
    timeline::{self, Panel},
    train::Plan,
};
use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Train(args) => train(*args),
        Command::Compare { a, b, timeline } => compare(&a, &b, timeline.as_deref()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn compare(a: &Path, b: &Path, timeline: Option<&Path>) -> Result<ExitCode, Error> {
    let comparison = Comparison::of_files(a, b)?;
    println!("{comparison}");
    if let Some(file) = timeline {
        timeline::draw(&[Panel::of_file(a)?, Panel::of_file(b)?], file)?;
    }
    Ok(if comparison.equal() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn train(args: TrainArgs) -> Result<ExitCode, Error> {
    let plan = Plan::new(args)?;
    let report = backend::run(&plan)?;

    if let Some(step) = report.steps.last() {
        println!("loss after step {}: {:.4}", step.step, step.loss);
    }
    if let Some(validation) = report.validation.last() {
        println!("validation loss: {:.4}", validation.loss);
    }
    if let Some(ms) = report.median_step_ms() {
        println!(
            "median step: {ms:.1} ms on {}",
            report.card.name.as_deref().unwrap_or(&report.card.device)
        );
    }
    if let (Some(in_use), Some(reserved)) = (report.peak_bytes_in_use, report.peak_bytes_reserved) {
        println!(
            "peak memory: {} in use, {} reserved",
            memory::human(in_use),
            memory::human(reserved)
        );
    }
    if let Some(summary) = &report.memory_summary {
        println!("{summary}");
    }
    println!("weights digest: {}", report.weights_digest);
    println!("state digest:   {}", report.state_digest);
    if !report.sample.is_empty() {
        println!("sample: {}", report.sample);
    }
    if let Some(path) = &plan.args().report {
        report.save(path)?;
    }
    if let (Some(file), Some(panel)) = (&plan.args().timeline, Panel::new(&report)) {
        timeline::draw(&[panel], file)?;
    }
    Ok(ExitCode::SUCCESS)
}
