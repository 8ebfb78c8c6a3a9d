//! See `config` in the checks.
#![no_main]

#[path = "../../tests/common/config.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::config(data));
