//! Checks of what the caller passes, and bindings of the buffers' sections.

use cubecl::ir::features::TypeUsage;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use crate::PackedLayout;
use crate::kernels::dense::Access;
use crate::layout::{GRANULE, MAX_VALUES, STREAMS};

/// Blob and spill start at multiples of this many bytes within their allocations, so that each
/// section can be bound on its own on every runtime.
pub const BUFFER_ALIGNMENT: u64 = 256;

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

    /// The sign-fraction plane as vectors of eight bytes.
    pub(super) fn plane<R: Runtime>(&self) -> ArrayArg<R> {
        let words = self.layout.plane_words();
        self.section(self.layout.plane_offset_words(), words)
    }

    /// The exponent streams.
    pub(super) fn streams<R: Runtime>(&self) -> ArrayArg<R> {
        let words = self.layout.streams_words();
        self.section(self.layout.streams_offset_words(), words)
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

/// A cube has one unit for each stream; refuses devices whose cubes are smaller.
pub(super) fn cube_dim<R: Runtime>(
    client: &ComputeClient<R>,
    shared_memory: usize,
) -> Result<CubeDim, LaunchError> {
    let hardware = &client.properties().hardware;
    if hardware.max_units_per_cube < STREAMS {
        return Err(LaunchError::CubeSize {
            needed: STREAMS,
            found: hardware.max_units_per_cube,
        });
    }
    if hardware.max_shared_memory_size < shared_memory {
        return Err(LaunchError::SharedMemory {
            needed: shared_memory,
            found: hardware.max_shared_memory_size,
        });
    }
    Ok(CubeDim::new_1d(STREAMS))
}

/// Whether kernels can calculate with 64-bit integers. CUDA can, WGSL only on some devices.
pub(super) fn has_u64<R: Runtime>(client: &ComputeClient<R>) -> bool {
    let integer = ElemType::UInt(UIntKind::U64).into();
    let usage = client.properties().type_usage(integer);
    usage.contains(TypeUsage::Arithmetic) && usage.contains(TypeUsage::Conversion)
}

/// A grid that fills the device and strides over the blocks, as many for each cube as can be. Every
/// cube builds its tables once.
pub(super) fn persistent_grid<R: Runtime>(
    client: &ComputeClient<R>,
    blocks: u32,
    shared_memory: usize,
) -> CubeCount {
    // Resident on a multiprocessor, by its shared memory, of which each cube takes 1 KiB beside its
    // own, and by its 65,536 registers, of which a unit takes up to 64: the H200's numbers, and a
    // heuristic elsewhere. A cube more would wait for the others and then run alone.
    let resident = (227 * 1024 / (shared_memory + 1024)).clamp(1, 4) as u32;
    // Runtimes that do not say have few.
    let multiprocessors = client.properties().hardware.num_streaming_multiprocessors;
    let cubes = multiprocessors.unwrap_or(32).saturating_mul(resident);
    let rounds = blocks.div_ceil(cubes.clamp(1, 65_535)).max(1);
    CubeCount::Static(blocks.div_ceil(rounds), 1, 1)
}
