//! Replays what the fuzzer found for configuration files.

#[path = "common/config.rs"]
mod checks;

#[test]
fn every_configuration_of_the_fuzzer_still_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/config");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        checks::config(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 0, "no inputs");
}
