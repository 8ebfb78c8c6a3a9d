//! Replays what the fuzzers found: a corpus that reaches every part of the codec, and whatever ever failed.

#[path = "common/checks.rs"]
mod checks;

use std::fs;
use std::path::Path;

#[test]
fn every_input_of_the_fuzzers_still_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (target, check) in checks::TARGETS {
        let mut inputs: Vec<_> = fs::read_dir(corpus.join(target))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{target} has no inputs");
        for input in inputs {
            println!("{}", input.display());
            check(&fs::read(&input).unwrap());
        }
    }
}
