//! `lct`: what losslessly compressed tensors do to your data, without a GPU.

mod cli;
mod progress;
mod table;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use burn_lct::inspect::{InspectError, Report, TensorFile};
use clap::Parser;

use cli::{Cli, Command, InspectArgs};
use progress::Progress;

/// Exit code when a tensor could not be coded or did not come back: a fault of this program, not of the file.
const FAULT: u8 = 3;

fn main() -> ExitCode {
    let Command::Inspect(args) = Cli::parse().command;
    let report = match inspect(&args) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: {error}");
            return match error {
                InspectError::Coding { .. } => ExitCode::from(FAULT),
                _ => ExitCode::FAILURE,
            };
        }
    };
    match print(&report, &args) {
        // Whoever reads has read enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write the report: {error}; check where the output goes");
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn inspect(args: &InspectArgs) -> Result<Report, InspectError> {
    // All are opened before the first is worked on: a misspelt name is told at once.
    let files: Vec<TensorFile> = args
        .files
        .iter()
        .map(|path| TensorFile::open(path))
        .collect::<Result<_, _>>()?;
    let progress = Progress::new(files.iter().map(TensorFile::bytes).sum());
    let mut tensors = Vec::new();
    for file in &files {
        for tensor in file.tensors(args.profiles()) {
            let tensor = tensor?;
            progress.done(&tensor);
            tensors.push(tensor);
        }
    }
    Ok(Report::new(tensors))
}

fn print(report: &Report, args: &InspectArgs) -> io::Result<()> {
    let text = if args.json {
        serde_json::to_string_pretty(report)?
    } else {
        table::render(report, args.profiles(), args.by_kind)
    };
    writeln!(io::stdout(), "{text}")
}
