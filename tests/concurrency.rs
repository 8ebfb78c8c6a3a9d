//! Tensors that several threads share the way a training program shares them: while the trainer changes its parameters,
//! metrics read them, a checkpointer keeps and reads all of them later, a loader makes tensors for others, and clones are
//! dropped before and after the trainer's own.
//!
//! `--ignored` runs it on the first CUDA card, where each thread has a stream and a memory pool of its own: what the trainer
//! gives up is given to its next tensor while others still decode it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_lct::{HotWindow, LctBackend, LctConfig, MemoryReport, PackedStore};
use half::bf16;

const SHAPE: [usize; 2] = [96, 320];
const PARAMETERS: usize = 4;
const STEPS: usize = 24;

/// A tensor and the bits that it must have whenever it is looked at.
type Checked<B> = (Tensor<LctBackend<B>, 2>, TensorData);

/// How the trainer makes a parameter's next value.
type Change<B> = fn(Checked<B>, usize, &<B as burn_backend::BackendTypes>::Device) -> Checked<B>;

fn data(seed: usize) -> TensorData {
    let value = |i: usize| {
        let bits = (i * 31 + seed * 17).wrapping_mul(0x9e37_79b9) >> 8;
        bf16::from_f32((bits % 509) as f32 * 0.004 - 1.0)
    };
    TensorData::new((0..SHAPE[0] * SHAPE[1]).map(value).collect(), SHAPE)
}

fn fresh<B: PackedStore>(seed: usize, device: &B::Device) -> Checked<B> {
    let data = data(seed);
    (Tensor::from_data(data.clone(), (device, DType::BF16)), data)
}

fn check<B: PackedStore>((tensor, expected): Checked<B>, who: &str) {
    assert!(
        tensor.into_data().bytes == expected.bytes,
        "{who} got other bits"
    );
}

/// Reads each tensor as it comes.
fn metrics<B: PackedStore>(tensors: Receiver<Checked<B>>) {
    tensors
        .into_iter()
        .for_each(|tensor| check(tensor, "a metric"));
}

/// Gathers tensors and reads them when there are many; the last first, or the first first.
fn checkpointer<B: PackedStore>(tensors: Receiver<Checked<B>>) {
    let mut gathered = Vec::new();
    for (count, tensor) in tensors.into_iter().enumerate() {
        gathered.push(tensor);
        if gathered.len() == 7 {
            if count % 2 == 0 {
                gathered.reverse();
            }
            gathered
                .drain(..)
                .for_each(|tensor| check(tensor, "a checkpoint"));
        }
    }
    gathered
        .into_iter()
        .for_each(|tensor| check(tensor, "the last checkpoint"));
}

/// Drops clones only, some at once and some when the trainer's own are long gone.
fn dropper<B: PackedStore>(tensors: Receiver<Checked<B>>) {
    let mut kept = Vec::new();
    for (count, tensor) in tensors.into_iter().enumerate() {
        match count % 3 {
            0 => drop(tensor),
            1 => kept.push(tensor),
            _ => {
                thread::sleep(Duration::from_micros(300));
                kept.pop();
            }
        }
    }
}

/// Makes tensors for the trainer.
fn loader<B: PackedStore>(batches: SyncSender<Checked<B>>, device: &B::Device) {
    for batch in 0..STEPS {
        if batches.send(fresh(1000 + batch, device)).is_err() {
            return;
        }
    }
}

fn share<B: PackedStore>(device: &B::Device, change: Change<B>) {
    let config = LctConfig::default()
        // Two parameters and a half: some are dense, some are packed, and who is which changes all the time.
        .with_hot_window(HotWindow::Bytes(5 * (SHAPE[0] * SHAPE[1]) as u64))
        .with_min_elements(1024);
    LctBackend::<B>::configure(device, config).unwrap();
    thread::scope(|scope| {
        let consumers: [fn(Receiver<Checked<B>>); 3] = [metrics, checkpointer, dropper];
        let senders = consumers.map(|consume| {
            let (sender, receiver) = sync_channel(8);
            scope.spawn(move || consume(receiver));
            sender
        });
        let (sender, batches) = sync_channel(2);
        scope.spawn(move || loader::<B>(sender, device));

        let mut parameters: Vec<_> = (0..PARAMETERS)
            .map(|seed| fresh::<B>(seed, device))
            .collect();
        for (step, batch) in (0..STEPS).zip(batches) {
            check(batch, "the trainer, of a batch");
            for index in 0..PARAMETERS {
                let (tensor, expected) = parameters.remove(0);
                for sender in &senders {
                    sender.send((tensor.clone(), expected.clone())).unwrap();
                }
                // In place, if all others are done with it by then.
                parameters.push(change(
                    (tensor, expected),
                    step * PARAMETERS + index,
                    device,
                ));
            }
        }
        parameters
            .into_iter()
            .for_each(|tensor| check(tensor, "the trainer"));
        drop(senders);
    });
    LctBackend::<B>::sync(device).unwrap();
    LctBackend::<B>::settle(device);
    let end: MemoryReport = LctBackend::<B>::memory_report(device);
    assert!(end.encodes + end.decodes > 50, "{end}");
    assert_eq!(end.failed_encodes, 0, "{end}");
    assert_eq!((end.logical_bytes, end.window_bytes), (0, 0), "{end}");
    assert_eq!((end.reserved_bytes, end.derived_bytes), (0, 0), "{end}");
}

/// The next value is another upload, into memory that was just given up: for devices that cannot compute in BF16.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn replace<B: PackedStore>(old: Checked<B>, seed: usize, device: &B::Device) -> Checked<B> {
    drop(old);
    fresh(100 + seed, device)
}

#[cfg(feature = "flex")]
#[test]
fn threads_share_tensors_with_a_trainer_on_flex() {
    use burn_flex::{Flex, FlexDevice};

    fn update(
        (tensor, expected): Checked<Flex>,
        seed: usize,
        device: &FlexDevice,
    ) -> Checked<Flex> {
        let by = 1.0 + (seed % 5) as f32 * 0.0625;
        let plain = Tensor::<Flex, 2>::from_data(expected, (device, DType::BF16));
        let expected = (plain.exp() * -by + 0.5).into_data();
        (tensor.exp() * -by + 0.5, expected)
    }
    share::<Flex>(&FlexDevice, update);
}

#[cfg(feature = "wgpu")]
#[test]
fn threads_share_tensors_with_a_trainer_on_wgpu() {
    use burn_cubecl::CubeBackend;
    use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};

    share::<CubeBackend<WgpuRuntime, f32, i32, u32>>(&WgpuDevice::default(), replace);
    share::<Wgpu<f32, i32, u32>>(&WgpuDevice::Cpu, replace);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "takes a card"]
fn threads_share_tensors_with_a_trainer_on_cuda() {
    use burn_cuda::{Cuda, CudaDevice};

    share::<Cuda<bf16, i32>>(&CudaDevice::default(), replace);
}
