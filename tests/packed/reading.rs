//! Reading tensors: data, scalars, transactions, print.

use burn::tensor::{Tensor, Transaction};

use crate::results::{indices, leaf, normal};
use crate::{DEVICE, Lct, Packed, Results, Train, report, same_bits, turn};

#[test]
fn data() {
    same_bits!(read);
}

#[test]
fn transactions() {
    same_bits!(together);
}

#[test]
fn print() {
    same_bits!(printed);
}

#[test]
fn debug_shows_the_form_and_needs_no_decode() {
    let _turn = turn();
    let tensor = normal::<Packed, 2>([64, 96], 1);
    let before = report();
    let text = format!("{tensor:?}");
    assert!(text.contains("dims: [64, 96]"), "{text}");
    assert!(text.contains("held: Nothing"), "{text}");
    assert_eq!(report().decodes, before.decodes, "{text}");
    // A tensor that passes is printed as Flex prints it.
    let passed = format!(
        "{:?}",
        Tensor::<Lct, 1>::from_floats([1.5], &DEVICE).cast(burn::tensor::DType::F32)
    );
    assert!(passed.contains("LctTensor(FlexTensor"), "{passed}");
}

fn read<B: Train>(results: &mut Results) {
    let x = leaf::<B, 2>([64, 96], 1);
    results.data("a copy", x.to_data());
    results.data("a view", x.clone().transpose().to_data());
    results.data(
        "tried",
        x.clone().try_into_data().expect("nothing has failed"),
    );
    let scalar = x.clone().sum().into_scalar();
    results.text("scalar", &scalar.to_string());
    for (index, row) in x.clone().iter_dim(0).take(3).enumerate() {
        results.tensor(format!("row {index}"), row);
    }
    // The tensor itself is still there after all that.
    results.data("the last", x.into_data());
}

fn together<B: Train>(results: &mut Results) {
    let x = normal::<B, 2>([64, 96], 1);
    let read = Transaction::default()
        .register(x.clone().transpose())
        .register(indices::<B, 1>([100], 9, 2))
        .register(x.clone())
        .register(x.clone().greater_elem(0.0))
        .register((x * 2.0).exp())
        .try_execute()
        .expect("nothing has failed");
    assert_eq!(read.len(), 5);
    for (index, data) in read.into_iter().enumerate() {
        results.data(format!("part {index}"), data);
    }
}

fn printed<B: Train>(results: &mut Results) {
    let x = leaf::<B, 3>([4, 32, 48], 1);
    let name = format!("{:?}", B::name(&DEVICE));
    for text in [format!("{x}"), format!("{:.2}", x.clone().swap_dims(0, 2))] {
        assert!(
            text.contains("shape:") && text.contains("\"bf16\""),
            "{text}"
        );
        // Only the backend's name differs.
        results.text("display", &text.replace(&name, ""));
    }
}
