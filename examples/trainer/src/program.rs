//! What the programs do around a training.

use crate::{
    Error,
    cli::{CompareArgs, RunArgs},
    compare::Comparison,
    memory,
    report::Report,
    timeline::{self, Panel},
};
use std::process::ExitCode;

/// The exit code of an outcome; an error is told.
pub fn exit_code(outcome: Result<ExitCode, Error>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Says whether two reports agree, and draws both runs if that is asked for.
///
/// # Errors
/// A file that is no report, or a picture that cannot be drawn.
pub fn compare(args: &CompareArgs) -> Result<ExitCode, Error> {
    let CompareArgs { a, b, timeline } = args;
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

/// Prints what a training found out, and writes the files that were asked for.
///
/// # Errors
/// A file that cannot be written.
pub fn conclude(report: &Report, args: &RunArgs) -> Result<ExitCode, Error> {
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
    if let Some(path) = &args.report {
        report.save(path)?;
    }
    if let (Some(file), Some(panel)) = (&args.timeline, Panel::new(report)) {
        timeline::draw(&[panel], file)?;
    }
    Ok(ExitCode::SUCCESS)
}
