//! The inputs of the cases and the record of their results.

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, DType, Shape, TensorData, read_sync};
use burn_std::FloatDType;

/// Calls operations of `B` and records what comes out: `run!(cases, float, float_add(x, y), ..)`, where
/// `float` is the kind of the results.
macro_rules! run {
    ($cases:ident, $kind:ident, $($name:ident($($arg:expr),* $(,)?)),+ $(,)?) => {
        $($cases.$kind(stringify!($name), B::$name($($arg),*));)+
    };
}

/// The same for operations that all take the same arguments: `run_each!(cases, float, (x), relu, ..)`.
macro_rules! run_each {
    ($cases:ident, $kind:ident, $args:tt, $($name:ident),+ $(,)?) => {
        $(run_each!(@one $cases, $kind, $name, $args);)+
    };
    (@one $cases:ident, $kind:ident, $name:ident, ($($arg:expr),*)) => {
        $cases.$kind(stringify!($name), B::$name($($arg.clone()),*));
    };
}

/// The shape of most operands: large enough that their packed form is smaller, as it is else not used.
pub const SHAPE: [usize; 2] = [64, 128];
const SIZE: usize = SHAPE[0] * SHAPE[1];

/// What the operations of one backend gave, for inputs of one float type.
pub struct Cases<B: Backend> {
    pub device: B::Device,
    pub dtype: FloatDType,
    results: Vec<(&'static str, TensorData)>,
}

impl<B: Backend> Cases<B> {
    pub fn new(dtype: FloatDType) -> Self {
        Self {
            device: B::Device::default(),
            dtype,
            results: Vec::new(),
        }
    }

    pub fn results(self) -> Vec<(&'static str, TensorData)> {
        self.results
    }

    /// Ordinary values among which stand those that an encoding is most likely to damage: both zeros,
    /// subnormals, the ends of the range, infinities, and quiet and signalling NaNs with a payload.
    pub fn special(&self) -> FloatTensor<B> {
        const HIGH_HALVES: [u16; 24] = [
            0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x0400, //
            0x3f80, 0xbf80, 0x3f00, 0x4000, 0x4049, 0xc049, 0x3e99, 0xbe99, //
            0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc5, 0x7f81, 0xffaa,
        ];
        let mut halves: Vec<u16> = normal(30)
            .take(SIZE)
            .map(|value| (value.to_bits() >> 16) as u16)
            .collect();
        for (at, special) in HIGH_HALVES.into_iter().enumerate() {
            halves[at * 337 + 5] = special;
        }
        let halves = halves.into_iter();
        // Given as bytes, lest a conversion make the signalling NaNs quiet.
        let data = if self.dtype == FloatDType::BF16 {
            let bytes = halves.flat_map(u16::to_le_bytes).collect();
            TensorData::from_bytes_vec(bytes, SHAPE, DType::BF16)
        } else {
            let bytes = halves
                .flat_map(|high| (u32::from(high) << 16).to_le_bytes())
                .collect();
            TensorData::from_bytes_vec(bytes, SHAPE, DType::F32)
        };
        self.load(data)
    }

    /// Values about normally distributed, the same for a shape and a seed.
    pub fn normal(&self, shape: impl Into<Shape>, seed: u64) -> FloatTensor<B> {
        let shape = shape.into();
        let values = normal(seed).take(shape.num_elements()).collect();
        self.load(TensorData::new(values, shape))
    }

    /// The same, made positive and kept away from zero.
    pub fn positive(&self, shape: impl Into<Shape>, seed: u64) -> FloatTensor<B> {
        let shape = shape.into();
        let values = normal(seed).map(|value| value.abs() + 0.25);
        self.load(TensorData::new(
            values.take(shape.num_elements()).collect(),
            shape,
        ))
    }

    /// A float tensor of the cases' type.
    pub fn load(&self, data: TensorData) -> FloatTensor<B> {
        B::float_from_data(data.convert_dtype(self.dtype.into()), &self.device)
    }

    pub fn ints<const N: usize>(&self, shape: impl Into<Shape>, values: [i32; N]) -> IntTensor<B> {
        B::int_from_data(TensorData::new(values.to_vec(), shape), &self.device)
    }

    /// Integers below `limit`, in no order.
    pub fn indices(&self, shape: impl Into<Shape>, limit: i32) -> IntTensor<B> {
        let shape = shape.into();
        let values = normal(40).map(|value| (value.abs() * 7919.0) as i32 % limit);
        let values: Vec<i32> = values.take(shape.num_elements()).collect();
        B::int_from_data(TensorData::new(values, shape), &self.device)
    }

    /// A mask in which every third value is set.
    pub fn mask(&self, shape: impl Into<Shape>) -> BoolTensor<B> {
        let shape = shape.into();
        let values = (0..shape.num_elements()).map(|at| at % 3 == 0).collect();
        B::bool_from_data(TensorData::new::<bool, _>(values, shape), &self.device)
    }

    pub fn float(&mut self, name: &'static str, tensor: FloatTensor<B>) {
        self.data(name, read_sync(B::float_into_data(tensor)));
    }

    pub fn int(&mut self, name: &'static str, tensor: IntTensor<B>) {
        self.data(name, read_sync(B::int_into_data(tensor)));
    }

    pub fn bool(&mut self, name: &'static str, tensor: BoolTensor<B>) {
        self.data(name, read_sync(B::bool_into_data(tensor)));
    }

    pub fn float_and_int(
        &mut self,
        name: &'static str,
        (values, indices): (FloatTensor<B>, IntTensor<B>),
    ) {
        self.float(name, values);
        self.int(name, indices);
    }

    pub fn floats(
        &mut self,
        name: &'static str,
        tensors: impl IntoIterator<Item = FloatTensor<B>>,
    ) {
        for tensor in tensors {
            self.float(name, tensor);
        }
    }

    pub fn data<E: std::fmt::Debug>(&mut self, name: &'static str, data: Result<TensorData, E>) {
        let data = data.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        self.results.push((name, data));
    }

    /// Records an answer that is no tensor.
    pub fn answer(&mut self, name: &'static str, answer: bool) {
        self.results.push((name, TensorData::from([answer])));
    }
}

/// Sums of four uniform values: near enough to a normal distribution.
fn normal(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    std::iter::from_fn(move || Some(uniform() + uniform() + uniform() + uniform() - 2.0))
}
