//! The operations of [`LctBackend`](crate::LctBackend): one file for each of Burn's operation traits,
//! with the names of `burn-backend/src/backend/ops`.
//!
//! Every method of every trait hands over to the method of the same name of the backend inside, the
//! methods that have a default too: which kernel runs, and so which bits come out, must be that
//! backend's choice. An inherited default would instead run on our tensors, packing and unpacking
//! between its steps and cutting fused kernels apart. `tests/forwarding.rs` reads Burn's sources and
//! fails when a method is missing.
//!
//! Only the float tensors differ: an argument is made dense, a result is wrapped. Methods that do
//! just that are listed by `forward!`; the others are written out.

/// Writes the methods of one signature, each calling the method of its name of `B`.
///
/// ```ignore
/// forward! { (tensor: FloatTensor, dim: usize) -> FloatTensor: float_sum_dim, float_mean_dim }
/// forward! { break(x); (x: FloatTensor, output_size: usize) -> FloatTensor: adaptive_avg_pool1d }
/// forward! { cheap; (tensor: FloatTensor) -> FloatTensor: float_exp = Exp }
/// ```
///
/// Types are as in Burn's trait, without the backend parameter; one of several tokens stands in
/// parentheses. Float arguments are made dense in the order of the arguments, as each may need a
/// decode. With `break(x)` the operation is announced as a natural break on the device of `x`: a
/// fusing backend ends its kernel here anyway, so tensors that have to be packed are packed now.
/// The operands count as used before that, lest they be packed just to be decoded. With `cheap`,
/// each name followed by what the operation is called in
/// [`Cheap`](crate::store::Cheap), the result remembers where it came from.
macro_rules! forward {
    (break($on:ident); $args:tt -> $result:tt: $($name:ident),+ $(,)?) => {
        $(forward!(@breaking $on $name $args -> $result);)+
    };
    (cheap; $args:tt -> $result:tt: $($name:ident = $cheap:ident),+ $(,)?) => {
        $(forward!(@cheap $cheap $name $args);)+
    };
    (@cheap $cheap:ident $name:ident ($($arg:ident: $kind:tt),*)) => {
        fn $name($($arg: primitive!($kind)),*) -> primitive!(FloatTensor) {
            let recipe = crate::tensor::Recipe::new(crate::store::Cheap::$cheap, &[$(&$arg),*]);
            let result = B::$name($(dense!($kind, $arg)),*);
            B::queued(&result);
            crate::tensor::LctTensor::with_recipe(
                crate::store::Origin::of(stringify!($name)),
                result,
                recipe,
            )
        }
    };
    ($args:tt -> $result:tt: $($name:ident),+ $(,)?) => {
        $(forward!(@plain $name $args -> $result);)+
    };
    (@plain $name:ident ($first:ident: FloatTensor $(, $arg:ident: $kind:tt)* $(,)?) -> FloatTensor) => {
        fn $name($first: primitive!(FloatTensor) $(, $arg: primitive!($kind))*) -> primitive!(FloatTensor) {
            let result = B::$name(dense!(FloatTensor, $first) $(, dense!($kind, $arg))*);
            B::queued(&result);
            wrap!($name: FloatTensor, result)
        }
    };
    (@plain $name:ident ($($arg:ident: $kind:tt),* $(,)?) -> $result:tt) => {
        fn $name($($arg: primitive!($kind)),*) -> primitive!($result) {
            wrap!($name: $result, B::$name($(dense!($kind, $arg)),*))
        }
    };
    (@breaking $on:ident $name:ident ($($arg:ident: $kind:tt),* $(,)?) -> $result:tt) => {
        fn $name($($arg: primitive!($kind)),*) -> primitive!($result) {
            $(touch!($kind, $arg);)*
            crate::tensor::natural_break::<B>(&$on.device());
            let result = B::$name($(dense!($kind, $arg)),*);
            queued!($result, result);
            wrap!($name: $result, result)
        }
    };
}

/// The type of `Self` that a kind in a `forward!` list stands for.
macro_rules! primitive {
    (FloatTensor) => { burn_backend::tensor::FloatTensor<Self> };
    (IntTensor) => { burn_backend::tensor::IntTensor<Self> };
    (BoolTensor) => { burn_backend::tensor::BoolTensor<Self> };
    (QuantizedTensor) => { burn_backend::tensor::QuantizedTensor<Self> };
    (TensorPrimitive) => { burn_backend::TensorPrimitive<Self> };
    ((&Device)) => { &burn_backend::tensor::Device<Self> };
    ((Option<$kind:tt>)) => { Option<primitive!($kind)> };
    ((Vec<$kind:tt>)) => { Vec<primitive!($kind)> };
    (($first:tt, $second:tt)) => { (primitive!($first), primitive!($second)) };
    (($($type:tt)+)) => { $($type)+ };
    ($type:ty) => { $type };
}

/// Makes an argument one of `B`.
macro_rules! dense {
    (FloatTensor, $arg:expr) => {
        $arg.dense()
    };
    ((Option<FloatTensor>), $arg:expr) => {
        $arg.map(crate::tensor::LctTensor::dense)
    };
    ((Vec<FloatTensor>), $arg:expr) => {
        $arg.into_iter()
            .map(crate::tensor::LctTensor::dense)
            .collect()
    };
    ($kind:tt, $arg:expr) => {
        $arg
    };
}

/// Marks an argument as used, so that it is not the next to be packed.
macro_rules! touch {
    (FloatTensor, $arg:expr) => {
        $arg.touch()
    };
    ((Option<FloatTensor>), $arg:expr) => {
        $arg.iter().for_each(crate::tensor::LctTensor::touch)
    };
    ($kind:tt, $arg:expr) => {};
}

/// Tells `B` that it has queued an operation with this result.
macro_rules! queued {
    (FloatTensor, $result:expr) => {
        B::queued(&$result)
    };
    ($kind:tt, $result:expr) => {};
}

/// Makes a result of an operation of `B` one of ours. Int and bool tensors stay as they are, and are counted.
macro_rules! wrap {
    ($name:ident: IntTensor, $result:expr) => {{
        let result = $result;
        crate::tensor::passed_int_bool::<B>(&B::int_device(&result));
        result
    }};
    ($name:ident: BoolTensor, $result:expr) => {{
        let result = $result;
        crate::tensor::passed_int_bool::<B>(&B::bool_device(&result));
        result
    }};
    ($name:ident: FloatTensor, $result:expr) => {
        crate::tensor::LctTensor::made(crate::store::Origin::of(stringify!($name)), $result)
    };
    ($name:ident: ($first:tt, $second:tt), $result:expr) => {{
        let (first, second) = $result;
        (wrap!($name: $first, first), wrap!($name: $second, second))
    }};
    ($name:ident: TensorPrimitive, $result:expr) => {
        match $result {
            burn_backend::TensorPrimitive::Float(tensor) => {
                burn_backend::TensorPrimitive::Float(wrap!($name: FloatTensor, tensor))
            }
            burn_backend::TensorPrimitive::QFloat(tensor) => {
                burn_backend::TensorPrimitive::QFloat(tensor)
            }
        }
    };
    ($name:ident: $kind:tt, $result:expr) => {
        $result
    };
}

mod activation;
mod bool;
mod float;
mod int;
mod module;
mod qtensor;
mod transaction;
