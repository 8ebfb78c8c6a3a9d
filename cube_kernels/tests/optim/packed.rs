//! Updates of packed tensors.

use std::collections::BTreeSet;

use cubecl::server::Handle;
use lct_kernels::launch::{self, DenseLayout, LaunchError, PackedForm, Tickets};
use lct_kernels::optim::{Math, Sgd, Update};
use lct_kernels::{CodecConfig, Packed, PackedLayout, Profile, host};

use crate::cases::{special_values, updates, values};
use crate::common::{Stored, bf16, noise, stored};
use crate::{Client, check, client, reference};

/// Room for a new form: `capacity` words of records in the blob.
fn room(client: &Client, layout: PackedLayout) -> PackedForm {
    PackedForm {
        layout,
        blob: client.empty(layout.blob_bytes() as usize),
        spill: Some(client.empty((layout.spill_bound_bytes() as usize).max(4))),
    }
}

fn upload(client: &Client, values: &[u16]) -> PackedForm {
    let packed = host::encode(values, &CodecConfig::default()).unwrap();
    let (blob, spill) = launch::upload(client, &packed);
    PackedForm {
        layout: packed.layout().unwrap(),
        blob,
        spill,
    }
}

fn read(client: &Client, form: &PackedForm) -> Packed {
    let spill: Handle = form.spill.clone().unwrap();
    launch::read(client, &form.layout, form.blob.clone(), spill).unwrap()
}

/// Two steps on the device, the second on the forms that the first has written, each compared with the host. Returns the
/// last packed forms.
fn run(
    client: &Client,
    name: &str,
    update: &Update,
    operands: &[Vec<u16>; 5],
    dense: DenseLayout,
    tickets: &Tickets,
    capacity: Option<u64>,
) -> Vec<Packed> {
    let mut operands = operands.clone();
    let tensors = 1 + update.chain.states();
    let pad = |values: &[u16]| {
        let mut buffer =
            vec![0x5a5a; ((dense.rows - 1) * dense.row_pitch + dense.row_len).next_multiple_of(8)];
        for (row, values) in values.chunks(dense.row_len).enumerate() {
            buffer[row * dense.row_pitch..][..values.len()].copy_from_slice(values);
        }
        buffer
    };
    let gradient = client.create_from_slice(bytemuck::cast_slice(&pad(&operands[1])));
    let mut old: Vec<PackedForm> = [0, 2, 3, 4][..tensors]
        .iter()
        .map(|&operand| upload(client, &operands[operand]))
        .collect();
    let mut last = Vec::new();
    for step in 0..2 {
        let layout = |old: &PackedForm| match capacity {
            Some(words) => old.layout.with_capacity(words),
            None => PackedLayout::new(old.layout.values(), Profile::Auto).unwrap(),
        };
        let new: Vec<PackedForm> = old.iter().map(|old| room(client, layout(old))).collect();
        launch::update_packed(client, update, gradient.clone(), dense, &old, &new, tickets)
            .unwrap();
        let expected = reference(update, &operands);
        last = new.iter().map(|form| read(client, form)).collect();
        for (tensor, packed) in last.iter().enumerate() {
            let what = format!("{name}, {dense:?}, step {step}, tensor {tensor}");
            packed
                .validate()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = host::decode(packed).unwrap();
            check(&what, update.chain.math, &found, &expected[tensor]);
            // The device's bits go on, its NaN among them.
            operands[[0, 2, 3, 4][tensor]] = found;
        }
        old = new;
    }
    last
}

/// Updates of which all states are known, and for which the device binds enough buffers.
fn later(math: Math) -> impl Iterator<Item = (String, Update)> {
    let most = client().properties().hardware.max_bindings as usize;
    let all = updates(math).into_iter();
    all.filter(move |(_, update)| {
        let states = update.chain.states();
        update.chain.known == states && 8 * (1 + states) + 4 <= most
    })
}

#[test]
fn every_chain_has_the_bits_of_the_host() {
    let (client, n) = (client(), 9003);
    let tickets = Tickets::new(&client);
    let dense = DenseLayout::contiguous(n);
    for (name, update) in later(Math::Bf16) {
        run(
            &client,
            &name,
            &update,
            &values(n, 1),
            dense,
            &tickets,
            None,
        );
        run(
            &client,
            &name,
            &update,
            &special_values(n, 2),
            dense,
            &tickets,
            None,
        );
    }
}

/// Stochastic gradient descent with a velocity, not in its first step.
fn velocity() -> Update {
    let momentum = lct_kernels::optim::Momentum {
        momentum: 0.9,
        dampening: 0.1,
        nesterov: false,
    };
    let rule = Sgd {
        momentum: Some(momentum),
        penalty: None,
    };
    rule.update(0.02, 1, Math::Bf16, 0)
}

#[test]
fn every_length_and_row() {
    let client = client();
    let tickets = Tickets::new(&client);
    for n in [
        1, 7, 8, 9, 255, 256, 257, 511, 513, 4095, 4096, 4097, 12_288, 70_001,
    ] {
        let dense = DenseLayout::contiguous(n);
        run(
            &client,
            "length",
            &velocity(),
            &values(n, 3),
            dense,
            &tickets,
            None,
        );
    }
    for (row_len, row_pitch, rows) in [(8, 16, 1000), (300, 512, 24), (3, 5, 2500), (513, 513, 13)]
    {
        let dense = DenseLayout {
            row_len,
            row_pitch,
            rows,
        };
        run(
            &client,
            "rows",
            &velocity(),
            &values(row_len * rows, 4),
            dense,
            &tickets,
            None,
        );
    }
}

#[test]
fn what_no_longer_compresses_is_raw() {
    let (client, n) = (client(), 20_000);
    let tickets = Tickets::new(&client);
    let dense = DenseLayout::contiguous(n);
    let rule = Sgd::default();
    // The weight becomes noise: its code knows none of it. Then it stays raw.
    let mut operands = values(n, 5);
    operands[0] = vec![0; n];
    operands[1] = noise(n, 6)
        .into_iter()
        .map(|bits| bits & 0xbfff | 0x1000)
        .collect();
    let update = rule.update(1.0, 0, Math::Bf16, 0);
    for capacity in [None, Some(0), Some(1 << 20)] {
        let last = run(
            &client, "noise", &update, &operands, dense, &tickets, capacity,
        );
        assert_eq!(stored(&last[0], 0), Stored::Raw);
    }
}

/// A stream's new words are written where its old ones were read. Here the first half of each becomes seven times as long,
/// and the second as much shorter, so that words would be written that have not been read yet.
#[test]
fn new_words_overtake_the_old_ones() {
    let (client, n) = (client(), 5 * 4096);
    let tickets = Tickets::new(&client);
    let layout = PackedLayout::new(n, Profile::Auto).unwrap();
    assert_eq!(
        (layout.stream_symbols(), layout.block_values()),
        (128, 4096)
    );
    let mut operands = values(n, 9);
    // One exponent of a bit, and 64 of seven bits.
    let halves = |long: usize| -> Vec<u16> {
        let exponent = |index: usize| match index % 4096 / 2048 == long {
            true => 32 + ((index as u32).wrapping_mul(0x9e37_79b9) >> 26),
            false => 127,
        };
        (0..n)
            .map(|index| (exponent(index) as u16) << 7 | index as u16 & 0x807f)
            .collect()
    };
    // All that is left of a velocity without momentum is the gradient.
    (operands[1], operands[2]) = (halves(0), halves(1));
    let momentum = lct_kernels::optim::Momentum {
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
    };
    let rule = Sgd {
        momentum: Some(momentum),
        penalty: None,
    };
    let update = rule.update(0.02, 1, Math::Bf16, 0);
    let dense = DenseLayout::contiguous(n);
    let last = run(
        &client,
        "overtaken",
        &update,
        &operands,
        dense,
        &tickets,
        None,
    );
    assert_ne!(stored(&last[1], 0), Stored::Raw);
}

/// So many blocks that all of a cube's teams work and, as there are more than four for each team that an H200 has room for,
/// take them as they come.
#[test]
#[ignore = "112 Mi values, for a card"]
fn many_blocks_have_the_bits_of_the_host() {
    let (client, n) = (client(), 112 << 20);
    let tickets = Tickets::new(&client);
    let dense = DenseLayout::contiguous(n);
    let operands = values(n, 10);
    // A chain for each number of states: the kernel is another one then.
    let mut seen = BTreeSet::new();
    for (name, update) in later(Math::Bf16) {
        if seen.insert(update.chain.states()) {
            run(&client, &name, &update, &operands, dense, &tickets, None);
        }
    }
    assert!(!seen.is_empty());
}

#[test]
fn records_spill() {
    let (client, n) = (client(), 50_000);
    let tickets = Tickets::new(&client);
    let dense = DenseLayout::contiguous(n);
    for capacity in [0, 1000] {
        let last = run(
            &client,
            "spill",
            &velocity(),
            &values(n, 7),
            dense,
            &tickets,
            Some(capacity),
        );
        assert!(last.iter().all(|packed| !packed.spill.is_empty()));
    }
}

#[test]
fn higher_precision_is_the_hosts_up_to_contraction() {
    let (client, n) = (client(), 5000);
    let tickets = Tickets::new(&client);
    for math in [Math::F32, Math::Stochastic] {
        for (name, update) in later(math).step_by(5) {
            let mut operands = values(n, 8);
            operands[1] = vec![bf16(0.01); n];
            run(
                &client,
                &name,
                &update,
                &operands,
                DenseLayout::contiguous(n),
                &tickets,
                None,
            );
        }
    }
}

#[test]
fn what_cannot_be_updated_is_refused() {
    let client = client();
    let tickets = Tickets::new(&client);
    let dense = DenseLayout::contiguous(4096);
    let form = room(&client, PackedLayout::new(4096, Profile::Auto).unwrap());
    let gradient = client.empty(8192);
    let update = velocity();
    let one = [form.clone()];
    let launch = |update: &Update, old: &[PackedForm], new: &[PackedForm]| {
        launch::update_packed(&client, update, gradient.clone(), dense, old, new, &tickets)
            .unwrap_err()
    };
    let two = [form.clone(), form.clone()];
    let refused = launch(&update, &one, &two);
    assert!(
        matches!(
            refused,
            LaunchError::Operands {
                needed: 2,
                found: 1,
                ..
            }
        ),
        "{refused}"
    );
    let mut first = update;
    first.chain.known = 0;
    let refused = launch(&first, &two, &two);
    assert!(refused.to_string().contains("exist"), "{refused}");
    let fixed = room(&client, PackedLayout::new(4096, Profile::Clean).unwrap());
    let refused = launch(&update, &two, &[form.clone(), fixed]);
    assert!(
        matches!(
            refused,
            LaunchError::Profile {
                found: Profile::Clean
            }
        ),
        "{refused}"
    );
    let longer = room(&client, PackedLayout::new(4097, Profile::Auto).unwrap());
    let refused = launch(&update, &[form.clone(), longer], &two);
    assert!(
        matches!(refused, LaunchError::ValueCount { .. }),
        "{refused}"
    );
    let mut small = form.clone();
    small.spill = Some(client.empty(4));
    let refused = launch(&update, &two, &[form, small]);
    assert!(
        matches!(refused, LaunchError::BufferSize { .. }),
        "{refused}"
    );
}
