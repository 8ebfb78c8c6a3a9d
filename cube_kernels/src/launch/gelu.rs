//! Launching a GELU.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{check_buffer, elementwise};
use crate::kernels::REVISION;
use crate::kernels::gelu::{self as kernel, WIDTH};

/// Whether [`gelu`] can compute so many values.
#[must_use]
pub fn computes(values: usize) -> bool {
    values.is_multiple_of(WIDTH) && values <= u32::MAX as usize
}

/// Computes the GELU of `values` contiguous values of type `F` into `output`, in the order of operations that Burn has:
/// `x * (erf(x / sqrt(2)) + 1) / 2`, each result rounded to `F`. Returns at once; the work is queued on the stream.
///
/// # Errors
/// [`LaunchError`] if a buffer is too small or not aligned; nothing is launched then.
///
/// # Panics
/// If there are not as many values as it [can compute](computes).
pub fn gelu<R: Runtime, F: Float + CubeElement>(
    client: &ComputeClient<R>,
    input: Handle,
    output: Handle,
    values: usize,
) -> Result<(), LaunchError> {
    assert!(computes(values), "{values} values");
    let bytes = (values * size_of::<F>()) as u64;
    let vector = (WIDTH * size_of::<F>()) as u64;
    check_buffer("input", &input, bytes, vector)?;
    check_buffer("output", &output, bytes, vector)?;
    if values == 0 {
        return Ok(());
    }
    let vectors = values / WIDTH;
    let (grid, dim) = elementwise(vectors);
    // SAFETY: the sizes were checked, and the kernel's vectors are below `vectors`.
    unsafe {
        kernel::gelu::launch_unchecked::<F, R>(
            client,
            grid,
            dim,
            ArrayArg::from_raw_parts(input, vectors),
            ArrayArg::from_raw_parts(output, vectors),
            vectors as u32,
            std::f32::consts::SQRT_2,
            2.0,
            REVISION,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cubecl::wgpu::WgpuRuntime;

    use super::*;

    #[test]
    fn known_values() {
        let client = WgpuRuntime::client(&Default::default());
        // As tables of the normal distribution have them.
        let known = [
            (0.0, 0.0),
            (1.0, 0.841_344_7),
            (-1.0, -0.158_655_3),
            (3.0, 2.995_950_3),
            (-20.0, 0.0),
        ];
        for repeated in [0, 8, 5000] {
            let (input, expected): (Vec<f32>, Vec<f32>) =
                known.repeat(repeated).into_iter().unzip();
            let output = client.empty(input.len() * 4);
            let (values, input) = (input.len(), client.create_from_slice(f32::as_bytes(&input)));
            gelu::<WgpuRuntime, f32>(&client, input, output.clone(), values).unwrap();
            let bytes = client.read_one(output).unwrap();
            for (found, expected) in f32::from_bytes(&bytes).iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    }

    #[test]
    fn small_buffers_are_refused() {
        let client = WgpuRuntime::client(&Default::default());
        let [input, output] = [64, 32].map(|bytes| client.empty(bytes));
        let error = gelu::<WgpuRuntime, f32>(&client, input, output, 16).unwrap_err();
        assert!(error.to_string().contains("output"), "{error}");
        assert!(!computes(9) && !computes(1 << 32));
    }
}
