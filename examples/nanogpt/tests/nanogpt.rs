//! The program's promises, on the CPU backend.

use burn::{
    backend::{Autodiff, Flex, flex::FlexDevice},
    module::Module,
    tensor::{DType, Int, Tensor, TensorData, backend::Backend, set_default_dtypes},
};
use clap::Parser;
use nanogpt::{
    Error,
    cli::{BackendKind, Cli, Command, DeviceKind, RunArgs, TrainArgs},
    compare::Comparison,
    memory::{Probe, Usage},
    model::GptConfig,
    optim::{MathKind, OptimKind},
    preset::Preset,
    report::{Card, Report},
    schedule::Schedule,
    tokenizer::Tokenizer,
    train::Plan,
};
use safetensors::{Dtype, SafeTensors};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use trainer::train::Task;

type B = Autodiff<Flex>;

/// Flex has one random generator for the whole process, so tests that draw weights take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // Fails from the second test on, when it is set already.
    let _ = set_default_dtypes::<Flex>(&FlexDevice, DType::BF16, DType::I32);
    guard
}

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nanogpt-{name}"));
    if path.exists() {
        fs::remove_dir_all(&path).unwrap();
    }
    fs::create_dir_all(&path).unwrap();
    path
}

fn parse(words: &[&str]) -> TrainArgs {
    let line = ["nanogpt", "train"].iter().chain(words);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Train(args) => *args,
        Command::Compare { .. } => panic!("train was parsed as compare"),
    }
}

fn micro() -> GptConfig {
    GptConfig::new(300, 16, 32, 2, 2)
}

/// Settings of a run of six steps of [`micro`] on the start of the novel.
fn micro_args(folder: &Path, optim: OptimKind) -> TrainArgs {
    let corpus = folder.join("corpus.txt");
    let novel = fs::read_to_string(&Preset::Tiny.corpus_files()[0]).unwrap();
    fs::write(&corpus, novel.chars().take(40_000).collect::<String>()).unwrap();
    let args = TrainArgs {
        sample_tokens: 4,
        ..parse(&[])
    };
    with(args, |run| {
        run.steps = 6;
        run.batch = Some(2);
        run.optim = optim;
        run.corpus = Some(corpus);
        run.cache_dir = folder.join("cache");
        run.eval_every = 3;
        run.quiet = true;
    })
}

/// The same settings but for some that every training has.
fn with(mut args: TrainArgs, change: impl FnOnce(&mut RunArgs)) -> TrainArgs {
    change(&mut args.run);
    args
}

fn run(args: TrainArgs, until: Option<usize>) -> Result<Report, Error> {
    Plan::with_model(args, micro(), 300)?.train::<B>(
        &FlexDevice,
        &Probe::none(),
        Card::default(),
        until,
    )
}

#[test]
fn the_largest_preset_has_163_million_parameters() {
    let model = Preset::Gpt2.model();
    assert_eq!(model.parameters(), 163_109_376);
    assert_eq!((model.layers, model.heads, model.width), (12, 12, 768));
    assert_eq!((model.context, model.vocabulary), (1024, 50_304));
}

#[test]
fn parameters_are_counted_as_burn_counts_them() {
    let _turn = turn();
    let model = micro().init::<Flex>(&FlexDevice);
    assert_eq!(micro().parameters(), model.num_params());
}

#[test]
fn the_command_line_is_understood() {
    let args = parse(&[]);
    assert_eq!(
        (args.preset, args.run.backend, args.run.device),
        (Preset::Tiny, BackendKind::Lct, DeviceKind::Auto)
    );
    assert_eq!((args.run.steps, args.run.optim), (200, OptimKind::Sgd));

    let line = "--preset gpt2-162m --backend plain --device cuda --steps 12 --seed 3 --batch 4 --optim adamw \
                --report a.json --fusion off --checkpointing balanced";
    let args = parse(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        (args.preset, args.run.steps, args.run.seed, args.run.batch()),
        (Preset::Gpt2, 12, 3, 4)
    );
    assert_eq!(args.run.report.as_deref(), Some(Path::new("a.json")));

    assert!(Cli::try_parse_from(["nanogpt", "train", "--preset", "huge"]).is_err());
    assert!(Cli::try_parse_from(["nanogpt", "compare", "a.json"]).is_err());
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let refused = |words: &[&str]| parse(words).validate().unwrap_err();
    assert!(matches!(
        refused(&["--resume"]),
        Error::MissingFlag {
            flag: "--resume",
            ..
        }
    ));
    assert!(matches!(
        refused(&["--save-every", "5"]),
        Error::MissingFlag {
            flag: "--save-every",
            ..
        }
    ));
    assert!(matches!(
        refused(&["--optim", "adamw", "--math", "f32"]),
        Error::MissingFlag { flag: "--math", .. }
    ));
    assert!(matches!(
        refused(&["--batch", "0"]),
        Error::OutOfRange {
            flag: "--batch",
            ..
        }
    ));
    assert!(matches!(
        refused(&["--lr", "nan"]),
        Error::OutOfRange { flag: "--lr", .. }
    ));
    assert!(matches!(
        refused(&["--capture", "samples"]),
        Error::MissingFlag {
            flag: "--capture",
            ..
        }
    ));
    assert!(matches!(
        refused(&["--capture-steps", "1"]),
        Error::MissingFlag {
            flag: "--capture-steps",
            ..
        }
    ));
    assert!(matches!(
        refused(&["--devices", "0"]),
        Error::OutOfRange {
            flag: "--devices",
            ..
        }
    ));
    for words in [["--devices", "2"], ["--strategy", "multi"]] {
        let words = [&words[..], &["--checkpoint", "folder"]].concat();
        assert!(matches!(
            refused(&words),
            Error::OneDevice {
                flag: "--checkpoint"
            }
        ));
    }
    assert!(matches!(
        refused(&["--devices", "2", "--accumulate", "2"]),
        Error::OneDevice {
            flag: "--accumulate"
        }
    ));
    assert!(matches!(
        refused(&["--capture", "samples", "--capture-steps", "1,201"]),
        Error::OutOfRange {
            flag: "--capture-steps",
            ..
        }
    ));
}

#[test]
fn the_learning_rate_warms_up_and_falls() {
    let rate = |step| Schedule::Cosine.rate(1.0, step, 200);
    assert!(rate(0) < rate(10) && rate(10) < rate(19));
    assert_eq!(rate(20), 1.0);
    assert!(rate(199) < 0.11 && rate(199) >= 0.1);
    assert_eq!(Schedule::Constant.rate(1.0, 199, 200), 1.0);
}

#[test]
fn a_token_does_not_change_what_comes_before_it() {
    let _turn = turn();
    let device = FlexDevice;
    Flex::seed(&device, 1);
    let model = micro().init::<Flex>(&device);
    let logits = |ids: Vec<i32>| {
        let tokens = Tensor::<Flex, 2, Int>::from_data(TensorData::new(ids, [1, 16]), &device);
        model.forward(tokens)
    };
    let changed = 9;
    let ids: Vec<i32> = (0..16).map(|i| i * 7 % 300).collect();
    let mut other = ids.clone();
    other[changed] = 299;
    let (a, b) = (logits(ids), logits(other));

    let before = |logits: &Tensor<Flex, 3>| logits.clone().narrow(1, 0, changed).into_data();
    let after =
        |logits: &Tensor<Flex, 3>| logits.clone().narrow(1, changed, 16 - changed).into_data();
    assert_eq!(before(&a), before(&b));
    assert_ne!(after(&a), after(&b));
    assert_eq!(a.dtype(), DType::BF16);
}

#[test]
fn text_survives_the_tokenizer() {
    let folder = folder("tokenizer");
    let text = "Call me Ishmael. Some years ago—never mind how long\n precisely—\n\n";
    let learned = Tokenizer::cached(text, "x", 280, &folder).unwrap();
    let cached = Tokenizer::cached("", "x", 280, &folder).unwrap();
    let ids = learned.encode(text).unwrap();
    assert_eq!(ids, cached.encode(text).unwrap());
    assert_eq!(cached.decode(&ids).unwrap(), text);
    assert!(ids.len() < text.len() && learned.len() <= 280);
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let _turn = turn();
    let folder = folder("seed");
    let args = micro_args(&folder, OptimKind::Sgd);
    let first = run(args.clone(), None).unwrap();
    let again = run(args.clone(), None).unwrap();
    assert!(Comparison::of(&first, &again).equal());
    assert_eq!(first.sample, again.sample);
    assert_eq!(first.steps.len(), 6);
    assert_eq!(first.validation.len(), 2);

    let other = run(with(args, |run| run.seed = 2), None).unwrap();
    let comparison = Comparison::of(&first, &other);
    assert!(!comparison.weights_equal && !comparison.state_equal && !comparison.equal());
    assert_eq!(comparison.first_difference.map(|(step, ..)| step), Some(1));
}

#[test]
fn the_precision_of_a_step_is_that_of_the_command_line() {
    let _turn = turn();
    let folder = folder("math");
    let trained = |optim, math| {
        let args = with(micro_args(&folder, optim), |run| run.math = math);
        run(args, None).unwrap().weights_digest
    };
    for (burn, ours) in [
        (OptimKind::Sgd, OptimKind::LctSgd),
        (OptimKind::AdamW, OptimKind::LctAdamW),
    ] {
        let exact = trained(ours, MathKind::Bf16);
        let nearest = trained(ours, MathKind::F32);
        let stochastic = trained(ours, MathKind::Stochastic);
        assert_eq!(exact, trained(burn, MathKind::Bf16));
        let kinds = BTreeSet::from([&exact, &nearest, &stochastic]);
        assert_eq!(kinds.len(), 3, "each precision has its own weights");
        assert_eq!(stochastic, trained(ours, MathKind::Stochastic));
    }
}

fn resumed_equals_uninterrupted(name: &str, optim: OptimKind) {
    let _turn = turn();
    let folder = folder(name);
    let whole = run(micro_args(&folder, optim), None).unwrap();

    let args = with(micro_args(&folder, optim), |run| {
        run.checkpoint = Some(folder.join("checkpoints"));
        run.save_every = 1;
    });
    run(args.clone(), Some(3)).unwrap();
    let resumed = run(with(args, |run| run.resume = true), None).unwrap();

    assert_eq!(resumed.resumed_from, 3);
    assert_eq!(resumed.steps.len(), 3);
    let comparison = Comparison::of(&whole, &resumed);
    assert!(comparison.equal(), "{comparison}");

    // Two checkpoints are kept, and the report survives its file.
    assert_eq!(fs::read_dir(folder.join("checkpoints")).unwrap().count(), 2);
    let file = folder.join("report.json");
    whole.save(&file).unwrap();
    assert!(Comparison::of(&whole, &Report::load(&file).unwrap()).equal());
}

#[test]
fn a_resumed_run_equals_the_uninterrupted_one_with_sgd() {
    resumed_equals_uninterrupted("resume-sgd", OptimKind::Sgd);
}

#[test]
fn a_resumed_run_equals_the_uninterrupted_one_with_adamw() {
    resumed_equals_uninterrupted("resume-adamw", OptimKind::AdamW);
}

#[test]
fn bad_checkpoints_are_refused() {
    let _turn = turn();
    let folder = folder("bad-checkpoint");
    let checkpoints = folder.join("checkpoints");
    let args = TrainArgs {
        sample_tokens: 0,
        ..micro_args(&folder, OptimKind::LctSgd)
    };
    let args = with(args, |run| {
        run.checkpoint = Some(checkpoints.clone());
        run.steps = 1;
    });
    let resume = with(args.clone(), |run| run.resume = true);

    let missing = run(resume.clone(), None).unwrap_err();
    assert!(
        matches!(&missing, Error::NoCheckpoint { dir } if *dir == checkpoints),
        "{missing}"
    );

    run(args.clone(), None).unwrap();
    let foreign = run(with(resume.clone(), |run| run.lr = Some(0.25)), None).unwrap_err();
    assert!(
        matches!(&foreign, Error::ForeignCheckpoint { field, .. } if field == "lr"),
        "{foreign}"
    );
    let foreign = with(resume.clone(), |run| run.math = MathKind::F32);
    let foreign = run(foreign, None).unwrap_err();
    assert!(
        matches!(&foreign, Error::ForeignCheckpoint { field, .. } if field == "math"),
        "{foreign}"
    );
    let plain = run(resume.clone(), None).unwrap();
    assert_eq!(plain.steps.len(), 0);

    let model = checkpoints.join("step-00000001").join("model.bin");
    let whole = fs::read(&model).unwrap();
    let middle = whole.len() / 2;
    let flip = |at: usize| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x80;
        flipped
    };
    // The lengths and shapes at the start, a value, and the end missing.
    let flips = (0..64).chain([middle]).map(flip);
    for damaged in flips.chain([whole[..middle].to_vec()]) {
        fs::write(&model, &damaged).unwrap();
        let error = run(resume.clone(), None).unwrap_err();
        assert!(matches!(&error, Error::DamagedCheckpoint { .. }), "{error}");
    }
}

#[test]
fn a_timeline_needs_something_to_read_and_a_step_to_watch() {
    let _turn = turn();
    let folder = folder("timeline");
    let args = with(micro_args(&folder, OptimKind::Sgd), |run| {
        run.timeline = Some(folder.join("step.svg"));
    });
    let error = run(args.clone(), None).unwrap_err();
    assert!(matches!(error, Error::NoAllocator), "{error}");

    let probe = Probe {
        usage: Arc::new(|| Some(Usage::default())),
        ..Probe::none()
    };
    let watch = |args: &TrainArgs, until| {
        let plan = Plan::with_model(args.clone(), micro(), 300)?;
        plan.train::<B>(&FlexDevice, &probe, Card::default(), Some(until))
    };
    let error = watch(&args, 0).unwrap_err();
    assert!(matches!(error, Error::NoStepLeft { steps: 6 }), "{error}");

    // The last step that is watched anyway, or else the last.
    for (memory_every, until, step) in [(10, 5, 3), (4, 5, 4), (0, 2, 2)] {
        let args = with(args.clone(), |run| run.memory_every = memory_every);
        let timeline = watch(&args, until).unwrap().timeline.unwrap();
        assert_eq!(timeline.step, step);
    }
    let args = with(args, |run| run.timeline = None);
    assert!(watch(&args, 1).unwrap().timeline.is_none());
}

#[test]
fn a_corpus_that_cannot_be_used_is_named() {
    let folder = folder("corpus");
    let missing = folder.join("missing.txt");
    let short = folder.join("short.txt");
    fs::write(&short, "too short").unwrap();
    let open = |corpus: &Path| {
        let args = with(micro_args(&folder, OptimKind::Sgd), |run| {
            run.corpus = Some(corpus.into());
        });
        Plan::with_model(args, micro(), 300).err().unwrap()
    };
    let error = open(&missing);
    assert!(
        matches!(&error, Error::Corpus { path, .. } if *path == missing),
        "{error}"
    );
    let error = open(&short);
    assert!(
        matches!(&error, Error::CorpusTooSmall { needed: 17, .. }),
        "{error}"
    );
}

/// The tiny preset's first steps, without what a capture does not need.
fn tiny_args(folder: &Path, steps: usize, optim: OptimKind) -> TrainArgs {
    let args = TrainArgs {
        sample_tokens: 0,
        ..parse(&["--preset", "tiny"])
    };
    with(args, |run| {
        run.steps = steps;
        run.optim = optim;
        run.cache_dir = folder.join("cache");
        run.eval_batches = 1;
        run.quiet = true;
    })
}

fn train(args: TrainArgs) -> Report {
    let plan = Plan::new(args).unwrap();
    plan.train::<B>(&FlexDevice, &Probe::none(), Card::default(), None)
        .unwrap()
}

/// The values of a sample, all of them BF16.
fn sample(samples: &SafeTensors, name: &str) -> Vec<f32> {
    let tensor = samples.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::BF16);
    let (values, _) = tensor.data().as_chunks::<2>();
    values
        .iter()
        .map(|&bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
        .collect()
}

#[test]
fn samples_of_every_kind_are_captured_and_the_training_stays_the_same() {
    let _turn = turn();
    let folder = folder("capture");
    let dir = folder.join("samples");
    let plain = tiny_args(&folder, 3, OptimKind::AdamW);
    let capturing = TrainArgs {
        capture: Some(dir.clone()),
        capture_steps: vec![1, 3],
        capture_values: 4096,
        ..plain.clone()
    };
    let comparison = Comparison::of(&train(plain), &train(capturing));
    assert!(comparison.equal(), "{comparison}");

    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    assert!(dir.join("step-000001.safetensors").is_file());
    let bytes = fs::read(dir.join("step-000003.safetensors")).unwrap();
    let samples = SafeTensors::deserialize(&bytes).unwrap();

    let activations =
        "residual ln_out q k v scores probs attn_out gelu_in gelu_out logits log_softmax";
    let mut kinds: BTreeSet<String> = activations
        .split(' ')
        .flat_map(|kind| [kind.to_owned(), format!("grad:{kind}")])
        .collect();
    kinds.extend(["weights", "gradients", "moment_1", "moment_2"].map(str::to_owned));
    let found = samples.names().into_iter();
    let found = found.filter_map(|name| Some(name.split_once('/')?.0.to_owned()));
    assert_eq!(found.collect::<BTreeSet<String>>(), kinds);

    for (name, count) in [
        ("weights/token.weight", 4096),
        ("gradients/blocks.0.attention.qkv.weight", 4096),
        ("moment_2/norm.gamma", 64),
        ("residual/embedding", 4096),
        ("ln_out/blocks.1.mlp_norm", 4096),
        ("grad:scores/blocks.1.attention", 4096),
    ] {
        let values = sample(&samples, name);
        assert_eq!(values.len(), count, "{name}");
        assert!(values.iter().any(|&value| value != 0.0), "{name}");
    }
    let probs = sample(&samples, "probs/blocks.0.attention");
    assert!(probs.iter().all(|value| (0.0..=1.0).contains(value)));

    // The loss is the mean over 512 tokens of the target's negative log probability, and 4096 values are 8 rows.
    let gradient = sample(&samples, "grad:log_softmax/loss");
    let (targets, others): (Vec<f32>, Vec<f32>) =
        gradient.into_iter().partition(|&value| value != 0.0);
    assert_eq!(targets, [-1.0 / 512.0; 8]);
    assert_eq!(others.len(), 4096 - 8);
}

#[test]
fn momentum_is_captured_too() {
    let _turn = turn();
    let folder = folder("capture-momentum");
    train(TrainArgs {
        capture: Some(folder.join("samples")),
        capture_steps: vec![1],
        ..tiny_args(&folder, 1, OptimKind::Sgd)
    });
    let bytes = fs::read(folder.join("samples/step-000001.safetensors")).unwrap();
    let samples = SafeTensors::deserialize(&bytes).unwrap();
    let momentum = sample(&samples, "momentum/head.weight");
    assert_eq!(momentum.len(), 64 * 512);
    assert!(momentum.iter().any(|&value| value != 0.0));
}
