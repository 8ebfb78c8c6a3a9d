//! burn-fusion fuses the same operations with LCT and without, in a training for a card: other kernels could give other bits.
//!
//! There is no card here. `scripts/no-card/run` lets the program run all the same, without its computing anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nanogpt::report::Report;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plans");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// What burn-fusion tells of the plans of some steps, and the report.
fn train(backend: &str, more: &[&str]) -> (String, Report) {
    let folder = folder();
    let report = folder.join("report.json");
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/no-card/run");
    let output = Command::new(run)
        .arg(env!("CARGO_BIN_EXE_nanogpt"))
        .args(["train", "--quiet", "--device", "cuda", "--preset", "tiny"])
        .args([
            "--steps",
            "3",
            "--eval-batches",
            "1",
            "--sample-tokens",
            "0",
        ])
        .args(["--backend", backend, "--report"])
        .arg(&report)
        .arg("--cache-dir")
        .arg(folder.join("cache"))
        .args(more)
        .env("CARGO_TARGET_DIR", &folder)
        .env("BURN_FUSION_LOG", "full")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let end: Vec<&str> = told.lines().rev().take(20).collect();
    assert!(output.status.success(), "{end:#?}");
    let told = told + &String::from_utf8_lossy(&output.stdout);
    (told, Report::load(&report).unwrap())
}

/// The blocks of operations that became one kernel each, with types and shapes.
///
/// A table lists each plan: an operation a line, which begins with its number, and has its block's name where one begins.
/// Tensors' numbers say nothing, and neither do operations that no kernel does. Which of two operations comes first that have
/// nothing to do with one another makes no difference to a kernel, so each block is sorted.
fn fused(told: &str) -> BTreeSet<Vec<String>> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut lines = told.lines();
    while let Some(title) = lines.next() {
        if !title.starts_with("fusion trace") {
            continue;
        }
        let rows = lines.by_ref().skip(2);
        for row in rows.take_while(|row| row.starts_with(|first: char| first.is_ascii_digit())) {
            let words: Vec<&str> = row.split_whitespace().skip(1).collect();
            // "▸ fused ElementWise (score=870, 8 ops) NumericFloat::Mul ..."
            let ends = words.iter().position(|word| word.ends_with(')'));
            let at = ends.filter(|_| words[0] == "▸").map_or(0, |ends| ends + 1);
            if words[0] == "▸" {
                let name = words[1..at]
                    .iter()
                    .take_while(|word| !word.starts_with('('));
                blocks.push(vec![name.copied().collect::<Vec<_>>().join(" ")]);
            }
            let nothing = ["BaseFloat::Reshape", "Drop"];
            if nothing.iter().any(|name| words[at].starts_with(name)) {
                continue;
            }
            // "t17:bf16[64,512]"
            let plain = |word: &&str| match word.split_once(':') {
                Some((tensor, rest)) if tensor.starts_with('t') => rest.to_owned(),
                _ => (*word).to_owned(),
            };
            let operation: Vec<String> = words[at..].iter().map(plain).collect();
            let block = blocks.last_mut().expect("a plan begins with a block");
            block.push(operation.join(" "));
        }
    }
    blocks.iter_mut().for_each(|block| block[1..].sort());
    let is_fused = |block: &Vec<String>| !block[0].starts_with("un-fused");
    blocks.into_iter().filter(is_fused).collect()
}

#[test]
fn plans_are_those_of_plain_burn() {
    let config = folder().join("config.json");
    // Much has to rest, and soon.
    let json = r#"{"hot_window": {"bytes": 2000000}, "min_elements": 1024}"#;
    fs::write(&config, json).unwrap();
    let config = config.to_str().unwrap();

    let (told, report) = train("plain", &[]);
    assert!(report.memory.is_none());
    let plain = fused(&told);
    assert!(plain.len() > 30, "{plain:#?}");
    assert!(plain.iter().any(|block| block.len() > 8));

    let (told, report) = train("lct", &["--lct-config", config]);
    let count = |name: &str| {
        let memory = report.memory.as_ref().unwrap();
        memory["report"][name].as_u64().unwrap()
    };
    assert!(count("encodes") > 100 && count("decodes") > 100);
    assert_eq!(count("failed_encodes"), 0);
    let lct = fused(&told);
    let only = |a: &BTreeSet<Vec<String>>, b: &BTreeSet<Vec<String>>| -> Vec<Vec<String>> {
        a.difference(b).cloned().collect()
    };
    let (missing, other) = (only(&plain, &lct), only(&lct, &plain));
    assert!(
        missing.is_empty() && other.is_empty(),
        "only plain: {missing:#?}, only LCT: {other:#?}"
    );
}
