//! The picture of memory within a step: what is read, recorded and drawn.

use nanogpt::{
    Error,
    memory::{Forms, Moment, Timeline, Usage},
    report::Report,
    timeline::{self, Panel},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const GIB: u64 = 1 << 30;

const LCT: [&str; 4] = [
    "packed",
    "reserve for unread spill",
    "hot window (dense)",
    "kept dense",
];
const PLAIN: [&str; 2] = [
    "weights and optimizer state",
    "activations, gradients and temporaries",
];
const ALLOCATOR: [&str; 2] = [
    "reserved by the allocator",
    "held on the card, says its driver",
];
const MARKS: [&str; 3] = ["forward ends", "backward ends", "optimizer ends"];

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("timeline-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A step of 100 ms whose memory grows to the end of the forward pass and falls after it.
fn timeline(compressed: bool) -> Timeline {
    let moment = |index: u64| {
        let live = (3 + index.min(100 - index) / 10) * GIB;
        let forms = Forms {
            packed: live / 2,
            reserve: live / 16,
            window: live / 4,
            kept_dense: live / 8,
        };
        Moment {
            ms: index as f64,
            usage: Some(Usage {
                in_use: live,
                reserved: 12 * GIB,
                process: 13 * GIB,
            }),
            forms: compressed.then_some(forms),
        }
    };
    Timeline {
        step: 20,
        forward_end_ms: 50.0,
        backward_end_ms: 92.0,
        step_end_ms: 98.0,
        moments: (0..=100).map(moment).collect(),
    }
}

fn report(backend: &str) -> Report {
    Report {
        version: "test".into(),
        args: json!({ "preset": "small", "backend": backend, "batch": 16, "optim": "adamw" }),
        model: Value::Null,
        parameters: 200_000_000,
        dtype: "BF16".into(),
        backend: backend.into(),
        timeline: Some(timeline(backend == "lct")),
        ..Report::default()
    }
}

/// How often each text stands in a picture.
fn count(svg: &str, text: &str) -> usize {
    // Every text is a line of its own.
    let is_text = |line: &&str| line.trim_matches(['\u{a0}', ' ']) == text;
    svg.lines().filter(is_text).count()
}

fn nanogpt(line: &str, files: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanogpt"));
    // The corpus is found from the repository's root.
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    command.args(line.split_whitespace());
    for (flag, file) in files {
        command.arg(flag).arg(file);
    }
    command.output().unwrap()
}

#[test]
fn two_panels_are_drawn_side_by_side() {
    let file = folder("pair").join("pair.svg");
    let panels = ["plain", "lct"].map(|backend| Panel::new(&report(backend)).unwrap());
    timeline::draw(&panels, &file).unwrap();

    let svg = fs::read_to_string(&file).unwrap();
    for title in [
        "small, plain, batch 16: step 20",
        "small, lct, batch 16: step 20",
        "other: int, bool, small, temporaries, rounding",
    ] {
        assert_eq!(count(&svg, title), 1, "{title}");
    }
    for kind in LCT.iter().chain(&PLAIN) {
        assert_eq!(count(&svg, kind), 1, "{kind}");
    }
    let axes = ["ms from the step's start", "GiB"];
    for text in ALLOCATOR.iter().chain(&MARKS) {
        assert_eq!(count(&svg, text), 2, "{text}");
    }
    // An apostrophe is escaped.
    let svg = svg.replace("&apos;", "'").replace("&#39;", "'");
    for text in axes {
        assert_eq!(count(&svg, text), 2, "{text}");
    }
    assert_eq!(svg.matches("<polygon").count(), LCT.len() + 1 + PLAIN.len());
}

#[test]
fn a_timeline_survives_its_report_and_reports_without_one_load() {
    let folder = folder("report");
    let file = folder.join("report.json");
    let mut saved = report("lct");
    // As on a CPU.
    let moments = &mut saved.timeline.as_mut().unwrap().moments;
    moments.iter_mut().for_each(|moment| moment.usage = None);
    for report in [report("plain"), report("lct"), saved] {
        report.save(&file).unwrap();
        assert_eq!(Report::load(&file).unwrap().timeline, report.timeline);
    }

    let mut json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("timeline").unwrap();
    fs::write(&file, json.to_string()).unwrap();
    assert_eq!(Report::load(&file).unwrap().timeline, None);
    let error = Panel::of_file(&file).err().unwrap();
    assert!(
        matches!(&error, Error::NoTimeline { path } if *path == file),
        "{error}"
    );
}

#[test]
fn a_compressed_training_on_a_cpu_shows_its_forms() {
    let folder = folder("cpu");
    let [svg, json, config, pair] =
        ["step.svg", "report.json", "lct.json", "pair.svg"].map(|name| folder.join(name));
    // Small tensors are packed too, and half of what lives is left dense.
    let settings = json!({ "hot_window": { "share": 0.5 }, "min_elements": 1 });
    fs::write(&config, settings.to_string()).unwrap();
    let cache = folder.join("cache");
    let common = "train --device cpu --quiet --steps 4 --batch 2 --eval-batches 1 --sample-tokens 0 --memory-every 0";
    let files = [
        ("--timeline", svg.as_path()),
        ("--report", &json),
        ("--cache-dir", &cache),
    ];
    let lct = [&files[..], &[("--lct-config", config.as_path())]].concat();
    let output = nanogpt(&format!("{common} --backend lct"), &lct);
    assert!(output.status.success(), "{output:?}");

    let report = Report::load(&json).unwrap();
    let timeline = report.timeline.unwrap();
    assert_eq!(timeline.step, 4, "no other step is watched");
    let passes = [
        0.0,
        timeline.forward_end_ms,
        timeline.backward_end_ms,
        timeline.step_end_ms,
    ];
    assert!(passes.is_sorted(), "{passes:?}");
    let moments = &timeline.moments;
    assert!(moments.is_sorted_by(|a, b| a.ms < b.ms));
    assert!(moments.iter().all(|moment| moment.usage.is_none()));

    // Each form is read for itself, so only the peak of each is a bound at every moment.
    let memory = report.memory.unwrap();
    let peak = |name: &str| memory["report"][name].as_u64().unwrap();
    let weights = 2 * report.parameters as u64;
    for forms in moments.iter().map(|moment| moment.forms.unwrap()) {
        assert!(forms.packed <= peak("peak_packed_bytes") + peak("peak_spill_bytes"));
        assert!(forms.reserve <= peak("peak_reserved_bytes"));
        assert!(forms.window <= peak("peak_window_bytes"));
        assert!(forms.kept_dense <= peak("peak_kept_dense_bytes"));
        // Weights and momentum live throughout, and no form of them is half the size.
        let managed = forms.packed + forms.reserve + forms.window + forms.kept_dense;
        assert!(managed > weights, "{forms:?}");
    }
    let packed = |moment: &Moment| moment.forms.unwrap().packed > 0;
    assert!(moments.iter().any(packed));

    let svg = fs::read_to_string(svg).unwrap();
    let drawn = "tiny, lct, batch 2: step 4";
    for text in LCT.iter().chain(&MARKS).chain([&drawn]) {
        assert_eq!(count(&svg, text), 1, "{text}");
    }
    for text in ALLOCATOR.iter().chain(&PLAIN) {
        assert_eq!(count(&svg, text), 0, "{text}");
    }

    let line = format!("compare {0} {0}", json.display());
    let output = nanogpt(&line, &[("--timeline", &pair)]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(count(&fs::read_to_string(&pair).unwrap(), drawn), 2);

    fs::remove_file(&pair).unwrap();
    let plain = [("--timeline", pair.as_path()), ("--cache-dir", &cache)];
    let output = nanogpt(&format!("{common} --backend plain"), &plain);
    assert!(!output.status.success());
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("no allocator to read on a CPU"), "{words}");
    assert!(!pair.exists());
}
