//! Every recorder of Burn, in every precision: one file, whichever backend wrote it, and either reads it.

use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::record::{
    BinBytesRecorder, BinFileRecorder, BinGzFileRecorder, CompactRecorder, DefaultRecorder,
    DoublePrecisionSettings, FileRecorder, FullPrecisionSettings, HalfPrecisionSettings,
    JsonGzFileRecorder, NamedMpkBytesRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder,
    NoStdInferenceRecorder, NoStdTrainingRecorder, PrettyJsonFileRecorder, Recorder,
};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Int, Tensor, TensorData, f16};

use crate::results::{indices, normal};
use crate::{DEVICE, Packed, Plain, Train, report, turn};

/// A parameter of every kind.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    linear: Linear<B>,
    convs: Vec<Conv1d<B>>,
    norm: Option<BatchNorm<B>>,
    wide: Param<Tensor<B, 2>>,
    places: Param<Tensor<B, 1, Int>>,
    mask: Param<Tensor<B, 1, Bool>>,
}

impl<B: Train> Model<B> {
    fn new() -> Self {
        let places = indices::<B, 1>([50], 1000, 1);
        Self {
            linear: LinearConfig::new(48, 32).init(&DEVICE),
            convs: (0..2)
                .map(|_| Conv1dConfig::new(16, 32, 3).init(&DEVICE))
                .collect(),
            norm: Some(BatchNormConfig::new(1536).init(&DEVICE)),
            wide: Param::from_tensor(wide()),
            mask: Param::initialized(burn::module::ParamId::new(), places.clone().lower_elem(500)),
            places: Param::initialized(burn::module::ParamId::new(), places),
        }
    }

    /// What the model computes, with and after a step that changes the running mean.
    fn outputs(&self) -> Vec<TensorData> {
        let x = normal::<B, 2>([64, 48], 3);
        let first = self.linear.forward(x);
        let image = normal::<B, 3>([4, 16, 34], 4);
        let second =
            self.convs[1].forward(
                self.convs[0]
                    .forward(image.clone())
                    .slice([0..4, 0..16, 0..32]),
            );
        let norm = self.norm.as_ref().expect("it was made with one");
        let third = norm.running_mean.value() + norm.gamma.val();
        let ints = self.places.val().mask_fill(self.mask.val(), 0);
        vec![
            first.into_data(),
            second.into_data(),
            third.into_data(),
            self.wide.val().into_data(),
            ints.into_data(),
        ]
    }
}

/// Values from below the subnormal numbers of F16 to beyond its range.
fn wide<B: Train>() -> Tensor<B, 2> {
    let exponents = indices::<B, 2>([64, 96], 60, 1).float() - 35.0;
    (normal::<B, 2>([64, 96], 2) + 3.0) * (exponents * 0.693).exp()
}

/// The same model, with the same ids, on both backends.
fn models() -> (Model<Plain>, Model<Packed>) {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let plain = Model::<Plain>::new();
    // Burn draws a parameter when it is first used; a clone of one that was not would draw others.
    let expected = plain.outputs();
    let file = Recorder::<Plain>::record(&recorder, plain.clone().into_record(), ()).unwrap();
    let record = Recorder::<Packed>::load(&recorder, file, &DEVICE).unwrap();
    let packed = Model::<Packed>::new().load_record(record);
    assert_eq!(packed.outputs(), expected);
    (plain, packed)
}

/// Writes with both backends and reads what the other wrote. `exact`, if the values are those that were written.
macro_rules! both_ways {
    ($recorder:expr, $write:expr, $read:expr, $load:expr, $exact:expr) => {{
        let _turn = turn();
        let (plain, packed) = models();
        let recorder = $recorder;
        let before = report();
        let ours = $write(
            Recorder::<Packed>::record(&recorder, packed.clone().into_record(), $read("packed")),
            "packed",
        );
        let theirs = $write(
            Recorder::<Plain>::record(&recorder, plain.clone().into_record(), $read("plain")),
            "plain",
        );
        assert!(ours == theirs, "the files differ");
        assert!(report().decodes > before.decodes, "the weights were packed");
        let from_plain = Recorder::<Packed>::load(&recorder, $load("plain", theirs), &DEVICE);
        let from_packed = Recorder::<Plain>::load(&recorder, $load("packed", ours), &DEVICE);
        let from_plain = Model::<Packed>::new().load_record(from_plain.unwrap());
        let from_packed = Model::<Plain>::new().load_record(from_packed.unwrap());
        assert_eq!(from_plain.outputs(), from_packed.outputs());
        assert_eq!(from_plain.outputs() == plain.outputs(), $exact);
    }};
}

fn files<R>(name: &str, exact: bool)
where
    R: FileRecorder<Plain> + FileRecorder<Packed> + Default,
{
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("packed-recorders")
        .join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| -> PathBuf { folder.join(name) };
    let bytes = |written: Result<(), _>, name: &str| -> Vec<u8> {
        let written: Result<(), burn::record::RecorderError> = written;
        written.unwrap();
        let extension = <R as FileRecorder<Plain>>::file_extension();
        std::fs::read(path(name).with_extension(extension)).unwrap()
    };
    both_ways!(R::default(), bytes, path, |name, _| path(name), exact);
}

macro_rules! recorders {
    ($($test:ident: $recorder:ident),+ $(,)?) => {$(
        #[test]
        fn $test() {
            let name = stringify!($test);
            files::<$recorder<FullPrecisionSettings>>(&format!("{name}-full"), true);
            files::<$recorder<DoublePrecisionSettings>>(&format!("{name}-double"), true);
            // Among the weights are values that F16 cannot hold.
            files::<$recorder<HalfPrecisionSettings>>(&format!("{name}-half"), false);
        }
    )+};
}

recorders! {
    bin: BinFileRecorder,
    bin_gz: BinGzFileRecorder,
    json_gz: JsonGzFileRecorder,
    pretty_json: PrettyJsonFileRecorder,
    named_mpk: NamedMpkFileRecorder,
    named_mpk_gz: NamedMpkGzFileRecorder,
}

#[test]
fn named_recorders() {
    files::<DefaultRecorder>("default", true);
    files::<NoStdTrainingRecorder>("no-std-training", true);
    files::<CompactRecorder>("compact", false);
}

#[test]
fn bytes() {
    let write = |written: Result<Vec<u8>, burn::record::RecorderError>, _| written.unwrap();
    macro_rules! bytes {
        ($($recorder:ty, $exact:expr);+) => {
            $(both_ways!(<$recorder>::default(), write, |_| (), |_, file| file, $exact);)+
        };
    }
    bytes!(
        BinBytesRecorder<FullPrecisionSettings>, true;
        BinBytesRecorder<DoublePrecisionSettings>, true;
        BinBytesRecorder<HalfPrecisionSettings>, false;
        NamedMpkBytesRecorder<FullPrecisionSettings>, true;
        NamedMpkBytesRecorder<HalfPrecisionSettings>, false
    );
    // Reads what is built into a program.
    let built_in = |_, file: Vec<u8>| -> &'static [u8] { file.leak() };
    both_ways!(
        NoStdInferenceRecorder::default(),
        write,
        |_| (),
        built_in,
        true
    );
}

/// What `CompactRecorder` keeps of a BF16 value is what F16 holds of it, with either backend.
#[test]
fn half_precision_is_a_cast_to_f16() {
    let _turn = turn();
    fn loaded<B: Train>() -> TensorData {
        let values = wide::<B>();
        let cast = values
            .to_data()
            .convert::<f16>()
            .convert::<burn::tensor::bf16>();
        let recorder = BinBytesRecorder::<HalfPrecisionSettings>::default();
        let param = Param::from_tensor(values.clone());
        let file = Recorder::<B>::record(&recorder, param, ()).unwrap();
        let param: Param<Tensor<B, 2>> = Recorder::<B>::load(&recorder, file, &DEVICE).unwrap();
        let data = param.val().into_data();
        assert_eq!(data.as_bytes(), cast.as_bytes());
        assert_ne!(data.as_bytes(), values.into_data().as_bytes());
        data
    }
    assert_eq!(loaded::<Plain>().as_bytes(), loaded::<Packed>().as_bytes());
}

#[test]
fn the_state_of_an_optimizer() {
    type Bytes = NamedMpkBytesRecorder<FullPrecisionSettings>;
    let _turn = turn();
    // One parameter: those of several are written in an order of their own each time.
    fn layer<B: Train>() -> Linear<B> {
        LinearConfig::new(48, 32).with_bias(false).init(&DEVICE)
    }
    fn stepped<B: Train>(mut layer: Linear<B>) -> Vec<u8> {
        let mut optim = AdamConfig::new().init::<B, Linear<B>>();
        for step in 0..3 {
            let x = normal::<B, 2>([64, 48], step);
            let gradients = layer.forward(x).powi_scalar(2).mean().backward();
            let gradients = GradientsParams::from_grads(gradients, &layer);
            layer = optim.step(0.01, layer, gradients);
        }
        Recorder::<B>::record(&Bytes::default(), optim.to_record(), ()).unwrap()
    }
    // Reads a state and writes it again.
    fn again<B: Train>(file: &[u8]) -> Vec<u8> {
        let record = Recorder::<B>::load(&Bytes::default(), file.to_vec(), &DEVICE).unwrap();
        let optim = AdamConfig::new().init::<B, Linear<B>>().load_record(record);
        Recorder::<B>::record(&Bytes::default(), optim.to_record(), ()).unwrap()
    }
    let plain = layer::<Plain>();
    let weight = plain.weight.val().into_data();
    let mut packed = layer::<Packed>();
    let weight = Tensor::from_data(weight, &DEVICE).require_grad();
    packed.weight = Param::initialized(plain.weight.id, weight);
    let file = stepped(plain);
    assert!(file == stepped(packed), "the files differ");
    assert!(again::<Plain>(&file) == file);
    assert!(again::<Packed>(&file) == file);
}
