//! Every method of Burn's operation traits is forwarded, those with a default too.
//!
//! The lists are read from Burn's sources, so that another version with a method more makes this test
//! fail, where the compiler would silently take the method's default.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{at_depth_zero, block, closing, declared, methods, read};

/// A trait: how its declaration begins and in which file of `burn-backend`, and the same of our
/// implementation.
struct Pair {
    trait_header: &'static str,
    trait_file: &'static str,
    impl_header: &'static str,
    impl_file: &'static str,
}

const fn pair(
    trait_header: &'static str,
    trait_file: &'static str,
    impl_header: &'static str,
    impl_file: &'static str,
) -> Pair {
    Pair {
        trait_header,
        trait_file,
        impl_header,
        impl_file,
    }
}

#[rustfmt::skip]
const PAIRS: [Pair; 9] = [
    pair("trait Backend:", "backend/base.rs", " Backend for LctBackend", "backend.rs"),
    pair("trait FloatTensorOps", "backend/ops/tensor.rs", "FloatTensorOps<Self> for", "ops/float.rs"),
    pair("trait IntTensorOps", "backend/ops/int_tensor.rs", "IntTensorOps<Self> for", "ops/int.rs"),
    pair("trait BoolTensorOps", "backend/ops/bool_tensor.rs", "BoolTensorOps<Self> for", "ops/bool.rs"),
    pair("trait ModuleOps", "backend/ops/modules/base.rs", "ModuleOps<Self> for", "ops/module.rs"),
    pair("trait ActivationOps", "backend/ops/activation.rs", "ActivationOps<Self> for", "ops/activation.rs"),
    pair("trait QTensorOps", "backend/ops/qtensor.rs", "QTensorOps<Self> for", "ops/qtensor.rs"),
    pair("trait TransactionOps", "backend/ops/transaction.rs", "TransactionOps<Self> for", "ops/transaction.rs"),
    pair("trait DistributedBackend", "backend/distributed/ops.rs", " DistributedBackend for LctBackend", "distributed.rs"),
];

/// The methods that do not call the method of their name of the backend inside: they decode nothing.
const OWN: [&str; 12] = [
    "comm_device",
    "float_detach",
    "float_device",
    "float_expand",
    "float_from_ref",
    "float_is_require_grad",
    "float_permute",
    "float_reshape",
    "float_set_require_grad",
    "float_slice",
    "float_swap_dims",
    "float_to_device",
];

/// How many methods the nine traits of Burn 0.21.0 have together.
const AT_LEAST: usize = 437;

#[test]
fn every_method_is_forwarded() {
    let mut total = 0;
    for pair in &PAIRS {
        let declared = declared(pair.trait_header, pair.trait_file);
        let implemented = implemented(&implementation(pair));
        assert_eq!(
            missing(&declared, &implemented),
            Vec::<&str>::new(),
            "{}",
            pair.impl_file
        );

        // The check itself: it notices any one method that is left out.
        for name in &declared {
            let mut all_but_one = implemented.clone();
            all_but_one.remove(name);
            assert_eq!(missing(&declared, &all_but_one), [name]);
        }
        total += declared.len();
    }
    assert!(
        total >= AT_LEAST,
        "only {total} methods found in Burn's sources"
    );
}

#[test]
fn methods_written_out_call_their_namesake() {
    let own: BTreeSet<String> = PAIRS
        .iter()
        .flat_map(|pair| methods(&implementation(pair)))
        .filter(|(name, body)| !body.contains(&format!("B::{name}(")))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(own, set(&OWN));
}

#[test]
fn the_parser_reads_what_it_should() {
    let source = "
        trait Other { fn no(); }
        /// fn no();
        trait Wanted<B: Backend> {
            fn required(x: [usize; 2], f: impl Fn(usize) -> usize);
            fn defaulted() -> usize { fn no() {} Self::required([1, 2]) } // fn no();
            forward! { break(x); (x: Float, n: (Option<usize>)) -> (Float, Int): first, second, }
            forward! { cheap; (x: Float) -> Float: third = Third }
        }
        fn no() {}
    ";
    let block = block(source, "trait Wanted<");
    let names: Vec<String> = methods(&block).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["required", "defaulted"]);
    assert_eq!(
        implemented(&block),
        set(&["required", "defaulted", "first", "second", "third"])
    );
}

/// The block of our implementation of a trait.
fn implementation(pair: &Pair) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    block(&read(&sources.join(pair.impl_file)), pair.impl_header)
}

/// The macros that forward a list of methods: `what they take: names`.
const LISTS: [&str; 4] = [
    "forward! {",
    " convolution! {",
    " transposed_convolution! {",
    " average_pooling! {",
];

/// The methods that an implementation writes out and those in its lists.
fn implemented(block: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = methods(block).into_iter().map(|(name, _)| name).collect();
    for list in LISTS.iter().flat_map(|list| block.split(list).skip(1)) {
        let list = &list[..closing(list)];
        let start = at_depth_zero(list, &[':']).expect("a list is `..: names`");
        // A name may be followed by what else is said of it: `name = Kind`.
        let name = |item: &str| {
            item.split('=')
                .next()
                .unwrap_or_default()
                .trim()
                .to_string()
        };
        let listed = list[start + 1..].split(',').map(name);
        found.extend(listed.filter(|name| !name.is_empty()));
    }
    found
}

fn missing<'a>(declared: &'a BTreeSet<String>, found: &'a BTreeSet<String>) -> Vec<&'a str> {
    declared.difference(found).map(String::as_str).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}
