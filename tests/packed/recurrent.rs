//! Recurrent modules: many small tensors, each of which is used again in the next time step.

use burn::nn::{
    BiGruConfig, BiLstmConfig, BiRnnConfig, GruConfig, LstmConfig, LstmState, RnnConfig,
};

use crate::results::leaf;
use crate::{DEVICE, Results, Train, same_bits};

/// Sequences, time steps, features; one step has enough values to be worth packing.
const SHAPE: [usize; 3] = [32, 10, 64];
const HIDDEN: usize = 64;

#[test]
fn rnn() {
    same_bits!(rnns);
}

#[test]
fn lstm() {
    same_bits!(lstms);
}

#[test]
fn gru() {
    same_bits!(grus);
}

fn rnns<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>(SHAPE, 1);
    let layer = RnnConfig::new(SHAPE[2], HIDDEN, true).init(&DEVICE);
    let (output, state) = layer.forward(x.clone(), None);
    results.tensor("hidden", state.hidden);
    results.module("rnn", &layer, &x, output);

    let layer = BiRnnConfig::new(SHAPE[2], HIDDEN, true).init(&DEVICE);
    let (output, _) = layer.forward(x.clone(), None);
    results.module("both ways", &layer, &x, output);
}

fn lstms<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>(SHAPE, 1);
    let layer = LstmConfig::new(SHAPE[2], HIDDEN, true).init(&DEVICE);
    let start = LstmState::new(leaf([SHAPE[0], HIDDEN], 2), leaf([SHAPE[0], HIDDEN], 3));
    let (cell, hidden) = (start.cell.clone(), start.hidden.clone());
    let (output, end) = layer.forward(x.clone(), Some(start));
    results.backward("end", end.cell + end.hidden, &[&cell, &hidden]);
    results.module("lstm", &layer, &x, output);

    let layer = BiLstmConfig::new(SHAPE[2], HIDDEN, false).init(&DEVICE);
    let (output, _) = layer.forward(x.clone(), None);
    results.module("both ways", &layer, &x, output);
}

fn grus<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>(SHAPE, 1);
    for reset_after in [true, false] {
        let layer = GruConfig::new(SHAPE[2], HIDDEN, true)
            .with_reset_after(reset_after)
            .init(&DEVICE);
        results.module("gru", &layer, &x, layer.forward(x.clone(), None));
    }
    let layer = BiGruConfig::new(SHAPE[2], HIDDEN, true).init(&DEVICE);
    let (output, _) = layer.forward(x.clone(), None);
    results.module("both ways", &layer, &x, output);
}
