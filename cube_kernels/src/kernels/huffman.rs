//! The device's twin of the host's length-limited Huffman code: same steps, same bits.

use cubecl::prelude::*;

use crate::codebook::{DROP_SHIFT, ESCAPE_SYMBOL, MAX_LENGTH};

/// Leaves: every exponent and the escape.
const LEAVES: usize = 257;
const SPACE: u32 = 1 << MAX_LENGTH;

/// Code lengths by symbol, the escape last, for the counts of `total` samples.
///
/// Unit `u` decides for exponent `u`, then for leaf `u`; the merge, a few dozen steps on real data,
/// and what is left of the limit are unit 0's.
#[cube]
pub(super) fn lengths(count: u32, total: u32) -> SharedMemory<u32> {
    let mut lengths = SharedMemory::<u32>::new(LEAVES);
    let mut keys = SharedMemory::<u32>::new(LEAVES);
    let mut weights = SharedMemory::<u32>::new(LEAVES);
    let mut symbols = SharedMemory::<u32>::new(LEAVES);
    // Kept symbols, their weight, the rarest of them.
    let tally = SharedMemory::<Atomic<u32>>::new(3usize);

    let key = count * 512 + UNIT_POS;
    let mut kept = count > 0 && count << DROP_SHIFT >= total;
    lengths[UNIT_POS as usize] = 0u32;
    // Behind the last leaf none is lighter.
    weights[UNIT_POS as usize] = u32::MAX;
    if UNIT_POS < 3 {
        tally[UNIT_POS as usize].store(select(UNIT_POS == 2, u32::MAX, 0u32));
    }
    if UNIT_POS == 0 {
        weights[comptime!(LEAVES - 1)] = u32::MAX;
    }
    sync_cube();
    if kept {
        let place = tally[0].fetch_add(1u32);
        keys[place as usize] = key;
        tally[1].fetch_add(count);
        tally[2].fetch_min(key);
    }
    sync_cube();
    let listed = tally[0].load();
    let mut coded = tally[1].load();
    let mut dropped = 0u32;
    if listed == 256 {
        // 256 codes of at most 8 bits leave no room for the escape.
        let rarest = tally[2].load();
        dropped = 1u32;
        coded -= rarest / 512;
        if key == rarest {
            kept = false;
        }
    }
    let leaves = listed - dropped + 1;
    let escape_weight = 1 + total - coded;
    let escape_key = escape_weight * 512 + ESCAPE_SYMBOL;

    // Each leaf's rank is the number of lower keys, of which the dropped one is none.
    let mut rank = u32::cast_from(escape_key < key);
    let mut escape_rank = 0u32;
    for place in 0..listed {
        let other = keys[place as usize];
        rank += u32::cast_from(other < key);
        escape_rank += u32::cast_from(other < escape_key);
    }
    if kept {
        weights[(rank - dropped) as usize] = count;
        symbols[(rank - dropped) as usize] = UNIT_POS;
    }
    if UNIT_POS == 0 {
        weights[(escape_rank - dropped) as usize] = escape_weight;
        symbols[(escape_rank - dropped) as usize] = ESCAPE_SYMBOL;
    }
    sync_cube();
    // The escape makes 256 exponents 257 leaves, but never more than 256 of them have codes.
    let depths = depths(&weights, leaves);
    if UNIT_POS < leaves {
        lengths[symbols[UNIT_POS as usize] as usize] = depths[UNIT_POS as usize];
    }
    sync_cube();
    lengths
}

/// Limited depths of the leaves, whose weights ascend.
#[cube]
fn depths(weights: &SharedMemory<u32>, leaves: u32) -> SharedMemory<u32> {
    let mut depths = SharedMemory::<u32>::new(LEAVES);
    let mut leaf_parent = SharedMemory::<u32>::new(LEAVES);
    let mut node_parent = SharedMemory::<u32>::new(LEAVES);
    // Code space used, leaves at the limit.
    let tally = SharedMemory::<Atomic<u32>>::new(2usize);
    if UNIT_POS == 0 {
        tally[0].store(0u32);
        tally[1].store(0u32);
        merge(weights, leaves, &mut leaf_parent, &mut node_parent);
    }
    sync_cube();

    if UNIT_POS < leaves {
        // What lies deeper than the limit is capped, so the way up need not go further.
        let mut depth = 1u32;
        let mut node = leaf_parent[UNIT_POS as usize];
        while depth < MAX_LENGTH && node < leaves - 2 {
            node = node_parent[node as usize];
            depth += 1;
        }
        depths[UNIT_POS as usize] = depth;
        tally[0].fetch_add(SPACE >> depth);
        if depth == MAX_LENGTH {
            tally[1].fetch_add(1u32);
        }
    }
    sync_cube();

    if UNIT_POS == 0 {
        let mut used = tally[0].load();
        // Depths descend, so the leaves at the limit are the first ones.
        let mut rarest = tally[1].load();
        while used > SPACE {
            let depth = depths[rarest as usize];
            if depth == MAX_LENGTH {
                rarest += 1;
            } else {
                depths[rarest as usize] = depth + 1;
                used -= SPACE >> (depth + 1);
            }
        }
        let mut leaf = leaves;
        while used < SPACE && leaf > 0 {
            leaf -= 1;
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

/// Parents of leaves and nodes, by one unit. The lightest of both queues are held in registers, so
/// a child costs one read of shared memory.
#[cube]
fn merge(
    weights: &SharedMemory<u32>,
    leaves: u32,
    leaf_parent: &mut SharedMemory<u32>,
    node_parent: &mut SharedMemory<u32>,
) {
    let mut nodes = SharedMemory::<u32>::new(LEAVES);
    let mut next_leaf = 0u32;
    let mut next_node = 0u32;
    // Weights behind the end of a queue are the greatest; one leaf more is read ahead.
    let mut leaf = weights[0];
    let mut following = weights[1];
    let mut oldest = u32::MAX.runtime();
    for node in 0..leaves - 1 {
        let mut weight = 0u32;
        #[unroll]
        for _child in 0..2u32 {
            if leaf <= oldest {
                weight += leaf;
                leaf_parent[next_leaf as usize] = node;
                next_leaf += 1;
                leaf = following;
                // The last leaf's successor is the sentinel.
                let after = select(next_leaf < leaves, next_leaf + 1, leaves);
                following = weights[after as usize];
            } else {
                weight += oldest;
                node_parent[next_node as usize] = node;
                next_node += 1;
                oldest = u32::MAX.runtime();
                if next_node < node {
                    oldest = nodes[next_node as usize];
                }
            }
        }
        nodes[node as usize] = weight;
        if next_node == node {
            oldest = weight;
        }
    }
}
