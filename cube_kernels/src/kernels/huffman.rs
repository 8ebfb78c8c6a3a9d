//! The device's twin of the host's length-limited Huffman code: same steps, same bits.

use cubecl::prelude::*;

use crate::codebook::{DROP_SHIFT, ESCAPE_SYMBOL, MAX_LENGTH};

/// Leaves: every exponent and the escape.
const LEAVES: usize = 257;
const SPACE: u32 = 1 << MAX_LENGTH;

/// Code lengths by symbol, the escape last, for the counts of `total` samples.
///
/// Unit `u` decides for exponent `u`; the merge, a few dozen steps on real data, is unit 0's.
#[cube]
pub(super) fn lengths(count: u32, total: u32) -> SharedMemory<u32> {
    let mut lengths = SharedMemory::<u32>::new(LEAVES);
    let mut keys = SharedMemory::<u32>::new(LEAVES);
    let mut weights = SharedMemory::<u32>::new(LEAVES);
    let mut symbols = SharedMemory::<u32>::new(LEAVES);
    // Kept symbols, their weight, the rarest of them, keys below the escape's.
    let tally = SharedMemory::<Atomic<u32>>::new(4usize);

    let key = count * 512 + UNIT_POS;
    let mut kept = count > 0 && count << DROP_SHIFT >= total;
    if UNIT_POS < 4 {
        tally[UNIT_POS as usize].store(select(UNIT_POS == 2, u32::MAX, 0u32));
    }
    sync_cube();
    if kept {
        tally[0].fetch_add(1u32);
        tally[1].fetch_add(count);
        tally[2].fetch_min(key);
    }
    sync_cube();
    let mut leaves = tally[0].load();
    let mut coded = tally[1].load();
    if leaves == 256 {
        // 256 codes of at most 8 bits leave no room for the escape.
        let rarest = tally[2].load();
        leaves = 255u32;
        coded -= rarest / 512;
        if key == rarest {
            kept = false;
        }
    }
    leaves += 1;
    let escape_weight = 1 + total - coded;
    let escape_key = escape_weight * 512 + ESCAPE_SYMBOL;

    // Each leaf's rank is the number of lower keys.
    keys[UNIT_POS as usize] = select(kept, key, u32::MAX);
    lengths[UNIT_POS as usize] = 0u32;
    if kept && key < escape_key {
        tally[3].fetch_add(1u32);
    }
    sync_cube();
    let mut rank = u32::cast_from(escape_key < key);
    for other in 0..256usize {
        if keys[other] < key {
            rank += 1;
        }
    }
    if kept {
        weights[rank as usize] = count;
        symbols[rank as usize] = UNIT_POS;
    }
    if UNIT_POS == 0 {
        let rank = tally[3].load();
        weights[rank as usize] = escape_weight;
        symbols[rank as usize] = ESCAPE_SYMBOL;
    }
    sync_cube();
    let depths = depths(&weights, leaves);
    if UNIT_POS < leaves {
        lengths[symbols[UNIT_POS as usize] as usize] = depths[UNIT_POS as usize];
    }
    // The escape makes 256 exponents 257 leaves, but never more than 256 of them have codes.
    sync_cube();
    lengths
}

/// Limited depths of the leaves, whose weights ascend.
#[cube]
fn depths(weights: &SharedMemory<u32>, leaves: u32) -> SharedMemory<u32> {
    let mut depths = SharedMemory::<u32>::new(LEAVES);
    let mut nodes = SharedMemory::<u32>::new(LEAVES);
    let mut leaf_parent = SharedMemory::<u32>::new(LEAVES);
    let mut node_parent = SharedMemory::<u32>::new(LEAVES);

    if UNIT_POS == 0 {
        let mut next_leaf = 0u32;
        let mut next_node = 0u32;
        for node in 0..leaves - 1 {
            let mut weight = 0u32;
            for _child in 0..2u32 {
                // Both sides are read whatever the guards say: places one past the end exist.
                let lighter = weights[next_leaf as usize] <= nodes[next_node as usize];
                if next_leaf < leaves && (next_node >= node || lighter) {
                    weight += weights[next_leaf as usize];
                    leaf_parent[next_leaf as usize] = node;
                    next_leaf += 1;
                } else {
                    weight += nodes[next_node as usize];
                    node_parent[next_node as usize] = node;
                    next_node += 1;
                }
            }
            nodes[node as usize] = weight;
        }

        // From here on `nodes` holds depths, the root's first.
        nodes[(leaves - 2) as usize] = 0u32;
        for step in 0..leaves - 2 {
            let node = leaves - 3 - step;
            nodes[node as usize] = nodes[node_parent[node as usize] as usize] + 1;
        }
        let mut used = 0u32;
        for leaf in 0..leaves {
            let depth = nodes[leaf_parent[leaf as usize] as usize] + 1;
            let depth = select(depth > MAX_LENGTH, MAX_LENGTH, depth);
            depths[leaf as usize] = depth;
            used += SPACE >> depth;
        }
        let mut rarest: u32 = 0u32;
        while used > SPACE {
            let depth = depths[rarest as usize];
            if depth == MAX_LENGTH {
                rarest += 1;
            } else {
                depths[rarest as usize] = depth + 1;
                used -= SPACE >> (depth + 1);
            }
        }
        for step in 0..leaves {
            let leaf = leaves - 1 - step;
            let mut depth = depths[leaf as usize];
            while depth > 1 && used + (SPACE >> depth) <= SPACE {
                used += SPACE >> depth;
                depth -= 1;
            }
            depths[leaf as usize] = depth;
        }
    }
    sync_cube();
    depths
}
