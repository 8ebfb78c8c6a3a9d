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
    let mut hash = 0x811c_9dc5;
    for file in files {
        hash = fnv_1a(hash, file.to_string_lossy().as_bytes());
        hash = fnv_1a(hash, &std::fs::read(file)?);
    }
    println!("cargo::rustc-env=LCT_KERNELS_REVISION={hash}");
    Ok(())
}

/// FNV-1a of 32 bits, continued.
fn fnv_1a(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ byte as u32).wrapping_mul(0x0100_0193)
    })
}

/// Adds the Rust sources of a folder and the folders in it; not what an editor leaves there.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if is_source(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".rs") && !name.starts_with('.')
}
