//! Where `unsafe` is, and how often. Clippy denies one without a `SAFETY` comment; this counts them, so that none comes
//! unnoticed.

use std::fs;
use std::path::Path;

/// Files that hold `unsafe`, with the number of their blocks, functions and implementations.
const COUNTED: [(&str, usize); 12] = [
    // A launch without bounds checks: the sizes were checked before.
    ("cube_kernels/src/launch/bind.rs", 1),
    ("cube_kernels/src/launch/compare.rs", 1),
    ("cube_kernels/src/launch/decode.rs", 1),
    ("cube_kernels/src/launch/encode.rs", 2),
    ("cube_kernels/src/launch/gelu.rs", 1),
    ("cube_kernels/src/launch/quotient.rs", 1),
    ("cube_kernels/src/launch/update.rs", 1),
    ("cube_kernels/src/launch/update_packed.rs", 1),
    // Burn's trait is unsafe where tensors are written while others hold them.
    ("src/distributed.rs", 8),
    // A file that is mapped.
    ("src/inspect/file.rs", 1),
    // A read on the stream that a buffer belongs to.
    ("src/store/cube/buffers.rs", 1),
    // How memory is asked for, what the driver says of it, and what it is told to keep.
    ("src/store/pages.rs", 4),
];

fn count(folder: &Path, root: &Path, found: &mut Vec<(String, usize)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or_default());
            let words =
                code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
            let unsafes = words.filter(|&word| word == "unsafe").count();
            if unsafes > 0 {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                found.push((name.to_owned(), unsafes));
            }
        }
    }
}

#[test]
fn every_unsafe_is_counted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["src", "cube_kernels/src"] {
        count(&root.join(folder), root, &mut found);
    }
    found.sort();
    let counted = COUNTED.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(found, counted, "justify the new ones, then count them here");
}
