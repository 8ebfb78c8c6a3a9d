//! Gives the crate a number that changes with its sources.
//!
//! CubeCL can keep compiled kernels from run to run, and knows them by their names and constants, not by what is in them. A
//! kernel that was compiled from other sources would be taken for this version's, and write another format or other bits. So
//! the number is one of each kernel's constants.

use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    let mut files = Vec::new();
    collect(Path::new("src"), &mut files)?;
    // Folders are listed in any order.
    files.sort();
    // FNV-1a, of 32 bits.
    let mut hash = 0x811c_9dc5u32;
    for file in files {
        for byte in std::fs::read(file)? {
            hash = (hash ^ byte as u32).wrapping_mul(0x0100_0193);
        }
    }
    println!("cargo::rustc-env=LCT_KERNELS_REVISION={hash}");
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
