//! What a program can name is what the lists beside this say, so that nobody breaks it unawares.
//!
//! After a change that is meant: `UPDATE_API=1 cargo test --manifest-path api/Cargo.toml`, and say it in CHANGELOG.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's packages that others depend on, with the features that have items of their own.
const PACKAGES: [(&str, &str); 2] = [("lct-kernels", "cube"), ("burn-lct", "wgpu,train")];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What rustdoc knows of a package.
fn described(package: &str, features: &str) -> PathBuf {
    let root = here().join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let status = Command::new(env!("CARGO"))
        .current_dir(&root)
        .args(["rustdoc", "--locked", "--release", "--lib", "-p", package])
        .args(["--features", features, "--target-dir"])
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format", "json"])
        .args(["--cap-lints", "allow"])
        .env("RUSTDOC", here().join("rustdoc"))
        .status()
        .unwrap();
    assert!(status.success(), "rustdoc fails on {package}");
    target.join(format!("doc/{}.json", package.replace('-', "_")))
}

#[test]
fn the_public_items_are_those_on_record() {
    let mut changed = String::new();
    for (package, features) in PACKAGES {
        let items = public_api::Builder::from_rustdoc_json(described(package, features))
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build()
            .unwrap()
            .to_string();
        let record = here().join(format!("{package}.txt"));
        if std::env::var_os("UPDATE_API").is_some() {
            fs::write(&record, &items).unwrap();
        }
        let recorded = fs::read_to_string(&record).unwrap();
        let (new, old): (BTreeSet<_>, BTreeSet<_>) =
            (items.lines().collect(), recorded.lines().collect());
        for (sign, from, other) in [('+', &new, &old), ('-', &old, &new)] {
            for line in from.difference(other) {
                changed += &format!("{sign} {line}\n");
            }
        }
    }
    assert!(
        changed.is_empty(),
        "the public items changed; if that is meant, see api/tests/unchanged.rs:\n{changed}"
    );
}
