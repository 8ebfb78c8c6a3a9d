//! Times steps on the CUDA card: the kernel on packed tensors, the one on dense tensors, the way around by decode, Burn's
//! operations and encode, and Burn's own optimizer with fusion on dense tensors.
//!
//! CUDA events enclose a number of steps, whose share is one sample; every step reads and writes far more than the L2 holds.

use std::path::PathBuf;

use burn::tensor::{DType, Shape, Tensor, TensorPrimitive};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_cuda::Cuda;
use burn_lct::kernels::launch::{self, DenseLayout, LaunchError, PackedForm, Tickets};
use burn_lct::kernels::optim::Update;
use burn_lct::kernels::{Family, PackedLayout, Profile};
use clap::Parser;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::bf16;
use serde::Serialize;

use super::baseline::{copy_into, median};
use super::data::{Data, WARM_UP, gpt2};
use super::events::Timer;
use super::exact::{Difference, compare};
use super::kinds::{Kind, burns};

type Client = ComputeClient<CudaRuntime>;
/// Each operation by itself.
pub type Unfused = CubeBackend<CudaRuntime, bf16, i32, u8>;
/// Operations fused.
type Fused = Cuda<bf16, i32>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What to measure, and where to write it.
#[derive(Debug, Parser)]
struct Args {
    /// Parameter sizes in values.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2359296,16777216,67108864"
    )]
    values: Vec<usize>,
    /// Also a step over all parameters of the preset gpt2-162m of `nanogpt`.
    #[arg(long)]
    model: bool,
    /// Only these optimizers.
    #[arg(long, value_enum, value_delimiter = ',')]
    optimizer: Vec<Kind>,
    /// Samples, of which the median counts; 0: no timing.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Steps of a sample.
    #[arg(long, default_value_t = 8)]
    steps: usize,
    /// Random steps that are compared with Burn's.
    #[arg(long, default_value_t = 1000)]
    compared: usize,
    /// What `cargo bench` passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
    /// Where the JSON goes.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// One optimizer and one parameter, or the parameters of a model. Times are of one step.
#[derive(Debug, Serialize)]
struct Row {
    optimizer: Kind,
    values: usize,
    /// Parameters.
    parameters: usize,
    /// The kernel on packed tensors.
    fused_us: f64,
    /// The kernel on dense tensors.
    dense_us: f64,
    /// Decode, Burn's operations, encode.
    unfused_us: f64,
    /// Burn's optimizer with fusion on dense tensors.
    plain_us: f64,
    /// What the kernel on packed tensors has to move.
    bytes_per_value: f64,
    /// The share of a copy's bandwidth at which it moves that.
    roof: f64,
    /// The same for the kernel on dense tensors.
    dense_roof: f64,
    copy_gbps: f64,
    /// Whether no bit differed from Burn's, two NaN not compared.
    exact: bool,
    /// NaN with other bits than Burn's, in all comparisons.
    nan_payloads: usize,
    fused_samples_us: Vec<f64>,
    dense_samples_us: Vec<f64>,
    unfused_samples_us: Vec<f64>,
    plain_samples_us: Vec<f64>,
}

/// Measures what the command line asks for.
pub fn run() -> Result<()> {
    let args = Args::parse();
    if args.rounds > 0 {
        super::events::listen()?;
    }
    let client = CudaRuntime::client(&CudaDevice::default());
    let kinds: Vec<Kind> = (Kind::ALL.into_iter())
        .filter(|kind| args.optimizer.is_empty() || args.optimizer.contains(kind))
        .collect();
    let mut bench = Bench {
        tickets: Tickets::new(&client),
        client: &client,
        args: &args,
        timer: None,
    };
    if args.rounds > 0 {
        let (from, to) = (client.empty(1 << 28), client.empty(1 << 28));
        bench.timer = Some(Timer::find(|| {
            (0..20).for_each(|_| copy_into(bench.client, &from, &to, 1 << 27));
            bench.submit();
        })?);
    }
    let mut rows = Vec::new();
    for &kind in &kinds {
        let difference = compare(kind, args.compared)?;
        println!("{kind:?}: {} steps, {difference:?}", args.compared);
        if args.rounds == 0 {
            continue;
        }
        let mut lists: Vec<Vec<usize>> = args.values.iter().map(|&values| vec![values]).collect();
        if args.model {
            lists.push(gpt2());
        }
        let most = lists.iter().flatten().copied().max().unwrap_or(0);
        let trained = Data::trained(kind, most);
        for sizes in lists {
            let list: Vec<Data> = sizes.iter().map(|&size| trained.of(size)).collect();
            let row = bench.measure(kind, &list, difference)?;
            println!(
                "{:>11} values, {} parameters, {kind:?}: packed {:.1} us ({:.2} B/value, {:.0} %), dense {:.1} us ({:.0} %), unfused {:.1} us, plain {:.1} us",
                row.values,
                row.parameters,
                row.fused_us,
                row.bytes_per_value,
                100.0 * row.roof,
                row.dense_us,
                100.0 * row.dense_roof,
                row.unfused_us,
                row.plain_us,
            );
            rows.push(row);
        }
    }
    if let Some(path) = &args.report {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

struct Bench<'a> {
    client: &'a Client,
    args: &'a Args,
    tickets: Tickets,
    timer: Option<Timer>,
}

impl Bench<'_> {
    fn measure(&self, kind: Kind, list: &[Data], difference: Difference) -> Result<Row> {
        let values: usize = list.iter().map(|data| data.weight.len()).sum();
        let copies = self.copies(values / 8 * 8)?;
        let copy_gbps = (4 * values) as f64 / median(&copies) * 1e-3;
        let (fused, bytes) = self.packed(kind, list)?;
        let dense = self.dense(kind, list)?;
        let unfused = self.around(kind, list)?;
        let plain = self.plain(kind, list)?;
        let roof = |us: f64, bytes: f64| bytes * values as f64 / us * 1e-3 / copy_gbps;
        let dense_bytes = (4 + 2 * 2 * kind.states() + 2) as f64;
        Ok(Row {
            optimizer: kind,
            values,
            parameters: list.len(),
            fused_us: median(&fused),
            dense_us: median(&dense),
            unfused_us: median(&unfused),
            plain_us: median(&plain),
            bytes_per_value: bytes,
            roof: roof(median(&fused), bytes),
            dense_roof: roof(median(&dense), dense_bytes),
            copy_gbps,
            exact: difference.values == 0,
            nan_payloads: difference.nan_payloads,
            fused_samples_us: fused,
            dense_samples_us: dense,
            unfused_samples_us: unfused,
            plain_samples_us: plain,
        })
    }

    fn copies(&self, values: usize) -> Result<Vec<f64>> {
        let (from, to) = (self.client.empty(2 * values), self.client.empty(2 * values));
        self.time(|| {
            copy_into(self.client, &from, &to, values);
            Ok(())
        })
    }

    /// The kernel on packed forms, each step on the same ones: from step to step with one gradient the values would leave their
    /// code behind, and it would be the way of blocks that are stored raw that is timed. Also what it moves for a value.
    fn packed(&self, kind: Kind, list: &[Data]) -> Result<(Vec<f64>, f64)> {
        let parameters: Vec<AtRest> = (list.iter())
            .map(|data| self.at_rest(data))
            .collect::<Result<_>>()?;
        let moved = |side: fn(&Packed) -> &[PackedForm]| -> Result<f64> {
            let bytes = parameters.iter().map(|parameter| match parameter {
                AtRest::Packed(packed) => self.moved(side(packed)),
                // Too little to count.
                AtRest::Dense(_) => Ok(0.0),
            });
            bytes.sum()
        };
        let before = moved(|packed| &packed.old[..])?;
        let samples = self.time(|| {
            for (parameter, data) in parameters.iter().zip(list) {
                let (update, values) = (later(kind), data.weight.len());
                let dense = DenseLayout::contiguous(values);
                match parameter {
                    AtRest::Packed(Packed { gradient, old, new }) => {
                        let slope = gradient.clone();
                        launch::update_packed(
                            self.client,
                            &update,
                            slope,
                            dense,
                            old,
                            new,
                            &self.tickets,
                        )?;
                    }
                    AtRest::Dense(inputs) => {
                        launch::update(self.client, &update, inputs, &inputs[1..], dense)?;
                    }
                }
            }
            Ok(())
        })?;
        let after = moved(|packed| &packed.new[..])?;
        if after > 1.05 * before {
            let message = format!("{after} bytes after a step, {before} before: not a usual step");
            return Err(message.into());
        }
        let values: usize = list.iter().map(|data| data.weight.len()).sum();
        Ok((samples, 2.0 + (before + after) / values as f64))
    }

    /// A parameter as it rests: what is too small to be packed is dense.
    fn at_rest(&self, data: &Data) -> Result<AtRest> {
        let gradient = self.upload(&data.gradient);
        if data.weight.len() < SMALL {
            let mut inputs = vec![gradient];
            inputs.extend(data.tensors().map(|values| self.upload(values)));
            return Ok(AtRest::Dense(inputs));
        }
        let old: Vec<PackedForm> = (data.tensors())
            .map(|values| self.encode(values))
            .collect::<std::result::Result<_, _>>()?;
        let new = old.iter().map(|form| self.room(form.layout)).collect();
        Ok(AtRest::Packed(Packed { gradient, old, new }))
    }

    /// The bytes that packed forms take.
    fn moved(&self, forms: &[PackedForm]) -> Result<f64> {
        let bytes = forms.iter().map(|form| -> Result<f64> {
            let spill = form.spill.clone().ok_or("a form has room for its spill")?;
            let packed = launch::read(self.client, &form.layout, form.blob.clone(), spill)?;
            Ok(packed.compact()?.bytes() as f64)
        });
        bytes.sum()
    }

    fn dense(&self, kind: Kind, list: &[Data]) -> Result<Vec<f64>> {
        let parameters: Vec<Vec<Handle>> = (list.iter())
            .map(|data| {
                let gradient = std::iter::once(&data.gradient[..]);
                let all = gradient.chain(data.tensors());
                all.map(|values| self.upload(values)).collect()
            })
            .collect();
        self.time(|| {
            for (inputs, data) in parameters.iter().zip(list) {
                let dense = DenseLayout::contiguous(data.weight.len());
                launch::update(self.client, &later(kind), inputs, &inputs[1..], dense)?;
            }
            Ok(())
        })
    }

    /// Decode, Burn's operations one by one, encode.
    fn around(&self, kind: Kind, list: &[Data]) -> Result<Vec<f64>> {
        let mut steps: Vec<Box<dyn FnMut() -> Result<()> + '_>> = (list.iter())
            .map(|data| self.around_one(kind, data))
            .collect::<Result<_>>()?;
        self.time(|| steps.iter_mut().try_for_each(|step| step()))
    }

    fn around_one<'a>(
        &'a self,
        kind: Kind,
        data: &'a Data,
    ) -> Result<Box<dyn FnMut() -> Result<()> + 'a>> {
        let values = data.weight.len();
        let dense = DenseLayout::contiguous(values);
        let slope = self.tensor(self.upload(&data.gradient), values);
        // Burn's optimizer keeps its states itself, dense: those that are decoded and coded beside it are copies.
        let mut optim = burns::<Unfused>(kind);
        let weight = self.tensor(self.upload(&data.weight), values);
        optim.step(weight.clone(), slope.clone());
        if values < SMALL {
            let mut weight = Some(weight);
            return Ok(Box::new(move || {
                let old = weight.take().ok_or("the weight is there")?;
                weight = Some(optim.step(old, slope.clone()));
                Ok(())
            }));
        }
        let forms: Vec<PackedForm> = (data.tensors())
            .map(|values| self.encode(values))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Box::new(move || {
            let decode = |form: &PackedForm| -> Result<Handle> {
                let output = self.client.empty(2 * values);
                let (blob, spill) = (form.blob.clone(), form.spill.clone());
                launch::decode(
                    self.client,
                    blob,
                    spill,
                    &form.layout,
                    output.clone(),
                    dense,
                )?;
                Ok(output)
            };
            let decoded: Vec<Handle> = forms.iter().map(decode).collect::<Result<_>>()?;
            let weight = self.tensor(decoded[0].clone(), values);
            let weight = optim.step(weight, slope.clone());
            let TensorPrimitive::Float(weight) = weight.into_primitive() else {
                return Err("the weight is a float tensor".into());
            };
            let coded = std::iter::once(&weight.handle).chain(&decoded[1..]);
            for (form, values) in forms.iter().zip(coded) {
                self.encode_into(values.clone(), dense, form)?;
            }
            Ok(())
        }))
    }

    /// Burn's optimizer with fusion, dense.
    fn plain(&self, kind: Kind, list: &[Data]) -> Result<Vec<f64>> {
        let device = CudaDevice::default();
        let tensor = |values: &[bf16]| -> Tensor<Fused, 1> {
            let data = burn::tensor::TensorData::new(values.to_vec(), [values.len()]);
            Tensor::from_data(data, (&device, DType::BF16))
        };
        let mut parameters: Vec<_> = (list.iter())
            .map(|data| {
                let (weight, slope) = (tensor(&data.weight), tensor(&data.gradient));
                (burns::<Fused>(kind), Some(weight), slope)
            })
            .collect();
        // The stream learns what to fuse.
        let mut step = || {
            for (optim, weight, slope) in &mut parameters {
                let old = weight.take().ok_or("the weight is there")?;
                *weight = Some(optim.step(old, slope.clone()));
            }
            // What is queued is executed, as at the end of a parameter's turn.
            burn_fusion::get_client::<Unfused>(&device).sync(|| ());
            Ok(())
        };
        (0..20).try_for_each(|_| step())?;
        self.time(step)
    }

    fn upload(&self, values: &[bf16]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(values))
    }

    fn tensor(&self, handle: Handle, values: usize) -> Tensor<Unfused, 1> {
        let tensor = CubeTensor::new_contiguous(
            self.client.clone(),
            CudaDevice::default(),
            Shape::new([values]),
            handle,
            DType::BF16,
        );
        Tensor::from_primitive(TensorPrimitive::Float(tensor))
    }

    fn room(&self, layout: PackedLayout) -> PackedForm {
        PackedForm {
            layout,
            blob: self.client.empty(layout.blob_bytes() as usize),
            spill: Some(
                self.client
                    .empty((layout.spill_bound_bytes() as usize).max(4)),
            ),
        }
    }

    fn encode(&self, values: &[bf16]) -> std::result::Result<PackedForm, LaunchError> {
        let form = self.room(PackedLayout::new(values.len(), Profile::Auto)?);
        let dense = DenseLayout::contiguous(values.len());
        self.encode_into(self.upload(values), dense, &form)?;
        Ok(form)
    }

    fn encode_into(
        &self,
        values: Handle,
        dense: DenseLayout,
        form: &PackedForm,
    ) -> std::result::Result<(), LaunchError> {
        let (blob, spill) = (form.blob.clone(), form.spill.clone());
        let spill = spill.unwrap_or_else(|| form.blob.clone());
        launch::encode(
            self.client,
            values,
            dense,
            Family::Sampled,
            &form.layout,
            blob,
            spill,
            &self.tickets,
        )
        .map(drop)
    }

    /// Microseconds of a step, once for each round.
    fn time(&self, mut step: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
        let timer = self.timer.as_ref().ok_or("a timer was set up")?;
        (0..3).try_for_each(|_| step())?;
        (0..self.args.rounds)
            .map(|_| {
                self.submit();
                timer.start()?;
                (0..self.args.steps).try_for_each(|_| step())?;
                self.submit();
                Ok(timer.stop()? / self.args.steps as f64)
            })
            .collect()
    }

    /// Returns when all that was asked of CubeCL has been submitted to the device.
    fn submit(&self) {
        // The answer comes from the thread that submits, after everything before.
        let _ = self.client.memory_usage();
    }
}

/// Tensors of fewer values are never packed.
const SMALL: usize = 1024;

/// A parameter and its states, and its gradient.
enum AtRest {
    Packed(Packed),
    /// The gradient, the weight, the states.
    Dense(Vec<Handle>),
}

/// The forms that a step starts from, and those that it writes.
struct Packed {
    gradient: Handle,
    old: Vec<PackedForm>,
    new: Vec<PackedForm>,
}

/// A step in which all states are known.
fn later(kind: Kind) -> Update {
    kind.update(WARM_UP + 1)
}
