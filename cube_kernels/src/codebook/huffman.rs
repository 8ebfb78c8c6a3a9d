//! A length-limited Huffman code with an escape, from integer weights alone.
//!
//! The GPU runs the same steps in one cube, so each is deterministic and order-free or done by a
//! single thread: rank sort, two-queue merge, repair of the lengths that exceed the limit.

use super::lengths::{CodeLengths, ESCAPE_SYMBOL, MAX_LENGTH};

/// Symbols rarer than one in `2^DROP_SHIFT` go behind the escape: a code of their own would take
/// at least 1/256 of the code space from the others.
pub(crate) const DROP_SHIFT: u32 = 11;

/// Code lengths for weights whose sum is positive and below `2^21`.
pub(super) fn lengths(weights: &[u32; 256]) -> CodeLengths {
    let leaves = leaves(weights);
    let sorted: Vec<u32> = leaves.iter().map(|leaf| leaf.0).collect();
    let depths = limit(depths(&sorted));

    let mut lengths = CodeLengths::empty();
    for (&(_, symbol), depth) in leaves.iter().zip(depths) {
        if symbol == ESCAPE_SYMBOL {
            lengths.escape = depth as u8;
        } else {
            lengths.symbols[symbol as usize] = depth as u8;
        }
    }
    lengths
}

/// The symbols that get a code and the escape, by ascending weight, ties by ascending symbol.
fn leaves(weights: &[u32; 256]) -> Vec<(u32, u32)> {
    let total: u32 = weights.iter().sum();
    let mut kept: Vec<(u32, u32)> = (0..256)
        .map(|symbol| (weights[symbol as usize], symbol))
        .filter(|&(weight, _)| weight > 0 && weight << DROP_SHIFT >= total)
        .collect();
    kept.sort_unstable();
    // 256 codes of at most 8 bits leave no room for the escape.
    if kept.len() == 256 {
        kept.remove(0);
    }
    let coded: u32 = kept.iter().map(|leaf| leaf.0).sum();
    let escape = (1 + total - coded, ESCAPE_SYMBOL);
    let place = kept.partition_point(|&leaf| leaf < escape);
    kept.insert(place, escape);
    kept
}

/// Depths of the leaves in the Huffman tree of `weights`, which ascend and are at least two.
///
/// New nodes are born by ascending weight, so two queues replace a heap; among equal weights a
/// leaf goes before a node.
fn depths(weights: &[u32]) -> Vec<u32> {
    let n = weights.len();
    let mut nodes: Vec<u32> = Vec::with_capacity(n);
    let mut leaf_parent = vec![0; n];
    let mut node_parent = vec![0; n];
    let (mut next_leaf, mut next_node) = (0, 0);
    for node in 0..n - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            let take_leaf = next_leaf < n
                && (next_node >= nodes.len() || weights[next_leaf] <= nodes[next_node]);
            if take_leaf {
                weight += weights[next_leaf];
                leaf_parent[next_leaf] = node;
                next_leaf += 1;
            } else {
                weight += nodes[next_node];
                node_parent[next_node] = node;
                next_node += 1;
            }
        }
        nodes.push(weight);
    }
    let mut node_depth = vec![0; n - 1];
    for node in (0..n - 2).rev() {
        node_depth[node] = node_depth[node_parent[node]] + 1;
    }
    leaf_parent
        .into_iter()
        .map(|parent| node_depth[parent] + 1)
        .collect()
}

/// Caps depths, which descend, at [`MAX_LENGTH`]; lengthens the rarest codes until the code space
/// suffices, then gives what is left of it to the most frequent.
fn limit(mut depths: Vec<u32>) -> Vec<u32> {
    const SPACE: u32 = 1 << MAX_LENGTH;
    let part = |depth: u32| SPACE >> depth;
    for depth in &mut depths {
        *depth = (*depth).min(MAX_LENGTH);
    }
    let mut used: u32 = depths.iter().map(|&depth| part(depth)).sum();
    let mut rarest = 0;
    while used > SPACE {
        if depths[rarest] == MAX_LENGTH {
            rarest += 1;
        } else {
            depths[rarest] += 1;
            used -= part(depths[rarest]);
        }
    }
    for depth in depths.iter_mut().rev() {
        while *depth > 1 && used + part(*depth) <= SPACE {
            used += part(*depth);
            *depth -= 1;
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(set: &[(usize, u32)]) -> [u32; 256] {
        let mut weights = [0; 256];
        for &(symbol, weight) in set {
            weights[symbol] = weight;
        }
        weights
    }

    #[test]
    fn one_and_two_symbols() {
        let one = lengths(&weights(&[(7, 4096)]));
        assert_eq!((one.symbols[7], one.escape), (1, 1));
        let two = lengths(&weights(&[(7, 4000), (200, 96)]));
        assert_eq!((two.symbols[7], two.symbols[200], two.escape), (1, 2, 2));
    }

    #[test]
    fn every_symbol_alike_leaves_one_behind_the_escape() {
        let all = lengths(&[16; 256]);
        assert_eq!(all.symbols[0], 0);
        assert!(all.symbols[1..].iter().all(|&length| length == 8));
        assert_eq!(all.escape, 8);
    }

    #[test]
    fn steep_weights_stay_within_the_limit() {
        // Fibonacci weights give the deepest Huffman trees.
        let mut set = vec![(0, 1), (1, 1)];
        while set.iter().map(|&(_, weight)| weight).sum::<u32>() < 4096 {
            let n = set.len();
            set.push((n, set[n - 1].1 + set[n - 2].1));
        }
        let code = lengths(&weights(&set));
        code.check().unwrap();
        assert_eq!(code.kraft(), 256);
    }

    #[test]
    fn huffman_is_optimal_when_the_limit_does_not_bind() {
        let code = lengths(&weights(&[(1, 2048), (2, 1024), (3, 512), (4, 512)]));
        assert_eq!(code.symbols[1..5], [1, 2, 4, 3]);
        assert_eq!(code.escape, 4);
    }
}
