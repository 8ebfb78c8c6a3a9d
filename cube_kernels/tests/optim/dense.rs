//! Updates of dense tensors.

use lct_kernels::launch::{self, DenseLayout, LaunchError};
use lct_kernels::optim::{Math, Sgd, Update};

use crate::cases::{special_values, updates, values};
use crate::{Client, check, client, download, reference};

/// A dense buffer with these rows; gaps and the rest of the last word hold a pattern.
fn place(values: &[u16], dense: DenseLayout) -> Vec<u16> {
    let span = (dense.rows - 1) * dense.row_pitch + dense.row_len;
    let mut buffer = vec![0x5a5a; span.next_multiple_of(2)];
    for (row, values) in values.chunks(dense.row_len).enumerate() {
        buffer[row * dense.row_pitch..][..values.len()].copy_from_slice(values);
    }
    buffer
}

/// Updates on the device, in place or not, and compares with the host. Gaps must stay.
fn run(
    client: &Client,
    name: &str,
    update: &Update,
    operands: &[Vec<u16>; 5],
    dense: DenseLayout,
    in_place: bool,
) {
    let what = format!("{name}, {dense:?}, in place: {in_place}");
    let upload =
        |values: &[u16]| client.create_from_slice(bytemuck::cast_slice(&place(values, dense)));
    let [weight, gradient, states @ ..] = operands;
    let chain = update.chain;
    let mut inputs = vec![upload(gradient), upload(weight)];
    inputs.extend(states.iter().take(chain.known).map(|state| upload(state)));
    let blank = vec![0x1234; weight.len()];
    let outputs: Vec<_> = (0..1 + chain.states())
        .map(|tensor| match inputs.get(1 + tensor) {
            Some(input) if in_place => input.clone(),
            _ => upload(&blank),
        })
        .collect();
    launch::update(client, update, &inputs, &outputs, dense).unwrap();
    for (tensor, expected) in reference(update, operands).iter().enumerate() {
        let found = download(client, outputs[tensor].clone());
        check(
            &format!("{what}, tensor {tensor}"),
            chain.math,
            &found,
            &place(expected, dense),
        );
    }
    if !in_place {
        let kept = download(client, inputs[1].clone());
        assert!(
            kept == place(weight, dense),
            "{what}: the old weight changed"
        );
    }
}

#[test]
fn every_chain_has_the_bits_of_the_host() {
    let client = client();
    let dense = DenseLayout::contiguous(5003);
    for (name, update) in updates(Math::Bf16) {
        run(&client, &name, &update, &values(5003, 1), dense, true);
        run(
            &client,
            &name,
            &update,
            &special_values(5003, 2),
            dense,
            false,
        );
    }
}

#[test]
fn higher_precision_is_the_hosts_up_to_contraction() {
    let client = client();
    let dense = DenseLayout::contiguous(4096);
    for math in [Math::F32, Math::Stochastic] {
        for (name, update) in updates(math) {
            run(&client, &name, &update, &values(4096, 3), dense, true);
        }
    }
}

#[test]
fn pitched_and_odd_rows() {
    let client = client();
    let shapes = [
        (1, 1, 1),
        (7, 7, 1),
        (8, 8, 1),
        (8, 16, 100),
        (300, 512, 24),
        (3, 5, 250),
        (513, 513, 13),
        (2049, 2050, 3),
    ];
    let all = updates(Math::Bf16);
    let (name, update) = &all[9];
    for (row_len, row_pitch, rows) in shapes {
        let dense = DenseLayout {
            row_len,
            row_pitch,
            rows,
        };
        let operands = values(row_len * rows, 4);
        for in_place in [false, true] {
            run(&client, name, update, &operands, dense, in_place);
        }
    }
}

#[test]
fn wrong_operands_are_refused() {
    let client = client();
    let buffer = client.empty(64);
    let dense = DenseLayout::contiguous(32);
    let update = Sgd::default().update(0.1, 0, Math::Bf16, 0);
    let one = [buffer.clone()];
    let refused = launch::update(&client, &update, &one, &one, dense).unwrap_err();
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
    let inputs = [buffer.clone(), client.empty(32)];
    let refused = launch::update(&client, &update, &inputs, &one, dense).unwrap_err();
    assert!(
        matches!(refused, LaunchError::BufferSize { .. }),
        "{refused}"
    );
}
