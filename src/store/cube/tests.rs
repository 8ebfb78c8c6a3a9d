//! Encodes that go wrong, on the device that wgpu finds: lavapipe in CI.
//!
//! They run on a device id of their own, whose errors no other test meets, and one after the other.

use burn_backend::ops::FloatTensorOps;
use burn_backend::{Backend, ExecutionError, TensorData};
use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};
use half::bf16;
use lct_kernels::{CodecConfig, Mismatch, VerifyError};

use super::*;
use crate::report::Stats;
use crate::samples;
use crate::store::Origin;
use crate::store::inject::{self, FLIPPED, Fault};
use crate::tensor::LctTensor;
use crate::{HotWindow, LctBackend, LctConfig, MemoryState};

type P = CubeBackend<WgpuRuntime, f32, i32, u32>;
type Packed = CubePacked<WgpuRuntime>;

const DEVICE: WgpuDevice = WgpuDevice::Cpu;
const SHAPE: [usize; 2] = [64, 300];
const BYTES: u64 = 2 * 64 * 300;

/// Waits until no other test of this file runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn data(seed: usize) -> TensorData {
    samples::data(seed, SHAPE)
}

fn tensor(seed: usize) -> CubeTensor<WgpuRuntime> {
    P::float_from_data(data(seed), &DEVICE)
}

fn bits(packed: &Packed) -> TensorData {
    cubecl::future::block_on(P::float_into_data(packed.unpack())).unwrap()
}

struct Request(PackRequest);

impl Request {
    fn new(fault: Option<Fault>) -> Self {
        Self(PackRequest {
            codec: CodecConfig::default(),
            origin: Origin::default(),
            verify: false,
            spill_reserve: 1 << 20,
            confirm: false,
            slab_bytes: 0,
            stats: Arc::new(Stats::default()),
            fault,
        })
    }

    fn verified(mut self) -> Self {
        self.0.verify = true;
        self
    }

    fn confirmed(mut self) -> Self {
        self.0.confirm = true;
        self
    }

    fn pack(&self, seed: usize) -> Packed {
        Packed::pack(tensor(seed), &self.0)
    }

    /// What was reported, after all outcomes are known.
    fn errors(&self) -> Vec<PackError> {
        P::settle(&DEVICE);
        let report = self.0.stats.report();
        assert_eq!(report.reserved_bytes, 0, "{report}");
        let errors = self.0.stats.errors();
        assert_eq!(report.failed_encodes, errors.len() as u64, "{report}");
        errors
    }
}

fn shape(error: &PackError) -> &[usize] {
    match error {
        PackError::Mismatch { shape, .. }
        | PackError::Refused { shape, .. }
        | PackError::Lost { shape, .. } => shape,
    }
}

#[test]
fn pieces_of_slabs_hold_packed_forms() {
    let _alone = alone();
    let mut request = Request::new(None);
    request.0.slab_bytes = 16 << 20;
    let mut forms: Vec<(usize, Packed)> = Vec::new();
    for seed in 0..60 {
        forms.push((seed, request.pack(seed)));
        if seed % 3 != 0 {
            // Its place is another's next.
            forms.swap_remove(seed % forms.len());
        }
        let blob = forms.last().map(|(_, form)| form.buffers().unwrap().blob);
        assert!(blob.is_none_or(|blob| blob.offset_end >= Some(1 << 20)));
    }
    let (seed, form) = &forms[5];
    assert_eq!(bits(form), data(*seed), "before its outcome is known");
    assert_eq!(request.errors(), []);
    assert_eq!(forms.len(), 20);
    for (seed, form) in &forms {
        assert_eq!(bits(form), data(*seed));
    }
}

#[test]
fn what_is_on_its_way_stays_within_the_limit() {
    let _alone = alone();
    P::settle(&DEVICE);
    let mut request = Request::new(None);
    let reserve = Reserve::<WgpuRuntime>::of(&DEVICE);
    let first = request.pack(0);
    let (bound, _) = reserve.outstanding();
    assert!(bound > 0);
    let limit = 9 * bound;
    request.0.spill_reserve = limit;
    let mut most = (0, 0);
    let forms: Vec<Packed> = (1..40)
        .map(|seed| {
            let form = request.pack(seed);
            let (bytes, batches) = reserve.outstanding();
            assert!(bytes <= limit, "{bytes} of {limit}");
            most = most.max((bytes, batches));
            form
        })
        .collect();
    assert!(most.0 > limit / 2 && most.1 >= 2, "{most:?}");
    // A single one that is more than the limit has its way once no other is on its.
    request.0.spill_reserve = 1;
    let last = request.pack(40);
    let (bytes, batches) = reserve.outstanding();
    assert!(bytes <= 2 * bound && batches == 0, "{bytes}, {batches}");
    assert_eq!(request.errors(), []);
    assert_eq!(reserve.outstanding(), (0, 0));
    let all = [first].into_iter().chain(forms).chain([last]);
    for (seed, form) in all.enumerate() {
        assert_eq!(bits(&form), data(seed));
    }
}

#[test]
fn what_verifies_is_dense_until_that_is_known() {
    let _alone = alone();
    let request = Request::new(None).verified();
    let packed = request.pack(1);
    assert!(packed.is_dense());
    let before = request.0.stats.report();
    assert!(before.reserved_bytes >= BYTES, "{before}");
    assert_eq!(bits(&packed), data(1));
    assert_eq!(request.errors(), []);
    assert!(!packed.is_dense());
    assert_eq!(bits(&packed), data(1));
}

#[test]
fn a_flipped_bit_is_found_and_named_and_the_tensor_stays_dense() {
    let _alone = alone();
    // Without verification nobody notices.
    let request = Request::new(Some(Fault::FlippedBit));
    let packed = request.pack(2);
    assert_eq!(request.errors(), []);
    let (found, expected) = (bits(&packed), data(2));
    let others = found.bytes.iter().zip(expected.bytes.iter());
    assert_eq!(others.filter(|(a, b)| a != b).count(), 1);

    let request = Request::new(Some(Fault::FlippedBit)).verified();
    let packed = request.pack(2);
    let errors = request.errors();
    let mismatch = Mismatch {
        values: 1,
        first: FLIPPED,
        block: 1,
        stream: 26,
    };
    let reported = PackError::Mismatch {
        shape: SHAPE.to_vec(),
        dtype: DType::BF16,
        reason: mismatch.into(),
    };
    assert_eq!(errors, [reported]);
    let text = errors[0].to_string();
    for part in ["[64, 300]", "BF16", "block 1", "stream 26", "stays dense"] {
        assert!(text.contains(part), "{text}");
    }
    let report = request.0.stats.report();
    assert_eq!(
        (report.mismatched_encodes, report.kept_dense_bytes),
        (1, BYTES)
    );
    assert_eq!((report.packed_bytes, report.encodes), (0, 0), "{report}");
    assert!(packed.is_dense());
    assert_eq!(bits(&packed), data(2));
}

#[test]
fn what_the_device_did_not_run_stays_dense_if_it_is_verified() {
    let _alone = alone();
    for fault in [Fault::NotRun, Fault::NoMemory] {
        let request = Request::new(Some(fault)).verified();
        let packed = request.pack(3);
        let errors = request.errors();
        let reason = match &errors[..] {
            [PackError::Mismatch { reason, .. }] => reason,
            others => panic!("{others:?}"),
        };
        assert!(
            matches!(reason, VerifyError::NotCompared { .. }),
            "{reason}"
        );
        assert_eq!(bits(&packed), data(3));
        // The read of a batch with a bad buffer fails as a whole, and says so with the next result.
        assert_eq!(P::take_error(&DEVICE).is_some(), fault == Fault::NoMemory);
    }
}

#[test]
fn a_refused_launch_keeps_the_tensor_dense() {
    let _alone = alone();
    let request = Request::new(Some(Fault::Refused));
    let packed = request.pack(4);
    assert!(packed.is_dense());
    let errors = request.errors();
    assert!(
        matches!(&errors[..], [PackError::Refused { .. }]),
        "{errors:?}"
    );
    assert_eq!(shape(&errors[0]), SHAPE);
    let text = errors[0].to_string();
    assert!(text.contains("the blob buffer has 4 bytes"), "{text}");
    assert_eq!(request.0.stats.report().kept_dense_bytes, BYTES);
    assert_eq!(bits(&packed), data(4));
}

#[test]
fn a_refused_allocation_keeps_the_tensor_dense_where_memory_is_short() {
    let _alone = alone();
    let request = Request::new(Some(Fault::NoMemory)).confirmed();
    let packed = request.pack(5);
    assert!(packed.is_dense());
    let errors = request.errors();
    let [PackError::Refused { memory, reason, .. }] = &errors[..] else {
        panic!("{errors:?}");
    };
    let MemoryState { needed, .. } = memory;
    assert!(needed.is_some_and(|bytes| bytes > BYTES / 2), "{memory}");
    assert!(reason.contains("no memory"), "{reason}");
    assert!(errors[0].to_string().contains("hot_window"));
    assert_eq!(bits(&packed), data(5));
    assert_eq!(P::take_error(&DEVICE), None, "nobody else is told of it");

    // With memory for it, confirming changes nothing.
    let request = Request::new(None).confirmed();
    let packed = request.pack(5);
    assert_eq!(request.errors(), []);
    assert!(!packed.is_dense());
    assert_eq!(bits(&packed), data(5));
}

#[test]
fn a_tensor_that_is_lost_says_so_and_takes_no_other_with_it() {
    let _alone = alone();
    for fault in [Fault::NotRun, Fault::NoMemory] {
        let (sound, faulty) = (Request::new(None), Request::new(Some(fault)));
        let (before, lost, after) = (sound.pack(6), faulty.pack(7), sound.pack(8));
        let errors = faulty.errors();
        let [PackError::Lost { memory, .. }] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert!(memory.needed.is_some(), "{memory}");
        assert_eq!(shape(&errors[0]), SHAPE);
        // The others of the batch are settled, with what they reserved.
        assert_eq!(sound.errors(), []);
        assert_eq!((bits(&before), bits(&after)), (data(6), data(8)));
        // Whoever uses it is told, and never gets other values.
        for touch in [
            |lost: &Packed| drop(lost.unpack()),
            |lost: &Packed| lost.check(),
        ] {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| touch(&lost)));
            let message = *panic.unwrap_err().downcast::<String>().unwrap();
            assert!(
                message.contains("was lost") && message.contains("bytes were needed"),
                "{message}"
            );
        }
        let error = P::take_error(&DEVICE);
        match fault {
            Fault::NoMemory => assert!(error.unwrap().contains("bytes were needed")),
            _ => assert_eq!(error, None),
        }
    }
}

#[test]
fn incompressible_tensors_that_verify_stay_dense() {
    let _alone = alone();
    let mut state = 9u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_bits((state >> 16) as u16)
    };
    let noise = TensorData::new((0..64 * 300).map(|_| next()).collect(), SHAPE);
    let request = Request::new(None).verified();
    let packed = Packed::pack(P::float_from_data(noise.clone(), &DEVICE), &request.0);
    assert_eq!(request.errors(), []);
    assert!(packed.is_dense());
    assert_eq!(request.0.stats.report().incompressible, 1);
    assert_eq!(bits(&packed).bytes, noise.bytes);
}

#[test]
fn a_reserve_that_is_much_too_small_only_costs_time() {
    let _alone = alone();
    for verified in [false, true] {
        let mut request = Request::new(None);
        request.0.spill_reserve = 8192;
        request.0.verify = verified;
        let packed: Vec<Packed> = (20..32).map(|seed| request.pack(seed)).collect();
        assert_eq!(request.errors(), []);
        let report = request.0.stats.report();
        assert_eq!(report.encodes, 12, "{report}");
        // One encode at a time is outstanding.
        assert!(report.peak_reserved_bytes < 2 * BYTES, "{report}");
        for (packed, seed) in packed.iter().zip(20..) {
            assert_eq!(bits(packed), data(seed));
        }
    }
}

/// From the user's side: what becomes of a program whose encodes go wrong.
fn program<B>(fault: Fault) -> (Result<TensorData, ExecutionError>, Vec<PackError>)
where
    B: PackedStore<Device = WgpuDevice>,
{
    let _faulty = inject::faulty(fault);
    let tensor = LctTensor::<B>::new(B::float_from_data(data(10), &DEVICE));
    // A lazy backend packs right after the first; whatever was noticed by then is reported.
    let mut synced = (0..3).map(|_| LctBackend::<B>::sync(&DEVICE));
    let read = synced
        .try_for_each(|result| result)
        .and_then(|()| cubecl::future::block_on(LctBackend::<B>::float_into_data(tensor)));
    LctBackend::<B>::settle(&DEVICE);
    (read, LctBackend::<B>::pack_errors(&DEVICE))
}

fn programs<B>(verified: bool)
where
    B: PackedStore<Device = WgpuDevice>,
{
    let config = LctConfig::default()
        .with_hot_window(HotWindow::Bytes(0))
        .with_min_elements(1024)
        .with_verify(verified);
    LctBackend::<B>::configure(&DEVICE, config).unwrap();
    if verified {
        let (read, errors) = program::<B>(Fault::FlippedBit);
        assert_eq!(read.unwrap(), data(10));
        assert!(
            matches!(&errors[..], [PackError::Mismatch { .. }]),
            "{errors:?}"
        );
    } else {
        let (read, errors) = program::<B>(Fault::NoMemory);
        let text = read.unwrap_err().to_string();
        for part in ["[64, 300]", "bytes were needed", "hot_window"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(
            matches!(&errors[..], [PackError::Lost { .. }]),
            "{errors:?}"
        );
    }
    // The program may go on.
    let tensor = LctTensor::<B>::new(B::float_from_data(data(11), &DEVICE));
    LctBackend::<B>::sync(&DEVICE).unwrap();
    let read = cubecl::future::block_on(LctBackend::<B>::float_into_data(tensor));
    assert_eq!(read.unwrap(), data(11));
}

#[test]
fn a_program_goes_on_after_a_mismatch() {
    let _alone = alone();
    programs::<Wgpu<f32, i32, u32>>(true);
}

#[test]
fn a_program_is_told_what_it_lost() {
    let _alone = alone();
    programs::<P>(false);
}
