//! Reads the lists of methods of Burn's traits from the sources of the `burn-backend` that cargo
//! resolved.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The methods that a trait of `burn-backend` declares, required and defaulted.
///
/// `header` is how the declaration begins and `file` where it stands below the crate's `src`.
pub fn declared(header: &str, file: &str) -> BTreeSet<String> {
    let source = read(&burn_backend_sources().join(file));
    methods(&block(&source, header))
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// The functions that stand directly in a trait's or an implementation's block: name and body, which
/// is empty where there is none.
pub fn methods(mut block: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    // `block` always starts outside all nested blocks but the lists of `forward!`, which hold no
    // `fn`: the next one is the next method.
    while let Some(at) = block.find("fn ") {
        let rest = &block[at + "fn ".len()..];
        let name: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let end = at_depth_zero(rest, &['{', ';']).expect("a function has a body or ends");
        let close = match rest.as_bytes()[end] {
            b'{' => end + 1 + closing(&rest[end + 1..]),
            _ => end,
        };
        found.push((name, rest[end..close].to_string()));
        block = &rest[close + 1..];
    }
    found
}

/// What stands in the braces after `header`, without comments.
pub fn block(source: &str, header: &str) -> String {
    let code: Vec<&str> = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let start = code
        .find(header)
        .unwrap_or_else(|| panic!("no `{header}` in the source"));
    let open = start + code[start..].find('{').expect("a block follows its header") + 1;
    code[open..open + closing(&code[open..])].to_string()
}

/// Where the brace that opened before `text` closes.
pub fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("unbalanced braces");
}

/// Where one of `wanted` first stands outside all parentheses and brackets.
pub fn at_depth_zero(text: &str, wanted: &[char]) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ if depth == 0 && wanted.contains(&c) => return Some(at),
            _ => {}
        }
    }
    None
}

/// The text of a source file.
pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The `src` folder of the `burn-backend` that this workspace is built with.
fn burn_backend_sources() -> PathBuf {
    // Without a platform cargo wants the packages of all of them, which need not be there.
    let host = String::from_utf8(cargo(&["-vV"]).stdout).expect("cargo's version is text");
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("cargo names its host");
    let output = cargo(&[
        "metadata",
        "--offline",
        "--format-version=1",
        "--filter-platform",
        host,
    ]);
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo's metadata is JSON");
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "burn-backend")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("burn-backend is a dependency");
    Path::new(manifest).with_file_name("src")
}

fn cargo(arguments: &[&str]) -> Output {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo {arguments:?} failed; if it lacks a package, run `cargo fetch` first:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
