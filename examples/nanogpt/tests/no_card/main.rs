//! Trainings for a card without one: `scripts/no-card/run` lets the program run without its computing anything.

mod cards;
mod plans;
mod short;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nanogpt::report::Report;

/// A folder for one test's files.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("no-card")
        .join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Settings of the compression in a test's folder, as arguments.
fn config(folder: &Path, json: &str) -> [String; 2] {
    let path = folder.join("config.json");
    fs::write(&path, json).unwrap();
    ["--lct-config".into(), path.to_str().unwrap().into()]
}

/// What a training told, with burn-fusion's plans, and its report; or what it told alone, if it failed.
fn train(folder: &Path, backend: &str, more: &[&str]) -> Result<(String, Report), String> {
    let report = folder.join(format!("{backend}.json"));
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/no-card/run");
    let output = Command::new(run)
        .arg(env!("CARGO_BIN_EXE_nanogpt"))
        .args(["train", "--quiet", "--device", "cuda"])
        .args(["--eval-batches", "1", "--sample-tokens", "0"])
        .args(["--backend", backend, "--report"])
        .arg(&report)
        .arg("--cache-dir")
        .arg(folder.join("cache"))
        .args(more)
        .env("CARGO_TARGET_DIR", folder)
        .env("BURN_FUSION_LOG", "full")
        // Most trainings use the first one only.
        .env("NO_CARD_CARDS", "2")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = told + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(told);
    }
    Ok((told, Report::load(&report).unwrap()))
}

/// A training that must not fail.
fn trained(folder: &Path, backend: &str, more: &[&str]) -> (String, Report) {
    train(folder, backend, more).unwrap_or_else(|told| {
        let end: Vec<&str> = told.lines().rev().take(40).collect();
        panic!("{backend}: {end:#?}")
    })
}
