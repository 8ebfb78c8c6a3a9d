//! What programs do with tensors, each on the packed form: modules, reading, records. Bit for bit what plain Flex gives, values
//! and gradients, with every BF16 tensor packed as soon as it exists.
#![cfg(feature = "flex")]

mod attention;
mod casting;
mod convolution;
mod embedding;
mod housekeeping;
mod indexing;
mod int_bool;
mod norm;
mod order;
mod quantized;
mod reading;
mod recorders;
mod recurrent;
mod results;
mod stores;

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, set_default_dtypes};
use burn_autodiff::Autodiff;
use burn_flex::{Flex, FlexDevice};
use burn_lct::{HotWindow, LctBackend, LctConfig, MemoryReport};

use results::Results;

type Lct = LctBackend<Flex>;
type Plain = Autodiff<Flex>;
type Packed = Autodiff<Lct>;

const DEVICE: FlexDevice = FlexDevice;

/// Both backends that a program runs on.
trait Train: AutodiffBackend<Device = FlexDevice, FloatElem = f32, IntElem = i32> {}

impl<B: AutodiffBackend<Device = FlexDevice, FloatElem = f32, IntElem = i32>> Train for B {}

/// Sets the device up, and lets the tests take turns: they count what was packed, and Flex has one generator.
fn turn() -> MutexGuard<'static, ()> {
    static SET_UP: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    SET_UP.call_once(|| {
        set_default_dtypes::<Flex>(&DEVICE, DType::BF16, DType::I32).unwrap();
        let config = LctConfig::default()
            .with_hot_window(HotWindow::Bytes(0))
            .with_min_elements(1);
        Lct::configure(&DEVICE, config).unwrap();
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report() -> MemoryReport {
    Lct::memory_report(&DEVICE)
}

/// Runs a program with both backends from the same seed and requires the same results, from tensors that were packed.
fn compare(plain: fn(&mut Results), packed: fn(&mut Results)) {
    let _turn = turn();
    let run = |program: fn(&mut Results)| {
        Flex::seed(&DEVICE, 7);
        let mut results = Results::default();
        program(&mut results);
        results
    };
    let expected = run(plain);
    let before = report();
    let found = run(packed);
    let after = report();
    found.assert_equal(&expected);
    assert!(
        after.encodes > before.encodes,
        "nothing was packed: {after}"
    );
    assert!(
        after.decodes > before.decodes,
        "nothing was unpacked: {after}"
    );
    assert_eq!(after.failed_encodes, 0, "{after}");
    assert_eq!(after.logical_bytes, 0, "something was left: {after}");
}

/// [`compare`] for a function that is generic over the backend.
macro_rules! same_bits {
    ($program:ident) => {
        crate::compare($program::<crate::Plain>, $program::<crate::Packed>)
    };
}
pub(crate) use same_bits;
