//! Launching an optimizer's step on packed tensors.

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::LaunchError;
use super::bind::{
    BUFFER_ALIGNMENT, Blob, Cubes, Dense, DenseLayout, Needs, bind, check_bindings, check_buffer,
    has_u64,
};
use super::encode::{Tickets, next_serial};
use super::update::{converts_bf16, numbers};
use crate::kernels::REVISION;
use crate::kernels::UNITS;
use crate::kernels::codes::entry_words;
use crate::kernels::geometry::Geometry;
use crate::kernels::record::NOTES;
use crate::kernels::step::Plan;
use crate::kernels::tickets::TICKETS;
use crate::kernels::update_block::{GradientLaunch, OldLaunch};
use crate::kernels::update_packed as kernel;
use crate::layout::STREAMS;
use crate::optim::Update;
use crate::{PackedLayout, Profile};

/// Bits by which the next symbols are looked up: with 11 nearly all come in pairs, and two cubes' tables of two tensors leave
/// room on an H200's multiprocessor for what is staged.
const TABLE_BITS: u32 = 11;
/// The same on a device with little shared memory.
const FEW_TABLE_BITS: u32 = 8;
/// Buffers that are bound for each packed form.
const FORM_BINDINGS: u32 = 4;
/// The gradient, twice, the tickets and the numbers.
const OTHER_BINDINGS: u32 = 4;
/// Cubes that find registers on an H200's multiprocessor.
const RESIDENT: u32 = 2;
/// Units of a cube for three tensors, of whose teams shared memory has room for one cube only: 12 teams, as registers allow.
const THREE_UNITS: u32 = 384;

/// A packed tensor on the device.
#[derive(Clone, Debug)]
pub struct PackedForm {
    /// What [`encode`](super::encode) was, or is to be, given.
    pub layout: PackedLayout,
    /// The blob.
    pub blob: Handle,
    /// The spill: of a form to be read what the header declares as used, `None` if that is nothing; of one to be written at
    /// least [`PackedLayout::spill_bound_bytes`].
    pub spill: Option<Handle>,
}

/// Does an optimizer's step on packed tensors: reads the gradient, the weight and all states of the rule, and writes new
/// packed forms of weight and states, which any decode reads. Their codes are the old forms' codes. Returns at once; the work
/// is queued on the stream.
///
/// `old` and `new` are the weight, then the states; all have the same number of values, the profile is
/// [`Profile::Auto`], and the new forms' buffers are not those of the old ones. The gradient lies as `dense` says, in the
/// order in which the packed values are. What holds for the buffers of [`encode`](super::encode) holds for the new ones.
///
/// Returns the number of the encode that each new header has.
///
/// # Errors
/// [`LaunchError`] if sizes, offsets, layouts or the device's limits forbid the launch, or a state of the rule does not
/// exist yet; nothing is launched then.
pub fn update_packed<R: Runtime>(
    client: &ComputeClient<R>,
    update: &Update,
    gradient: Handle,
    dense: DenseLayout,
    old: &[PackedForm],
    new: &[PackedForm],
    tickets: &Tickets,
) -> Result<u32, LaunchError> {
    let has_u64 = has_u64(client);
    update_packed_with(
        client, update, gradient, dense, old, new, tickets, has_u64, None,
    )
}

/// [`update_packed`] with or without 64-bit integers, and with cubes of so many units, though all but the usual ones idle.
#[allow(clippy::too_many_arguments)]
pub(super) fn update_packed_with<R: Runtime>(
    client: &ComputeClient<R>,
    update: &Update,
    gradient: Handle,
    dense: DenseLayout,
    old: &[PackedForm],
    new: &[PackedForm],
    tickets: &Tickets,
    has_u64: bool,
    units: Option<u32>,
) -> Result<u32, LaunchError> {
    let chain = update.chain;
    let tensors = 1 + chain.states();
    for (what, found) in [
        ("old packed forms", old.len()),
        ("new packed forms", new.len()),
        ("packed operands that exist", 1 + chain.known),
    ] {
        if found != tensors {
            let needed = tensors;
            return Err(LaunchError::Operands {
                what,
                needed,
                found,
            });
        }
    }
    let layout = old[0].layout;
    for form in old.iter().chain(new) {
        if form.layout.values() != dense.values() {
            return Err(LaunchError::ValueCount {
                dense: dense.values(),
                packed: form.layout.values(),
            });
        }
        if form.layout.profile() != Profile::Auto {
            return Err(LaunchError::Profile {
                found: form.layout.profile(),
            });
        }
    }
    let needed = FORM_BINDINGS * 2 * tensors as u32 + OTHER_BINDINGS;
    check_bindings(&client.properties().hardware, needed)?;
    let gradient = Dense::new(gradient, dense)?;
    let old: Vec<Bound> = old.iter().map(Bound::to_read).collect::<Result<_, _>>()?;
    let new: Vec<Bound> = new.iter().map(Bound::to_write).collect::<Result<_, _>>()?;
    let serial = next_serial();
    if layout.blocks() == 0 {
        return Err(LaunchError::Operands {
            what: "values",
            needed: 1,
            found: 0,
        });
    }
    let geometry = Geometry::from(&layout);
    let staged = (4 * layout.max_stream_words() * STREAMS) as usize * tensors;
    let team_bytes = staged + (4 * NOTES) as usize;
    let tables = |bits| table_bytes(bits) * tensors + 256;
    let room = client.properties().hardware.max_shared_memory_size;
    let table_bits = if tables(TABLE_BITS) + team_bytes <= room {
        TABLE_BITS
    } else {
        FEW_TABLE_BITS
    };
    let needs = Needs {
        tables: tables(table_bits),
        team: team_bytes,
        units: if tensors == 3 { THREE_UNITS } else { UNITS },
        resident: RESIDENT,
    };
    let mut cubes = Cubes::new(client, &needs, has_u64)?;
    if let Some(units) = units {
        cubes.dim = CubeDim::new_1d(units);
    }
    let (grid, teams) = cubes.grid(client, layout.blocks());
    // SAFETY: sizes were checked above, and the kernel's indices stay below them; records stay below the bound that was
    // checked.
    unsafe {
        kernel::update_packed::launch_unchecked::<R>(
            client,
            grid,
            cubes.dim,
            OldLaunch::new(
                old.iter().map(|form| form.blob.head()).collect(),
                old.iter().map(|form| form.blob.plane()).collect(),
                old.iter().map(|form| form.blob.streams()).collect(),
                old.iter().map(Bound::spill).collect(),
            ),
            GradientLaunch::new(
                gradient.wide_or_narrow(),
                gradient.narrow(),
                gradient.row_len,
                gradient.row_pitch,
            ),
            new.iter().map(|form| form.blob.head()).collect(),
            new.iter().map(|form| form.blob.plane()).collect(),
            new.iter().map(|form| form.blob.streams()).collect(),
            new.iter().map(Bound::spill).collect(),
            bind(&tickets.0, TICKETS as u64),
            new.iter().map(|form| form.capacity).collect(),
            layout.values() as u32,
            serial,
            teams,
            numbers(update),
            layout.profile().code() as u32,
            table_bits,
            geometry,
            Plan {
                chain,
                native: converts_bf16(client),
            },
            gradient.access,
            cubes.means,
            REVISION,
        );
    }
    Ok(serial)
}

/// Shared memory of a tensor's tables: those to decode and to code, the code table with its counts.
fn table_bytes(bits: u32) -> usize {
    4 * (entry_words(bits) as usize + 256 + 32 + 9 + 2)
}

/// A packed form whose buffers were checked.
struct Bound {
    blob: Blob,
    spill: Handle,
    capacity: u32,
}

impl Bound {
    fn to_read(form: &PackedForm) -> Result<Self, LaunchError> {
        Self::new(form, 0)
    }

    fn to_write(form: &PackedForm) -> Result<Self, LaunchError> {
        Self::new(form, form.layout.spill_bound_bytes())
    }

    fn new(form: &PackedForm, spill_bytes: u64) -> Result<Self, LaunchError> {
        // A binding is needed in any case; without spill it is never used.
        let spill = (form.spill.clone())
            .filter(|spill| spill.size_in_used() > 0)
            .unwrap_or_else(|| form.blob.clone());
        let room = form.spill.as_ref().map_or(0, Handle::size_in_used);
        if room < spill_bytes {
            return Err(LaunchError::BufferSize {
                buffer: "spill",
                needed: spill_bytes,
                found: room,
            });
        }
        check_buffer("spill", &spill, spill_bytes, BUFFER_ALIGNMENT)?;
        Ok(Self {
            blob: Blob::new(form.blob.clone(), form.layout)?,
            spill,
            capacity: form.layout.capacity(),
        })
    }

    fn spill<R: Runtime>(&self) -> ArrayArg<R> {
        bind(&self.spill, self.spill.size_in_used() / 4)
    }
}

#[cfg(test)]
mod tests {
    use cubecl::wgpu::WgpuRuntime;

    use super::*;
    use crate::optim::{Math, Momentum, Sgd, Values, apply};
    use crate::{CodecConfig, host, launch};

    /// Exponents of which some are rare, and a few that no code knows.
    fn values(n: u32, salt: u32) -> Vec<u16> {
        (0..n)
            .map(|index| {
                let bits = (index ^ salt).wrapping_mul(0x9e37_79b9) >> 7;
                let exponent = match bits % 300 {
                    0 => 60 + bits % 70,
                    _ => 115 + bits.count_ones() % 8,
                };
                (bits & 0x807f | exponent << 7) as u16
            })
            .collect()
    }

    /// What is not chosen on this device must give the same bits as what is.
    #[test]
    fn with_and_without_64_bit_integers_and_in_large_cubes() {
        let client = WgpuRuntime::client(&Default::default());
        let n = 40_000;
        let operands = [values(n, 1), values(n, 2)];
        let slope = values(n, 3);
        let dense = DenseLayout::contiguous(n as usize);
        let momentum = Some(Momentum {
            momentum: 0.9,
            dampening: 0.1,
            nesterov: false,
        });
        let rule = Sgd {
            momentum,
            penalty: None,
        };
        let update = rule.update(0.1, 1, Math::Bf16, 0);
        let [mut weight, mut velocity] = operands.clone();
        let expected = Values {
            weight: &mut weight,
            states: [&mut velocity, &mut [], &mut []],
        };
        apply(&update, &slope, expected);
        let tickets = Tickets::new(&client);
        let upload = |values: &[u16]| {
            let packed = host::encode(values, &CodecConfig::default()).unwrap();
            let (blob, spill) = launch::upload(&client, &packed);
            let layout = packed.layout().unwrap();
            PackedForm {
                layout,
                blob,
                spill,
            }
        };
        let old = operands.each_ref().map(|values| upload(values));
        let choices = match has_u64(&client) {
            true => vec![false, true],
            false => vec![false],
        };
        let large = (has_u64(&client), Some(THREE_UNITS));
        let choices = choices.into_iter().map(|has_u64| (has_u64, None));
        for (has_u64, units) in choices.chain([large]) {
            let new = old.each_ref().map(|form| PackedForm {
                layout: form.layout,
                blob: client.empty(form.layout.blob_bytes() as usize),
                spill: Some(client.empty(form.layout.spill_bound_bytes() as usize + 4)),
            });
            let slope = client.create_from_slice(bytemuck::cast_slice(&slope));
            update_packed_with(
                &client, &update, slope, dense, &old, &new, &tickets, has_u64, units,
            )
            .unwrap();
            for (form, expected) in new.into_iter().zip([&weight, &velocity]) {
                let spill = form.spill.unwrap();
                let packed = launch::read(&client, &form.layout, form.blob, spill).unwrap();
                let what = format!("64-bit integers {has_u64}, {units:?} units");
                assert!(host::decode(&packed).unwrap() == *expected, "{what}");
            }
        }
    }
}
