//! The CubeCL kernels. A team of 32 units works on a block at a time, one unit on a stream;
//! several teams make a cube, whose first 256 units build the tables together.
//!
//! They work on 32-bit words, as BF16 does not exist on every runtime. Nor do 64-bit integers: only
//! [`bits`] uses them, where they exist.
//! `&&` and `||` evaluate both sides here, so conditions that guard an access are nested.

// CubeCL generates undocumented items for every kernel; nothing in here is public.
#![allow(missing_docs)]
// Kernels have no `is_multiple_of`, and no `div_ceil` without a trait of another crate.
#![allow(clippy::manual_div_ceil, clippy::manual_is_multiple_of)]
// See above: nested conditions guard an access, or are known when the kernel is compiled.
#![allow(clippy::collapsible_if)]
// A kernel's functions take its buffers and constants one by one.
#![allow(clippy::too_many_arguments)]

mod bits;
pub(crate) mod codebook;
pub(crate) mod codes;
pub(crate) mod compare;
pub(crate) mod decode;
pub(crate) mod dense;
pub(crate) mod encode;
mod feed;
pub(crate) mod gelu;
pub(crate) mod geometry;
pub(crate) mod head;
mod huffman;
mod plane;
pub(crate) mod quotient;
mod reader;
pub(crate) mod record;
mod source;
mod stage;
pub(crate) mod step;
pub(crate) mod team;
pub(crate) mod tickets;
pub(crate) mod update;
pub(crate) mod update_block;
pub(crate) mod update_packed;
mod writer;

/// A constant of every kernel that is launched. CubeCL keeps compiled kernels from run to run, and knows them by their names
/// and constants alone: one of other sources must not be taken for this version's. `build.rs` hashes the sources.
pub(crate) const REVISION: u32 = parsed(env!("LCT_KERNELS_REVISION"));

const fn parsed(digits: &str) -> u32 {
    match u32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("the revision is a decimal number of 32 bits"),
    }
}

/// Units in most cubes: one for each exponent.
pub(crate) const UNITS: u32 = 256;

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn sources(folder: &str) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect()
    }

    #[test]
    fn every_kernel_has_the_revision_among_its_constants() {
        let mut kernels = 0;
        for source in sources("src/kernels") {
            for kernel in source.split("\n#[cube(launch").skip(1) {
                let (signature, _) = kernel.split_once("\n) {").unwrap();
                assert!(
                    signature.ends_with("\n    #[comptime] _revision: u32,"),
                    "{signature}"
                );
                kernels += 1;
            }
        }
        let launches: String = sources("src/launch").concat();
        let launches: String = launches.split_whitespace().collect();
        let count = |what| launches.matches(what).count();
        assert_eq!(kernels, 8);
        assert_eq!(count("launch_unchecked::<"), kernels);
        assert_eq!(count(",REVISION,);"), kernels);
    }
}
