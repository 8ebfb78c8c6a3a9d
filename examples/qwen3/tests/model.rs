//! The model computes what transformers' does, and its operations what their definitions say: values and gradients, in f32
//! and BF16, plain and compressed.

use burn::{
    backend::{
        Autodiff, Flex, autodiff::checkpoint::strategy::BalancedCheckpointing, flex::FlexDevice,
    },
    module::{Module, ModuleVisitor, Param},
    nn::RmsNormConfig,
    tensor::{
        Bool, DType, Distribution, FloatDType, Int, Tensor, TensorData,
        activation::{log_softmax, silu, softmax},
        backend::{AutodiffBackend, Backend},
    },
};
use burn_lct::{HotWindow, LctBackend, LctConfig};
use clap::Parser;
use qwen3::{
    cli::{Cli, Command},
    config::Qwen3Config,
    model::Qwen3,
    ops,
    train::Plan,
    weights,
};
use safetensors::SafeTensors;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Once,
};
use trainer::{
    compare::Comparison,
    differentiable::Differentiable,
    memory::Probe,
    optim::TrainBackend,
    report::Card,
    train::{LanguageModel, Task},
};

type Plain = Autodiff<Flex>;
type Balanced = Autodiff<Flex, BalancedCheckpointing>;
type Lct = Autodiff<LctBackend<Flex>>;

const DEVICE: FlexDevice = FlexDevice;

/// Everything is packed, with no hot window at all.
fn pack_everything() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1);
        LctBackend::<Flex>::configure(&DEVICE, config).unwrap();
    });
}

/// The largest difference, as a share of the largest expected value.
fn distance(found: &TensorData, expected: &TensorData) -> f64 {
    assert_eq!(found.shape, expected.shape);
    let most = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).fold(0.0, f64::max);
    let pairs = found.iter::<f64>().zip(expected.iter::<f64>());
    most(&mut pairs.map(|(a, b)| a - b)) / most(&mut expected.iter::<f64>())
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<Flex, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &DEVICE)
}

/// The values of `of`, and the gradients of its inputs from some gradient of its result.
fn with_gradients<B: AutodiffBackend, const N: usize, const D: usize, const R: usize>(
    inputs: &[TensorData; N],
    dtype: DType,
    of: impl FnOnce([Tensor<B, D>; N]) -> Tensor<B, R>,
) -> Vec<TensorData> {
    let inputs = inputs.each_ref().map(|data| {
        let tensor = Tensor::<B, D>::from_data(data.clone(), (&B::Device::default(), dtype));
        tensor.require_grad()
    });
    let result = of(inputs.clone());
    let count = result.shape().num_elements();
    let slope: Vec<f32> = (0..count)
        .map(|i| ((i * 7 % 11) as f32 - 5.0) / 5.0)
        .collect();
    let slope = TensorData::new(slope, result.shape());
    let slope = Tensor::from_data(slope, (&result.device(), result.dtype()));
    let mut found = vec![result.clone().inner().into_data()];
    let gradients = (result * slope).sum().backward();
    found.extend(inputs.map(|input| input.grad(&gradients).unwrap().into_data()));
    found
}

fn assert_close(found: &[TensorData], expected: &[TensorData], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = distance(found, expected);
        assert!(distance < tolerance, "{index}: {distance}");
    }
}

/// On every backend, in f32 closely and in BF16 loosely.
macro_rules! agrees {
    ($rank:literal, $inputs:expr, $of:expr, $direct:expr) => {{
        pack_everything();
        let inputs = $inputs;
        let expected = with_gradients::<Plain, _, $rank, _>(&inputs, DType::F32, $direct);
        let found = with_gradients::<Plain, _, $rank, _>(&inputs, DType::F32, $of);
        assert_close(&found, &expected, 2e-5);
        let balanced = with_gradients::<Balanced, _, $rank, _>(&inputs, DType::F32, $of);
        assert_eq!(balanced, found);
        let half = with_gradients::<Plain, _, $rank, _>(&inputs, DType::BF16, $of);
        assert_close(&half, &expected, 3e-2);
        let packed = with_gradients::<Lct, _, $rank, _>(&inputs, DType::BF16, $of);
        assert_eq!(packed, half, "compressed");
    }};
}

/// The definition, with all scores at once.
fn direct_attention<B: Backend>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
) -> Tensor<B, 3> {
    let [batch, sequence, heads, head] = query.dims();
    let key_heads = key.dims()[2];
    let repeated = |x: Tensor<B, 4>| {
        x.unsqueeze_dim::<5>(3)
            .repeat_dim(3, heads / key_heads)
            .reshape([batch, sequence, heads, head])
            .swap_dims(1, 2)
    };
    let future = Tensor::<B, 2, Bool>::tril_mask([sequence, sequence], 0, &query.device());
    let scores = query.swap_dims(1, 2).matmul(repeated(key).transpose()) / (head as f64).sqrt();
    let scores = scores.mask_fill(future.unsqueeze(), f32::NEG_INFINITY);
    let mixed = softmax(scores, 3).matmul(repeated(value));
    mixed
        .swap_dims(1, 2)
        .reshape([batch, sequence, heads * head])
}

fn attention_agrees(sequence: usize, tile: usize) {
    let shape = |heads| [2, sequence, heads, 8];
    agrees!(
        4,
        [6, 2, 2].map(|heads| random(shape(heads)).into_data()),
        |[query, key, value]| ops::attention(query, key, value, tile),
        |[query, key, value]| direct_attention(query, key, value)
    );
}

#[test]
fn attention_by_tiles_is_attention() {
    attention_agrees(21, 8);
    attention_agrees(16, 8);
    attention_agrees(5, 8);
    attention_agrees(7, 1);
}

#[test]
fn a_token_does_not_change_what_comes_before_it() {
    let [query, key, value] = [4, 2, 2].map(|heads| random([1, 20, heads, 8]));
    let attend = |key, value| ops::attention(query.clone(), key, value, 8);
    let changed = 13;
    let bump = Tensor::<Flex, 4>::ones([1, 1, 2, 8], &DEVICE);
    let at = [0..1, changed..changed + 1, 0..2, 0..8];
    let before = attend(key.clone(), value.clone());
    let after = attend(
        key.slice_assign(at.clone(), bump.clone()),
        value.slice_assign(at, bump),
    );
    let cut = |x: &Tensor<Flex, 3>, from, count| x.clone().narrow(1, from, count).into_data();
    assert_eq!(cut(&before, 0, changed), cut(&after, 0, changed));
    assert_ne!(cut(&before, changed, 7), cut(&after, changed, 7));
}

fn loss_agrees(tokens: usize, vocabulary: usize, values: usize) {
    let targets: Vec<i32> = (0..tokens).map(|i| (i * 37 % vocabulary) as i32).collect();
    let ids = TensorData::new(targets, [tokens]);
    fn surprise<B: AutodiffBackend<Device = FlexDevice> + Differentiable>(
        [hidden, weight]: [Tensor<B, 2>; 2],
        targets: TensorData,
        values: usize,
    ) -> Tensor<B, 1> {
        let targets = Tensor::<B, 1, Int>::from_data(targets, &DEVICE);
        ops::surprise(hidden, weight, targets, values)
    }
    agrees!(
        2,
        [tokens, vocabulary].map(|rows| random([rows, 16]).into_data()),
        |inputs| surprise(inputs, ids.clone(), values),
        |[hidden, weight]| {
            let targets = Tensor::<_, 1, Int>::from_data(ids.clone(), &DEVICE);
            let logits = hidden.matmul(weight.transpose());
            let log_probs = log_softmax(logits, 1);
            let chosen = log_probs.gather(1, targets.unsqueeze_dim::<2>(1));
            chosen.squeeze_dim::<1>(1).neg()
        }
    );
}

#[test]
fn the_loss_by_chunks_is_the_loss() {
    // Several chunks with a rest, one chunk, and chunks of the least size.
    loss_agrees(10, 600, 2600);
    loss_agrees(10, 256, 1 << 20);
    loss_agrees(3, 400, 1);
}

#[test]
fn the_gate_and_the_norms_are_what_they_are_called() {
    agrees!(
        3,
        [(); 2].map(|()| random([2, 5, 24]).into_data()),
        |[gate, up]| ops::swiglu(gate, up),
        |[gate, up]| silu(gate) * up
    );
    fn norm<B: Differentiable<Device = FlexDevice>>(
        x: Tensor<B, 3>,
        gamma: Tensor<B, 3>,
    ) -> Tensor<B, 3> {
        let mut norm = RmsNormConfig::new(24).with_epsilon(1e-2).init(&DEVICE);
        norm.gamma = Param::initialized(norm.gamma.id, gamma.reshape([24]));
        ops::rms_norm(x, &norm)
    }
    agrees!(
        3,
        [[2, 5, 24], [1, 1, 24]].map(|shape| random(shape).into_data()),
        |[x, gamma]| norm(x, gamma),
        |[x, gamma]| {
            let square = (x.clone() * x.clone()).mean_dim(2);
            x / (square + 1e-2).sqrt() * gamma
        }
    );
}

/// What transformers computed, and the folder of the model that it did with.
struct Reference {
    folder: PathBuf,
    bytes: Vec<u8>,
}

impl Reference {
    fn of(name: &str) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Self {
            folder: data.join(name),
            bytes: fs::read(data.join(format!("{name}-reference.safetensors"))).unwrap(),
        }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    fn values<const N: usize>(&self, name: &str) -> (Vec<[u8; 4]>, [usize; N]) {
        let tensors = self.tensors();
        let tensor = tensors.tensor(name).unwrap();
        let (values, []) = tensor.data().as_chunks::<4>() else {
            panic!("{name} has values of four bytes");
        };
        (values.to_vec(), tensor.shape().try_into().unwrap())
    }

    fn ids<B: Backend>(&self, name: &str, device: &B::Device) -> Tensor<B, 2, Int> {
        let (values, shape) = self.values::<2>(name);
        let ids: Vec<i32> = values.into_iter().map(i32::from_le_bytes).collect();
        Tensor::from_data(TensorData::new(ids, shape), device)
    }

    fn floats<const N: usize>(&self, name: &str) -> TensorData {
        let (values, shape) = self.values::<N>(name);
        let floats: Vec<f32> = values.into_iter().map(f32::from_le_bytes).collect();
        TensorData::new(floats, shape)
    }

    fn model<B: Backend>(&self, dtype: FloatDType, device: &B::Device) -> Qwen3<B> {
        let config = Qwen3Config::from_file(&self.folder.join("config.json")).unwrap();
        let files = weights::files(&self.folder).unwrap();
        assert_eq!(files.len(), 2, "the model is in several files");
        let model = weights::load(config.init(device), &files, dtype).unwrap();
        assert_eq!(config.parameters(), model.num_params());
        model
    }
}

/// Compares every gradient, by Hugging Face's names.
struct Compare<'a, B: AutodiffBackend> {
    gradients: B::Gradients,
    reference: &'a Reference,
    path: Vec<String>,
    tolerance: f64,
    compared: usize,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Compare<'_, B> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let path = self.path.join(".").replace("gamma", "weight");
        let name = match path.starts_with("lm_head") {
            true => format!("gradient.{path}"),
            false => format!("gradient.model.{path}"),
        };
        let found = param.val().grad(&self.gradients).unwrap();
        // Burn keeps the weight of a linear layer the other way round.
        let linear = path.contains("_proj");
        let found = if linear { found.transpose() } else { found };
        let distance = distance(&found.into_data(), &self.reference.floats::<D>(&name));
        assert!(distance < self.tolerance, "{name}: {distance}");
        self.compared += 1;
    }
}

/// Logits, loss and all gradients; the loss and the digest of the logits come back.
fn agrees_with_transformers<B: TrainBackend<Device = FlexDevice>>(
    name: &str,
    dtype: FloatDType,
    tolerance: f64,
) -> (TensorData, TensorData) {
    let reference = Reference::of(name);
    let model = reference.model::<B>(dtype, &DEVICE);
    let tokens = reference.ids("tokens", &DEVICE);
    let logits = model.forward(tokens.clone()).inner().into_data();
    assert_eq!(logits.dtype, dtype.into());
    let far = distance(&logits, &reference.floats::<3>("logits"));
    assert!(far < tolerance, "logits: {far}");

    let loss = model
        .surprise(tokens, reference.ids("targets", &DEVICE))
        .mean();
    let value = loss.clone().inner().into_data();
    assert_eq!(value.dtype, DType::F32);
    let far = distance(&value, &reference.floats::<1>("loss"));
    assert!(far < tolerance, "loss: {far}");

    let mut compare = Compare::<B> {
        gradients: loss.backward(),
        reference: &reference,
        path: Vec::new(),
        tolerance,
        compared: 0,
    };
    model.visit(&mut compare);
    let tensors = reference.tensors();
    let known = tensors.names().into_iter();
    let gradients = known.filter(|it| it.starts_with("gradient."));
    assert_eq!(compare.compared, gradients.count());
    (logits, value)
}

#[test]
fn it_computes_what_transformers_computes() {
    pack_everything();
    for name in ["tied", "untied"] {
        let plain = agrees_with_transformers::<Plain>(name, FloatDType::F32, 1e-5);
        let balanced = agrees_with_transformers::<Balanced>(name, FloatDType::F32, 1e-5);
        assert_eq!(plain, balanced);
        agrees_with_transformers::<Lct>(name, FloatDType::F32, 1e-5);

        let half = agrees_with_transformers::<Plain>(name, FloatDType::BF16, 5e-2);
        let packed = agrees_with_transformers::<Lct>(name, FloatDType::BF16, 5e-2);
        assert_eq!(half, packed, "compressed");
    }
    let report = LctBackend::<Flex>::memory_report(&DEVICE);
    assert!(report.encodes > 100, "{report}");
    assert_eq!(report.failed_encodes, 0, "{report}");
}

#[test]
fn files_that_do_not_fit_are_named() {
    let reference = Reference::of("untied");
    let config = Qwen3Config::from_file(&reference.folder.join("config.json")).unwrap();
    let files = weights::files(&reference.folder).unwrap();
    let load = |config: &Qwen3Config, files: &[_]| {
        let model = config.init::<Flex>(&DEVICE);
        weights::load(model, files, FloatDType::F32)
            .unwrap_err()
            .to_string()
    };
    let error = load(&config, &files[..1]);
    assert!(error.contains("layers.1."), "{error}");
    let wider = Qwen3Config {
        intermediate_size: 64,
        ..config
    };
    let error = load(&wider, &files);
    assert!(error.contains("mlp") && error.contains("64"), "{error}");
}

#[test]
fn released_gradients_give_the_same_bits_in_f32() {
    pack_everything();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("qwen3-released");
    let report = |gradients| {
        let words = [
            "qwen3", "train", "--quiet", "--device", "cpu", "--steps", "3",
        ];
        let words = words
            .into_iter()
            .chain(["--sequence", "40", "--gradients", gradients]);
        let Command::Train(mut args) = Cli::try_parse_from(words).unwrap().command else {
            unreachable!("the line says train");
        };
        args.run.cache_dir = cache.clone();
        let plan = Plan::new(*args).unwrap();
        plan.train::<Plain>(&DEVICE, &Probe::none(), Card::default(), None)
            .unwrap()
    };
    let comparison = Comparison::of(&report("kept"), &report("released"));
    assert!(comparison.equal(), "{comparison}");
    assert_eq!(comparison.common_steps, 3);
}
