//! See `values` in the checks.
#![no_main]

#[path = "../../cube_kernels/tests/common/checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::values(data));
