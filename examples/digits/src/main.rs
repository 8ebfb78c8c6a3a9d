//! The program: reads the command line, chooses the backend, prints what came out.

mod backend;

use clap::Parser;
use digits::cli::Settings;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (outcome, report) = match backend::run(&Settings::parse()) {
        Ok(result) => result,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(last) = outcome.epochs.last() {
        let losses: Vec<String> = last.losses.iter().map(f64::to_string).collect();
        let shown = losses.len().saturating_sub(4);
        println!("epochs trained: {}", outcome.epochs.len());
        println!("last losses: {}", losses[shown..].join(" "));
        println!(
            "validation: loss {}, {:.2} % recognised",
            last.validation_loss, last.validation_accuracy
        );
    }
    println!("weights digest: {}", outcome.weights);
    if let Some(report) = report {
        println!("{report}");
    }
    ExitCode::SUCCESS
}
