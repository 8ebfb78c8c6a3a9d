//! burn-fusion fuses the same operations with LCT and without: other kernels could give other bits.

use std::collections::BTreeMap;

use crate::{config, folder, trained};

const TINY: &[&str] = &["--preset", "tiny", "--steps", "3"];

/// What was executed, how often: blocks of operations that became one kernel each, and operations by themselves, with types and
/// shapes.
///
/// A table lists each plan that is executed: an operation a line, which begins with its number, and has its block's name where
/// one begins. Tensors' numbers say nothing. Which of two operations comes first that have nothing to do with one another makes
/// no difference to a kernel, so each block is sorted.
fn executed(told: &str) -> BTreeMap<Vec<String>, usize> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut lines = told.lines();
    while let Some(title) = lines.next() {
        if !title.starts_with("fusion trace") {
            continue;
        }
        let rows = lines.by_ref().skip(2);
        for row in rows.take_while(|row| row.starts_with(|first: char| first.is_ascii_digit())) {
            let words: Vec<&str> = row.split_whitespace().skip(1).collect();
            // "▸ fused ElementWise (score=870, 8 ops) NumericFloat::Mul ..."
            let ends = words.iter().position(|word| word.ends_with(')'));
            let at = ends.filter(|_| words[0] == "▸").map_or(0, |ends| ends + 1);
            if words[0] == "▸" {
                let name = words[1..at]
                    .iter()
                    .take_while(|word| !word.starts_with('('));
                blocks.push(vec![name.copied().collect::<Vec<_>>().join(" ")]);
            }
            // No kernel does these; LCT's own are beside the stream.
            if ["Drop", "Custom"].contains(&words[at]) {
                continue;
            }
            // "t17:bf16[64,512]"
            let plain = |word: &&str| match word.split_once(':') {
                Some((tensor, rest)) if tensor.starts_with('t') => rest.to_owned(),
                _ => (*word).to_owned(),
            };
            let operation: Vec<String> = words[at..].iter().map(plain).collect();
            let block = blocks.last_mut().expect("a plan begins with a block");
            block.push(operation.join(" "));
        }
    }
    let mut counts = BTreeMap::new();
    for mut block in blocks {
        if block[0] == "un-fused" {
            let alone = block.drain(1..).map(|operation| vec![operation]);
            alone.for_each(|block| *counts.entry(block).or_default() += 1);
        } else {
            block[1..].sort();
            *counts.entry(block).or_default() += 1;
        }
    }
    counts
}

#[test]
fn plans_are_those_of_plain_burn() {
    let folder = folder("plans");
    // Much has to rest, and soon.
    let config = config(
        &folder,
        r#"{"hot_window": {"bytes": 2000000}, "min_elements": 1024}"#,
    );

    let (told, report) = trained(&folder, "plain", TINY);
    assert!(report.memory.is_none());
    let plain = executed(&told);
    let fused = plain.keys().filter(|block| block.len() > 1);
    assert!(fused.clone().count() > 30, "{plain:#?}");
    assert!(fused.clone().any(|block| block.len() > 8));

    let (told, report) = trained(
        &folder,
        "lct",
        &[TINY, &config.each_ref().map(String::as_str)].concat(),
    );
    let count = |name: &str| {
        let memory = report.memory.as_ref().unwrap();
        memory["report"][name].as_u64().unwrap()
    };
    assert!(count("encodes") > 100 && count("decodes") > 100);
    assert_eq!(count("failed_encodes"), 0);
    let lct = executed(&told);
    let differs = |block: &&Vec<String>| plain.get(*block) != lct.get(*block);
    let different: BTreeMap<_, _> = (plain.keys().chain(lct.keys()))
        .filter(differs)
        .map(|block| (block, (plain.get(block), lct.get(block))))
        .collect();
    assert!(
        different.is_empty(),
        "executed by plain Burn and by LCT: {different:#?}"
    );
}
