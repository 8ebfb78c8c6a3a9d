//! Launching a division of rows.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{check_buffer, elementwise};
use crate::kernels::REVISION;
use crate::kernels::quotient::{self as kernel, WIDTH};

/// Whether [`quotient`] can divide rows of so many values.
#[must_use]
pub fn divides(rows: usize, row_len: usize) -> bool {
    let values = rows.checked_mul(row_len);
    row_len > 0 && row_len.is_multiple_of(WIDTH) && values.is_some_and(|n| n <= u32::MAX as usize)
}

/// Divides each of `rows` rows of `row_len` values in `dividend` by its value in `divisor`, into `output`. All three are
/// contiguous and of type `F`. Returns at once; the work is queued on the stream.
///
/// The quotients are those of any kernel that divides in `F`: a division rounds once, and nothing is contracted with it.
///
/// # Errors
/// [`LaunchError`] if a buffer is too small or not aligned; nothing is launched then.
///
/// # Panics
/// If the rows are not of a length that it [can divide](divides).
pub fn quotient<R: Runtime, F: Float + CubeElement>(
    client: &ComputeClient<R>,
    dividend: Handle,
    divisor: Handle,
    output: Handle,
    rows: usize,
    row_len: usize,
) -> Result<(), LaunchError> {
    assert!(divides(rows, row_len), "{rows} rows of {row_len} values");
    let values = rows * row_len;
    let size = size_of::<F>();
    let vector = (WIDTH * size) as u64;
    check_buffer("dividend", &dividend, (values * size) as u64, vector)?;
    check_buffer("divisor", &divisor, (rows * size) as u64, size as u64)?;
    check_buffer("output", &output, (values * size) as u64, vector)?;
    if values == 0 {
        return Ok(());
    }
    let vectors = values / WIDTH;
    let (grid, dim) = elementwise(vectors);
    // SAFETY: the sizes were checked, the kernel's rows are below `rows` and its vectors below `vectors`.
    unsafe {
        kernel::quotient::launch_unchecked::<F, R>(
            client,
            grid,
            dim,
            ArrayArg::from_raw_parts(dividend, vectors),
            ArrayArg::from_raw_parts(divisor, rows),
            ArrayArg::from_raw_parts(output, vectors),
            vectors as u32,
            (row_len / WIDTH) as u32,
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
    fn every_row_is_divided_by_its_value() {
        let client = WgpuRuntime::client(&Default::default());
        for (rows, row_len) in [(1, 8), (3, 256), (1000, 24), (7, 4096)] {
            let dividend: Vec<f32> = (0..rows * row_len).map(|i| i as f32 * 0.37 - 9.0).collect();
            let divisor: Vec<f32> = (0..rows).map(|i| i as f32 * 1.7 + 0.3).collect();
            let output = client.empty(rows * row_len * 4);
            let [a, b] = [&dividend, &divisor].map(|x| client.create_from_slice(f32::as_bytes(x)));
            quotient::<WgpuRuntime, f32>(&client, a, b, output.clone(), rows, row_len).unwrap();
            let bytes = client.read_one(output).unwrap();
            for (index, quotient) in f32::from_bytes(&bytes).iter().enumerate() {
                // Vulkan's division is not rounded correctly.
                let expected = dividend[index] / divisor[index / row_len];
                assert!(
                    (quotient - expected).abs() <= expected.abs() * 1e-6,
                    "{index}"
                );
            }
        }
        assert!(!divides(3, 12) && !divides(3, 0) && !divides(1 << 20, 1 << 20));
    }

    #[test]
    fn small_buffers_are_refused() {
        let client = WgpuRuntime::client(&Default::default());
        let [a, b, c] = [64, 4, 32].map(|bytes| client.empty(bytes));
        let error = quotient::<WgpuRuntime, f32>(&client, a, b, c, 2, 8).unwrap_err();
        assert!(error.to_string().contains("divisor"), "{error}");
    }
}
