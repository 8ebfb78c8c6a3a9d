//! What the benches of the card share: the copy that everything is compared with, and the median.

use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::Handle;

#[cube(launch_unchecked)]
fn copy(
    input: &Array<Vector<u32, Const<4>>>,
    output: &mut Array<Vector<u32, Const<4>>>,
    vectors: u32,
) {
    if ABSOLUTE_POS < vectors as usize {
        output[ABSOLUTE_POS] = input[ABSOLUTE_POS];
    }
}

/// Copies so many BF16 values, a multiple of eight.
pub fn copy_into(client: &ComputeClient<CudaRuntime>, from: &Handle, to: &Handle, values: usize) {
    let vectors = values / 8;
    // SAFETY: both buffers hold `values` values, that is at least `vectors` vectors; the kernel checks the end.
    unsafe {
        copy::launch_unchecked::<CudaRuntime>(
            client,
            CubeCount::Static(vectors.div_ceil(256) as u32, 1, 1),
            CubeDim::new_1d(256),
            ArrayArg::from_raw_parts(from.clone(), vectors),
            ArrayArg::from_raw_parts(to.clone(), vectors),
            vectors as u32,
        );
    }
}

/// The middle sample.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
