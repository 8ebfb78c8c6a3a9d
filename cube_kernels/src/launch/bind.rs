//! Checks of what the caller passes, and bindings of the buffers' sections.

use cubecl::ir::features::TypeUsage;
use cubecl::ir::{ElemType, HardwareProperties, UIntKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use crate::PackedLayout;
use crate::kernels::UNITS;
use crate::kernels::dense::Access;
use crate::kernels::encode::MANY_ROUNDS;
use crate::kernels::team::Means;
use crate::layout::{GRANULE, MAX_VALUES, STREAMS};

/// Blob and spill start at multiples of this many bytes within their allocations, so that each
/// section can be bound on its own on every runtime.
pub const BUFFER_ALIGNMENT: u64 = 256;

/// Units of an elementwise kernel's cube.
const ELEMENTWISE_UNITS: u32 = 256;
/// Cubes of its grid, at most: what every runtime allows in one dimension.
const MOST_CUBES: u32 = 65_535;

/// A grid whose units take one of so many items each, or several if there are too many.
pub(super) fn elementwise(items: usize) -> (CubeCount, CubeDim) {
    let cubes = items.div_ceil(ELEMENTWISE_UNITS as usize) as u32;
    let grid = CubeCount::Static(cubes.min(MOST_CUBES), 1, 1);
    (grid, CubeDim::new_1d(ELEMENTWISE_UNITS))
}

/// Where dense values lie in their buffer: `rows` rows of `row_len` values that start every
/// `row_pitch` values. All lengths are in BF16 values.
///
/// The buffer's offset in its allocation is a multiple of 4 bytes. Rows are fast when they are
/// contiguous or when `row_len` and `row_pitch` are multiples of 8, and the offset is a multiple of
/// 16 bytes. When the last value shares a 32-bit word with what is not part of the tensor, that
/// half is read and written back as it is; allocations are multiples of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseLayout {
    /// Values in a row.
    pub row_len: usize,
    /// Values between the starts of two rows.
    pub row_pitch: usize,
    /// Number of rows.
    pub rows: usize,
}

impl DenseLayout {
    /// `values` values without gaps.
    pub fn contiguous(values: usize) -> Self {
        Self {
            row_len: values,
            row_pitch: values,
            rows: 1,
        }
    }

    /// Number of values; saturates.
    pub fn values(&self) -> usize {
        self.row_len.saturating_mul(self.rows)
    }

    /// Values from the first to the last, gaps included.
    fn span(&self) -> u128 {
        match self.values() {
            0 => 0,
            _ => (self.rows as u128 - 1) * self.row_pitch as u128 + self.row_len as u128,
        }
    }

    /// How the kernels reach the values from a buffer at this offset.
    fn access(&self, offset: u64) -> Access {
        let granule = GRANULE as usize;
        let contiguous = self.row_len == self.row_pitch || self.rows <= 1;
        let rows_aligned =
            self.row_len.is_multiple_of(granule) && self.row_pitch.is_multiple_of(granule);
        Access {
            contiguous,
            aligned: (contiguous || rows_aligned) && offset.is_multiple_of(16),
        }
    }
}

/// A dense buffer that was checked against its layout.
pub(super) struct Dense {
    handle: Handle,
    pub access: Access,
    pub row_len: u32,
    pub row_pitch: u32,
}

impl Dense {
    pub(super) fn new(handle: Handle, dense: DenseLayout) -> Result<Self, LaunchError> {
        if dense.row_pitch < dense.row_len {
            return Err(LaunchError::RowPitch {
                row_len: dense.row_len,
                row_pitch: dense.row_pitch,
            });
        }
        let span = dense.span();
        if span > MAX_VALUES as u128 {
            return Err(LaunchError::Span {
                span,
                limit: MAX_VALUES,
            });
        }
        check_buffer("dense", &handle, 2 * span as u64, 4)?;
        Ok(Self {
            access: dense.access(handle.offset_start.unwrap_or(0)),
            handle,
            // Only read for pitched rows, whose lengths are below the span.
            row_len: dense.row_len as u32,
            row_pitch: dense.row_pitch as u32,
        })
    }

    /// The buffer as vectors of eight values. One too small for a vector is never accessed so,
    /// but some runtimes refuse to bind it; the blob stands in.
    pub(super) fn wide<R: Runtime>(&self, blob: &Blob) -> ArrayArg<R> {
        match self.handle.size_in_used() / 16 {
            0 => blob.head(),
            vectors => bind(&self.handle, vectors * 4),
        }
    }

    /// The buffer as vectors of eight values. Other memory stands in for one too small for a vector, which is never accessed
    /// so.
    pub(super) fn wide_or_other<R: Runtime>(&self, client: &ComputeClient<R>) -> ArrayArg<R> {
        match self.handle.size_in_used() / 16 {
            0 => bind(&client.create_from_slice(&[0; 16]), 4),
            vectors => bind(&self.handle, vectors * 4),
        }
    }

    /// The buffer as vectors of eight values, or as a word where it is too small for one: then it is not accessed so.
    pub(super) fn wide_or_narrow<R: Runtime>(&self) -> ArrayArg<R> {
        match self.handle.size_in_used() / 16 {
            0 => self.narrow(),
            vectors => bind(&self.handle, vectors * 4),
        }
    }

    /// The buffer as words of two values.
    pub(super) fn narrow<R: Runtime>(&self) -> ArrayArg<R> {
        bind(&self.handle, self.handle.size_in_used().div_ceil(4))
    }
}

/// A blob that was checked against its layout.
pub(super) struct Blob {
    handle: Handle,
    layout: PackedLayout,
}

impl Blob {
    pub(super) fn new(handle: Handle, layout: PackedLayout) -> Result<Self, LaunchError> {
        check_buffer("blob", &handle, layout.blob_bytes(), BUFFER_ALIGNMENT)?;
        Ok(Self { handle, layout })
    }

    /// Header, code table and directory.
    pub(super) fn head<R: Runtime>(&self) -> ArrayArg<R> {
        self.section(0, self.layout.plane_offset_words())
    }

    /// The sign-fraction plane as vectors of sixteen bytes.
    pub(super) fn plane<R: Runtime>(&self) -> ArrayArg<R> {
        let words = self.layout.plane_words();
        self.section(self.layout.plane_offset_words(), words)
    }

    /// The exponent streams. Without room for any they are never accessed, but some runtimes refuse to bind nothing; the
    /// head stands in.
    pub(super) fn streams<R: Runtime>(&self) -> ArrayArg<R> {
        match self.layout.streams_words() {
            0 => self.head(),
            words => self.section(self.layout.streams_offset_words(), words),
        }
    }

    fn section<R: Runtime>(&self, offset: u64, words: u64) -> ArrayArg<R> {
        let end = self.handle.size_in_used() - (offset + words) * 4;
        let handle = self.handle.clone().offset_start(offset * 4).offset_end(end);
        bind(&handle, words)
    }
}

/// Checks a buffer's size and the alignment of its offset.
pub(super) fn check_buffer(
    buffer: &'static str,
    handle: &Handle,
    needed: u64,
    alignment: u64,
) -> Result<(), LaunchError> {
    let offset = handle.offset_start.unwrap_or(0);
    if !offset.is_multiple_of(alignment) {
        return Err(LaunchError::BufferOffset {
            buffer,
            offset,
            alignment,
        });
    }
    if handle.size_in_used() < needed {
        return Err(LaunchError::BufferSize {
            buffer,
            needed,
            found: handle.size_in_used(),
        });
    }
    Ok(())
}

/// Binds a buffer of `words` words, also when the kernel takes it as vectors.
pub(super) fn bind<R: Runtime>(handle: &Handle, words: u64) -> ArrayArg<R> {
    // SAFETY: every caller derives the length from the handle's size or checked it against that.
    unsafe { ArrayArg::from_raw_parts(handle.clone(), words as usize) }
}

/// How a kernel's cubes are made on a device.
pub(super) struct Cubes {
    /// Units of a cube.
    pub dim: CubeDim,
    /// What the device allows.
    pub means: Means,
    /// Cubes that a multiprocessor can hold at a time.
    resident: u32,
}

/// Shared memory of a multiprocessor, of which each cube takes 1 KiB beside its own: the H200's number, and a heuristic
/// elsewhere.
const MULTIPROCESSOR_BYTES: usize = 227 * 1024;

/// What a kernel's cubes take of a multiprocessor.
pub(super) struct Needs {
    /// Bytes of shared memory for a cube's tables.
    pub tables: usize,
    /// Bytes of shared memory for each team.
    pub team: usize,
    /// The most units of a cube. More than [`UNITS`] only where shared memory has room for their teams.
    pub units: u32,
    /// Cubes of [`UNITS`] units that find registers on a multiprocessor.
    pub resident: u32,
}

impl Needs {
    /// Those of cubes of [`UNITS`] units.
    pub(super) fn usual(tables: usize, team: usize, resident: u32) -> Self {
        Self {
            tables,
            team,
            units: UNITS,
            resident,
        }
    }
}

impl Cubes {
    /// Cubes with as many teams as find room.
    pub(super) fn new<R: Runtime>(
        client: &ComputeClient<R>,
        needs: &Needs,
        has_u64: bool,
    ) -> Result<Self, LaunchError> {
        let is_cuda = R::name(client) == "cuda";
        let hardware = &client.properties().hardware;
        Self::fit(hardware, is_cuda, needs, has_u64)
    }

    /// [`new`](Self::new) for a device with these limits.
    fn fit(
        hardware: &HardwareProperties,
        is_cuda: bool,
        needs: &Needs,
        has_u64: bool,
    ) -> Result<Self, LaunchError> {
        let &Needs { tables, team, .. } = needs;
        if hardware.max_units_per_cube < UNITS {
            return Err(LaunchError::CubeSize {
                needed: UNITS,
                found: hardware.max_units_per_cube,
            });
        }
        let room = hardware.max_shared_memory_size.saturating_sub(tables);
        let most_units = needs.units.min(hardware.max_units_per_cube);
        let teams = (room / team).min((most_units / STREAMS) as usize);
        if teams == 0 {
            return Err(LaunchError::SharedMemory {
                needed: tables + team,
                found: hardware.max_shared_memory_size,
            });
        }
        // Others have planes of 32 too, but CubeCL cannot make them wait for themselves alone.
        let planes =
            is_cuda && hardware.plane_size_min == STREAMS && hardware.plane_size_max == STREAMS;
        let shared_memory = tables + teams * team;
        let fitting = MULTIPROCESSOR_BYTES / (shared_memory + 1024);
        Ok(Self {
            dim: CubeDim::new_1d((teams as u32 * STREAMS).max(UNITS)),
            means: Means {
                teams: teams as u32,
                planes,
                has_u64,
            },
            resident: (fitting as u32).clamp(1, needs.resident),
        })
    }

    /// A grid that fills the device and strides over the blocks, and how many teams work in each cube. Every cube builds
    /// its tables once. A cube more than find room would wait for the others and then run alone.
    pub(super) fn grid<R: Runtime>(
        &self,
        client: &ComputeClient<R>,
        blocks: u32,
    ) -> (CubeCount, u32) {
        // Runtimes that do not say how many they have have few.
        let multiprocessors = client.properties().hardware.num_streaming_multiprocessors;
        let multiprocessors = multiprocessors.unwrap_or(4).clamp(1, 4096);
        // Few blocks are spread over all multiprocessors.
        let teams = (blocks / multiprocessors).clamp(1, self.means.teams);
        let shares = blocks.div_ceil(teams);
        let most = multiprocessors * self.resident;
        let rounds = shares.div_ceil(most).max(1);
        // In few rounds every cube takes part in each.
        let cubes = if rounds > MANY_ROUNDS {
            most
        } else {
            shares.div_ceil(rounds)
        };
        (CubeCount::Static(cubes, 1, 1), teams)
    }
}

/// Checks that a device can bind so many buffers to one kernel.
pub(super) fn check_bindings(
    hardware: &HardwareProperties,
    needed: u32,
) -> Result<(), LaunchError> {
    match hardware.max_bindings {
        found if found < needed => Err(LaunchError::Bindings { needed, found }),
        _ => Ok(()),
    }
}

/// Whether kernels can calculate with 64-bit integers. CUDA can, WGSL only on some devices.
pub(super) fn has_u64<R: Runtime>(client: &ComputeClient<R>) -> bool {
    let integer = ElemType::UInt(UIntKind::U64).into();
    let usage = client.properties().type_usage(integer);
    usage.contains(TypeUsage::Arithmetic) && usage.contains(TypeUsage::Conversion)
}

#[cfg(test)]
mod tests {
    use cubecl::wgpu::WgpuRuntime;

    use super::*;

    #[test]
    fn devices_that_are_too_small_are_refused() {
        let client = WgpuRuntime::client(&Default::default());
        let able = client.properties().hardware.clone();
        let cubes = |hardware: &HardwareProperties, units| {
            let needs = Needs {
                tables: 4000,
                team: 1000,
                units,
                resident: 4,
            };
            Cubes::fit(hardware, false, &needs, false)
        };
        let fit = |hardware: &HardwareProperties| cubes(hardware, UNITS).map(|it| it.means.teams);
        assert_eq!(fit(&able), Ok(8));
        let wide = cubes(&able, 384).unwrap();
        assert_eq!((wide.means.teams, wide.dim.x), (12, 384));

        let mut few = able.clone();
        few.max_units_per_cube = 128;
        let error = LaunchError::CubeSize {
            needed: 256,
            found: 128,
        };
        assert_eq!(fit(&few), Err(error));

        let mut narrow = able.clone();
        for (bytes, teams) in [(4999, None), (5000, Some(1)), (6999, Some(2))] {
            narrow.max_shared_memory_size = bytes;
            let error = LaunchError::SharedMemory {
                needed: 5000,
                found: bytes,
            };
            assert_eq!(fit(&narrow), teams.ok_or(error), "{bytes}");
        }

        let mut bound = able;
        bound.max_bindings = 8;
        assert_eq!(check_bindings(&bound, 8), Ok(()));
        let error = LaunchError::Bindings {
            needed: 9,
            found: 8,
        };
        assert_eq!(check_bindings(&bound, 9), Err(error));
    }
}
