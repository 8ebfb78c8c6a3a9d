//! Every way in which the library can fail is made to happen by some test: each variant of its error types is named in one.

use std::fs;
use std::path::{Path, PathBuf};

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

/// What no test can make happen, and why.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "InspectError::Coding",
    "needs a tensor beyond what one packed form holds, or a codec that loses bits",
)];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The part of a source file that only tests are built from.
fn test_part(path: &Path, text: &str) -> String {
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name == "tests.rs");
    let begin = ["#[cfg(test)]\nmod", "#[cfg(all(test"]
        .iter()
        .filter_map(|begin| text.find(begin))
        .min();
    match begin {
        _ if is_test => text.to_owned(),
        Some(begin) => text[begin..].to_owned(),
        None => String::new(),
    }
}

/// The variants of the enum whose block this is.
fn variants(block: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = block;
    while let Some(end) = common::at_depth_zero(rest, &[',', '{']).or(Some(rest.len())) {
        let mut close = end;
        if rest[end..].starts_with('{') {
            close = end + 1 + common::closing(&rest[end + 1..]);
        }
        // Attributes are in brackets, payloads in parentheses.
        let mut depth = 0;
        let plain: String = rest[..end]
            .chars()
            .filter(|c| {
                depth += i32::from(matches!(c, '(' | '['));
                let outside = depth == 0;
                depth -= i32::from(matches!(c, ')' | ']'));
                outside
            })
            .collect();
        let name: String = plain.chars().filter(|c| c.is_alphanumeric()).collect();
        if !name.is_empty() {
            names.push(name);
        }
        match rest.get(close + 1..) {
            Some(next) if !next.is_empty() => rest = next,
            _ => break,
        }
    }
    names
}

#[test]
fn every_error_is_produced_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "cube_kernels/src", "cube_kernels/tests"] {
        sources(&root.join(folder), &mut files);
    }
    let this = Path::new(file!()).file_name();
    files.retain(|path| path.file_name() != this);
    let texts: Vec<(PathBuf, String)> = files
        .into_iter()
        .map(|path| {
            let text = common::read(&path);
            (path, text)
        })
        .collect();
    let tests: String = texts
        .iter()
        .map(|(path, text)| test_part(path, text))
        .collect();
    let words: std::collections::HashSet<&str> = tests
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let enums = [
        "ConfigError",
        "PackError",
        "InspectError",
        "CodingError",
        "CodecError",
        "VerifyError",
        "LaunchError",
    ];
    let (mut count, mut missing) = (0, Vec::new());
    for name in enums {
        let header = format!("pub enum {name} ");
        let (_, text) = texts
            .iter()
            .find(|(_, text)| text.contains(&header))
            .unwrap_or_else(|| panic!("{name} is gone"));
        for variant in variants(&common::block(text, &header)) {
            count += 1;
            let full = format!("{name}::{variant}");
            let is_exception = EXCEPTIONS.iter().any(|(exception, _)| *exception == full);
            if !words.contains(variant.as_str()) && !is_exception {
                missing.push(full);
            }
        }
    }
    assert!(count > 40, "only {count} variants were found");
    assert!(missing.is_empty(), "no test produces {missing:?}");
}
