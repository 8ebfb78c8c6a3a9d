//! The operations on float tensors.

use burn_backend::ops::{GridSampleOptions, InterpolateMode};
use burn_backend::tensor::{FloatTensor, IndexingUpdateOp};
use burn_backend::{Backend, Distribution, Scalar, TensorData, TensorMetadata};
use burn_std::{BoolDType, FloatDType, IntDType, Shape, Slice};

use crate::cases::{Cases, SHAPE};

pub fn run<B: Backend>(cases: &mut Cases<B>) {
    creation(cases);
    conversion(cases);
    for x in operands(cases) {
        unary(cases, x.clone());
        order(cases, x.clone());
        views(cases, x);
    }
    // Without the broadcast view, whose reduction in F32 panics in Flex 0.21.0.
    let [special, normal, strided, _] = operands(cases);
    for x in [special, normal, strided] {
        reduction(cases, x);
    }
    for (x, y) in pairs(cases) {
        binary(cases, x, y);
    }
    in_place(cases);
    products(cases);
    selection(cases);
}

/// One operand each: special values, ordinary ones, a strided view and a broadcast one. All of one shape.
fn operands<B: Backend>(cases: &Cases<B>) -> [FloatTensor<B>; 4] {
    [
        cases.special(),
        cases.normal(SHAPE, 1),
        B::float_swap_dims(cases.normal([128, 64], 2), 0, 1),
        B::float_expand(cases.normal([64, 1], 3), Shape::from(SHAPE)),
    ]
}

fn pairs<B: Backend>(cases: &Cases<B>) -> [(FloatTensor<B>, FloatTensor<B>); 4] {
    let [special, normal, strided, broadcast] = operands(cases);
    [
        (special.clone(), B::float_flip(special.clone(), &[0, 1])),
        (special, strided.clone()),
        (normal.clone(), normal),
        (broadcast, strided),
    ]
}

fn creation<B: Backend>(cases: &mut Cases<B>) {
    let device = cases.device.clone();
    let dtype = cases.dtype;
    let shape = || Shape::from(SHAPE);
    run!(
        cases,
        float,
        float_from_data(TensorData::from([[1.5f32, -0.0], [f32::NAN, 2.5]]), &device),
        float_zeros(shape(), &device, dtype),
        float_ones(shape(), &device, dtype),
        float_full(shape(), 0.3.into(), &device, dtype),
    );
    // An empty tensor's values are not defined: only its shape and type are compared.
    let empty = B::float_empty(shape(), &device, dtype);
    let defined = B::float_mask_fill(empty, B::bool_ones(shape(), &device, bool()), 1.0.into());
    cases.float("float_empty", defined);

    for distribution in [
        Distribution::Default,
        Distribution::Bernoulli(0.4),
        Distribution::Uniform(-2.0, 3.0),
        Distribution::Normal(0.5, 0.02),
    ] {
        B::seed(&device, 7);
        run!(
            cases,
            float,
            float_random(shape(), distribution, &device, dtype)
        );
    }
}

fn conversion<B: Backend>(cases: &mut Cases<B>) {
    let device = cases.device.clone();
    for x in operands(cases) {
        run!(
            cases,
            float,
            float_cast(x.clone(), FloatDType::F32),
            float_cast(x.clone(), FloatDType::BF16),
            float_to_device(x.clone(), &device),
            float_detach(x.clone()),
            float_set_require_grad(x.clone(), true),
        );
        run!(cases, answer, float_is_require_grad(&x));
        let at_home = B::float_device(&x) == device;
        cases.answer("float_device", at_home);
        cases.data(
            "float_into_data",
            burn_backend::read_sync(B::float_into_data(x)),
        );
    }
    run!(
        cases,
        int,
        float_into_int(cases.normal(SHAPE, 4), IntDType::I32)
    );
}

fn unary<B: Backend>(cases: &mut Cases<B>, x: FloatTensor<B>) {
    run_each!(
        cases,
        float,
        (x),
        float_neg,
        float_recip,
        float_abs,
        float_sign,
        float_sqrt,
        float_exp,
        float_log,
        float_log1p,
        float_erf,
        float_round,
        float_floor,
        float_ceil,
        float_trunc,
        float_cos,
        float_sin,
        float_tan,
        float_cosh,
        float_sinh,
        float_tanh,
        float_acos,
        float_asin,
        float_atan,
        float_acosh,
        float_asinh,
        float_atanh
    );
    run_each!(
        cases,
        bool,
        (x, bool()),
        float_any,
        float_all,
        float_is_nan,
        float_is_inf
    );
    for scalar in [0.75, -2.0, 0.0] {
        let scalar: Scalar = scalar.into();
        run_each!(
            cases,
            float,
            (x, scalar),
            float_add_scalar,
            float_sub_scalar,
            float_mul_scalar,
            float_div_scalar,
            float_remainder_scalar,
            float_powf_scalar,
            float_powf_scalar_impl,
            float_clamp_min,
            float_clamp_max
        );
        run_each!(
            cases,
            bool,
            (x, scalar, bool()),
            float_equal_elem,
            float_not_equal_elem,
            float_greater_elem,
            float_greater_equal_elem,
            float_lower_elem,
            float_lower_equal_elem
        );
    }
    for exponent in [-2, -1, 0, 1, 2, 3] {
        let exponent: Scalar = exponent.into();
        run_each!(
            cases,
            float,
            (x, exponent),
            float_powi_scalar,
            float_powi_scalar_impl
        );
    }
    run!(cases, float, float_clamp(x, (-0.5).into(), 0.5.into()));
}

fn binary<B: Backend>(cases: &mut Cases<B>, x: FloatTensor<B>, y: FloatTensor<B>) {
    run_each!(
        cases,
        float,
        (x, y),
        float_add,
        float_sub,
        float_mul,
        float_div,
        float_remainder,
        float_powf,
        float_atan2
    );
    run_each!(
        cases,
        bool,
        (x, y, bool()),
        float_equal,
        float_not_equal,
        float_greater,
        float_greater_equal,
        float_lower,
        float_lower_equal
    );
    let mask = cases.mask(SHAPE);
    run!(
        cases,
        float,
        float_mask_where(x.clone(), mask.clone(), y.clone()),
        float_mask_fill(x.clone(), mask, 0.1.into()),
        float_slice_assign(
            x.clone(),
            &[Slice::new(1, Some(33), 1), Slice::new(0, None, 2)],
            B::float_slice(
                y.clone(),
                &[Slice::new(0, Some(32), 1), Slice::new(64, None, 1)]
            )
        ),
        float_cat(vec![x.clone(), y.clone(), x.clone()], 1),
        float_cat(vec![x, y], 0),
    );
}

/// The operands handed over are the only ones, so that the backend may write into them.
fn in_place<B: Backend>(cases: &mut Cases<B>) {
    run!(
        cases,
        float,
        float_exp(cases.special()),
        float_neg(cases.normal(SHAPE, 5)),
        float_add(cases.special(), cases.normal(SHAPE, 6)),
        float_mul_scalar(cases.normal(SHAPE, 7), 3.0.into()),
        float_mask_fill(cases.normal(SHAPE, 8), cases.mask(SHAPE), 0.5.into()),
    );
    // A view's parent must not see what is written into the view.
    let parent = cases.normal(SHAPE, 9);
    let view = B::float_reshape(parent.clone(), Shape::from([8192]));
    run!(
        cases,
        float,
        float_mul_scalar(view, 2.0.into()),
        float_abs(parent)
    );
}

fn products<B: Backend>(cases: &mut Cases<B>) {
    let (a, b) = (cases.normal([2, 64, 65], 10), cases.normal([2, 65, 63], 11));
    let transposed = B::float_transpose(cases.normal([2, 63, 65], 12));
    run!(
        cases,
        float,
        float_matmul(a.clone(), b),
        float_matmul(a, transposed),
        float_matmul(cases.special(), B::float_transpose(cases.special())),
        float_cross(cases.normal([3, 2048], 13), cases.normal([3, 2048], 14), 0),
        float_powi(
            cases.normal([2, 3], 15),
            cases.ints([2, 3], [-2, -1, 0, 1, 2, 3])
        ),
    );
}

fn reduction<B: Backend>(cases: &mut Cases<B>, x: FloatTensor<B>) {
    run_each!(
        cases,
        float,
        (x),
        float_sum,
        float_prod,
        float_mean,
        float_max,
        float_min,
        float_max_abs
    );
    for dim in [0, 1] {
        run_each!(
            cases,
            float,
            (x, dim),
            float_sum_dim,
            float_prod_dim,
            float_mean_dim,
            float_max_dim,
            float_min_dim,
            float_max_abs_dim
        );
        run_each!(
            cases,
            float_and_int,
            (x, dim, IntDType::I32),
            float_max_dim_with_indices,
            float_min_dim_with_indices
        );
        run_each!(
            cases,
            int,
            (x, dim, IntDType::I32),
            float_argmax,
            float_argmin
        );
        run_each!(cases, bool, (x, dim, bool()), float_any_dim, float_all_dim);
    }
}

fn order<B: Backend>(cases: &mut Cases<B>, x: FloatTensor<B>) {
    for (dim, descending) in [(0, false), (1, true)] {
        run_each!(
            cases,
            float,
            (x, dim),
            float_cumsum,
            float_cumprod,
            float_cummin,
            float_cummax
        );
        run!(
            cases,
            float,
            float_sort(x.clone(), dim, descending),
            float_topk(x.clone(), dim, 3),
        );
        run!(
            cases,
            float_and_int,
            float_sort_with_indices(x.clone(), dim, descending, IntDType::I32),
        );
        run!(
            cases,
            int,
            float_argsort(x.clone(), dim, descending, IntDType::I32)
        );
    }
}

fn views<B: Backend>(cases: &mut Cases<B>, x: FloatTensor<B>) {
    let inner = [Slice::new(1, Some(60), 1), Slice::new(0, Some(-1), 2)];
    let rows = [Slice::new(16, Some(48), 1)];
    let backwards = [Slice::new(0, None, -1), Slice::new(2, Some(120), 1)];
    run!(
        cases,
        float,
        float_reshape(x.clone(), Shape::from([2, 4096])),
        float_expand(
            B::float_reshape(x.clone(), Shape::from([1, 64, 128])),
            Shape::from([3, 64, 128])
        ),
        float_transpose(x.clone()),
        float_swap_dims(x.clone(), 1, 0),
        float_permute(
            B::float_reshape(x.clone(), Shape::from([16, 32, 16])),
            &[2, 0, 1]
        ),
        float_slice(x.clone(), &inner),
        float_slice(x.clone(), &rows),
        float_slice(x.clone(), &backwards),
        float_flip(x.clone(), &[1]),
        float_repeat_dim(x.clone(), 0, 3),
        float_unfold(x.clone(), 1, 3, 2),
    );

    // A chain of views, used and read: shape, type and order must be those of the plain backend.
    let chain = B::float_permute(B::float_reshape(x, Shape::from([8, 8, 128])), &[2, 1, 0]);
    let chain = B::float_slice(chain, &[Slice::new(1, Some(65), 1)]);
    let chain = B::float_reshape(chain, Shape::from([64, 64]));
    cases.answer("float_reshape", chain.shape() == Shape::from([64, 64]));
    cases.answer("float_reshape", chain.dtype() == cases.dtype.into());
    run_each!(
        cases,
        float,
        (chain),
        float_exp,
        float_sum,
        float_transpose,
        float_detach
    );
    run!(cases, float, float_matmul(chain.clone(), chain));
}

fn selection<B: Backend>(cases: &mut Cases<B>) {
    let rows = cases.indices([48, 128], 64);
    let picked = cases.indices([96], 128);
    let points = cases.ints([3, 2], [0, 5, 63, 1, 17, 127]);
    let image = cases.normal([1, 2, 64, 64], 16);
    let grid = B::float_clamp(cases.normal([1, 48, 48, 2], 17), (-1.0).into(), 1.0.into());
    for x in operands(cases) {
        run!(
            cases,
            float,
            float_gather(0, x.clone(), rows.clone()),
            float_gather_nd(x.clone(), points.clone()),
            float_select(x.clone(), 1, picked.clone()),
            float_scatter_add(0, x.clone(), rows.clone(), cases.normal([48, 128], 18)),
            float_select_add(x.clone(), 1, picked.clone(), cases.normal([64, 96], 19)),
        );
        for reduction in [
            IndexingUpdateOp::Assign,
            IndexingUpdateOp::Add,
            IndexingUpdateOp::Max,
        ] {
            let values = cases.normal([3], 20);
            run!(
                cases,
                float,
                float_scatter_nd(x.clone(), points.clone(), values, reduction)
            );
        }
    }
    let options = GridSampleOptions::new(InterpolateMode::Bilinear);
    run!(cases, float, float_grid_sample_2d(image, grid, options));
}

fn bool() -> BoolDType {
    BoolDType::Native
}
