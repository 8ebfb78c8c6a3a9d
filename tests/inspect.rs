//! `lct inspect`, by the library and by the program.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn_lct::Profile;
use burn_lct::inspect::{InspectError, Outcome, PassedThrough, Report, TensorFile};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::Value;

/// Values with the exponents that trained weights have: a sum of uniforms is near enough to a normal distribution.
fn weights(len: usize) -> Vec<f32> {
    let mut state = 0x2545_f491u32;
    let mut uniform = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    (0..len)
        .map(|_| (0..6).map(|_| uniform() - 0.5).sum::<f32>() * 0.03)
        .collect()
}

/// Every bit pattern once.
fn patterns() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

/// Writes a file with a tensor of each sort.
fn sample(name: &str) -> PathBuf {
    let weights = weights(40_000);
    let in_bf16 = |values: &[f32]| -> Vec<u8> {
        let bits = values.iter().map(|&value| bf16::from_f32(value));
        bits.flat_map(bf16::to_le_bytes).collect()
    };
    let in_f16 = weights.iter().map(|&value| f16::from_f32(value));
    let tensors: [(&str, Dtype, Vec<u8>); 7] = [
        (
            "layers.0.q.weight",
            Dtype::BF16,
            in_bf16(&weights[..20_000]),
        ),
        (
            "layers.1.q.weight",
            Dtype::BF16,
            in_bf16(&weights[20_000..]),
        ),
        (
            "layers.0.k.weight",
            Dtype::F32,
            weights.iter().flat_map(|v| v.to_le_bytes()).collect(),
        ),
        (
            "layers.0.v.weight",
            Dtype::F16,
            in_f16.flat_map(f16::to_le_bytes).collect(),
        ),
        ("noise/every pattern", Dtype::BF16, patterns()),
        ("ids", Dtype::I64, vec![0; 80]),
        ("nothing", Dtype::BF16, Vec::new()),
    ];
    let views = tensors.iter().map(|(name, dtype, bytes)| {
        let shape = vec![8 * bytes.len() / dtype.bitsize()];
        (*name, TensorView::new(*dtype, shape, bytes).unwrap())
    });
    let path = folder().join(name);
    serialize_to_file(views, None, &path).unwrap();
    path
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn report(path: &Path, profiles: &[Profile]) -> Report {
    let file = TensorFile::open(path).unwrap();
    Report::new(file.tensors(profiles).map(Result::unwrap).collect())
}

fn lct(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lct"));
    command.arg("inspect").args(arguments).arg(file);
    command.output().unwrap()
}

#[test]
fn every_sort_of_tensor_is_reported() {
    let report = report(&sample("sorts.safetensors"), &Profile::ALL);
    let tensor = |name: &str| {
        let mut tensors = report.tensors.iter();
        tensors.find(|tensor| tensor.name == name).unwrap()
    };
    for (name, rounded) in [
        ("layers.0.q.weight", false),
        ("layers.0.k.weight", true),
        ("layers.0.v.weight", true),
    ] {
        let tensor = tensor(name);
        let measured = tensor.measured().unwrap();
        assert_eq!(tensor.rounded, rounded, "{name}");
        assert!((2.3..2.8).contains(&measured.entropy), "{measured:?}");
        assert!(
            (measured.entropy..measured.entropy + 0.15).contains(&measured.huffman),
            "{measured:?}"
        );
        assert!(
            measured.profiles.iter().all(|part| part.ratio > 1.25),
            "{measured:?}"
        );
        assert_eq!(measured.worth_it(), Some(true), "{name}");
    }
    let noise = tensor("noise/every pattern").measured().unwrap();
    assert_eq!(noise.entropy, 8.0);
    assert_eq!(noise.worth_it(), Some(false));
    for (name, reason) in [
        ("ids", PassedThrough::Dtype),
        ("nothing", PassedThrough::Empty),
    ] {
        assert_eq!(tensor(name).outcome, Outcome::PassedThrough(reason));
    }

    let kinds: Vec<&str> = report.kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "ids", "k.weight", "noise", "nothing", "q.weight", "v.weight"
        ]
    );
    let queries = &report.kinds[4];
    assert_eq!((queries.tensors, queries.worth_it), (2, 2));
    assert_eq!(queries.measured.as_ref().unwrap().values, 40_000);
    let total = &report.total;
    assert_eq!(
        (total.tensors, total.passed_through, total.worth_it),
        (7, 2, 4)
    );
}

#[test]
fn the_program_prints_the_report_as_json() {
    let path = sample("json.safetensors");
    let output = lct(&["--json"], &path);
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "no progress without a terminal: {output:?}"
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    let expected = serde_json::to_string_pretty(&report(&path, &Profile::ALL)).unwrap();
    assert_eq!(printed.trim_end(), expected);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let first = &printed["total"]["measured"]["profiles"][0];
    assert!(first["bits_per_exponent"].is_f64(), "{first}");
}

#[test]
fn the_program_prints_tensors_or_kinds() {
    let path = sample("table.safetensors");
    let text = |arguments: &[&str]| {
        let output = lct(arguments, &path);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let tensors = text(&["--profile", "clean,high"]);
    for part in [
        "layers.0.q.weight",
        "F32 as BF16",
        "clean ratio",
        "high spill",
        "were rounded",
    ] {
        assert!(tensors.contains(part), "{part}: {tensors}");
    }
    assert!(!tensors.contains("medium"), "{tensors}");
    let kinds = text(&["--by-kind"]);
    assert!(
        kinds.contains("q.weight") && kinds.contains("4 of 5"),
        "{kinds}"
    );
    assert!(!kinds.contains("layers.0"), "{kinds}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let missing = folder().join("missing.safetensors");
    let error = TensorFile::open(&missing).unwrap_err();
    assert!(matches!(error, InspectError::Read { .. }), "{error}");

    let path = sample("cut.safetensors");
    let whole = fs::read(&path).unwrap();
    for length in [0, 4, 100, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = TensorFile::open(&path).unwrap_err();
        assert!(
            matches!(error, InspectError::Format { .. }),
            "{length}: {error}"
        );
    }

    let output = lct(&[], &missing);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("missing.safetensors"), "{message}");
    assert_eq!(lct(&["--profile", "best"], &path).status.code(), Some(2));
}
