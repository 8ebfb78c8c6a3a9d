//! The device's twin of the host's length-limited Huffman code: same steps, same bits.

use cubecl::prelude::*;

use crate::codebook::{DROP_SHIFT, ESCAPE_SYMBOL, MAX_LENGTH};

/// Leaves: every exponent and the escape.
const LEAVES: u32 = 257;
const SPACE: u32 = 1 << MAX_LENGTH;

/// Where the arrays of leaves, or nodes, lie in the scratch memory.
const LENGTHS: u32 = 0;
const KEYS: u32 = LEAVES;
const WEIGHTS: u32 = 2 * LEAVES;
const SYMBOLS: u32 = 3 * LEAVES;
const DEPTHS: u32 = 4 * LEAVES;
const LEAF_PARENT: u32 = 5 * LEAVES;
const NODE_PARENT: u32 = 6 * LEAVES;
const NODES: u32 = 7 * LEAVES;
/// Words of scratch memory.
pub(crate) const SCRATCH_WORDS: u32 = 8 * LEAVES;

/// Writes the code lengths by symbol, the escape last, for the counts of `total` samples to the beginning of `scratch`.
///
/// Unit `u` decides for exponent `u`, then for leaf `u`; the merge, a few dozen steps on real data,
/// and what is left of the limit are unit 0's.
#[cube]
pub(super) fn lengths(count: u32, total: u32, scratch: SharedMemory<u32>) {
    let mut scratch = scratch;
    // Kept symbols, their weight, the rarest of them.
    let tally = SharedMemory::<Atomic<u32>>::new(3usize);

    let key = count * 512 + UNIT_POS;
    let mut kept = count > 0 && count << DROP_SHIFT >= total;
    scratch[(LENGTHS + UNIT_POS) as usize] = 0u32;
    // Behind the last leaf none is lighter.
    scratch[(WEIGHTS + UNIT_POS) as usize] = u32::MAX;
    if UNIT_POS < 3 {
        tally[UNIT_POS as usize].store(select(UNIT_POS == 2, u32::MAX, 0u32));
    }
    if UNIT_POS == 0 {
        scratch[comptime!((WEIGHTS + LEAVES - 1) as usize)] = u32::MAX;
    }
    sync_cube();
    if kept {
        let place = tally[0].fetch_add(1u32);
        scratch[(KEYS + place) as usize] = key;
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
        let other = scratch[(KEYS + place) as usize];
        rank += u32::cast_from(other < key);
        escape_rank += u32::cast_from(other < escape_key);
    }
    if kept {
        scratch[(WEIGHTS + (rank - dropped)) as usize] = count;
        scratch[(SYMBOLS + (rank - dropped)) as usize] = UNIT_POS;
    }
    if UNIT_POS == 0 {
        scratch[(WEIGHTS + (escape_rank - dropped)) as usize] = escape_weight;
        scratch[(SYMBOLS + (escape_rank - dropped)) as usize] = ESCAPE_SYMBOL;
    }
    sync_cube();
    // The escape makes 256 exponents 257 leaves, but never more than 256 of them have codes.
    depths(scratch, leaves);
    if UNIT_POS < leaves {
        let symbol = scratch[(SYMBOLS + UNIT_POS) as usize];
        scratch[(LENGTHS + symbol) as usize] = scratch[(DEPTHS + UNIT_POS) as usize];
    }
    sync_cube();
}

/// Limited depths of the leaves, whose weights ascend.
#[cube]
fn depths(scratch: SharedMemory<u32>, leaves: u32) {
    let mut scratch = scratch;
    // Code space used, leaves at the limit.
    let tally = SharedMemory::<Atomic<u32>>::new(2usize);
    if UNIT_POS == 0 {
        tally[0].store(0u32);
        tally[1].store(0u32);
        merge(scratch, leaves);
    }
    sync_cube();

    if UNIT_POS < leaves {
        // What lies deeper than the limit is capped, so the way up need not go further.
        let mut depth = 1u32;
        let mut node = scratch[(LEAF_PARENT + UNIT_POS) as usize];
        while depth < MAX_LENGTH && node < leaves - 2 {
            node = scratch[(NODE_PARENT + node) as usize];
            depth += 1;
        }
        scratch[(DEPTHS + UNIT_POS) as usize] = depth;
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
            let depth = scratch[(DEPTHS + rarest) as usize];
            if depth == MAX_LENGTH {
                rarest += 1;
            } else {
                scratch[(DEPTHS + rarest) as usize] = depth + 1;
                used -= SPACE >> (depth + 1);
            }
        }
        let mut leaf = leaves;
        while used < SPACE && leaf > 0 {
            leaf -= 1;
            let mut depth = scratch[(DEPTHS + leaf) as usize];
            while depth > 1 && used + (SPACE >> depth) <= SPACE {
                used += SPACE >> depth;
                depth -= 1;
            }
            scratch[(DEPTHS + leaf) as usize] = depth;
        }
    }
    sync_cube();
}

/// Parents of leaves and nodes, by one unit. The lightest of both queues are held in registers, so
/// a child costs one read of shared memory.
#[cube]
fn merge(scratch: SharedMemory<u32>, leaves: u32) {
    let mut scratch = scratch;
    let mut next_leaf = 0u32;
    let mut next_node = 0u32;
    // Weights behind the end of a queue are the greatest; one leaf more is read ahead.
    let mut leaf = scratch[comptime!(WEIGHTS as usize)];
    let mut following = scratch[comptime!((WEIGHTS + 1) as usize)];
    let mut oldest = u32::MAX.runtime();
    for node in 0..leaves - 1 {
        let mut weight = 0u32;
        #[unroll]
        for _child in 0..2u32 {
            if leaf <= oldest {
                weight += leaf;
                scratch[(LEAF_PARENT + next_leaf) as usize] = node;
                next_leaf += 1;
                leaf = following;
                // The last leaf's successor is the sentinel.
                let after = select(next_leaf < leaves, next_leaf + 1, leaves);
                following = scratch[(WEIGHTS + after) as usize];
            } else {
                weight += oldest;
                scratch[(NODE_PARENT + next_node) as usize] = node;
                next_node += 1;
                oldest = u32::MAX.runtime();
                if next_node < node {
                    oldest = scratch[(NODES + next_node) as usize];
                }
            }
        }
        scratch[(NODES + node) as usize] = weight;
        if next_node == node {
            oldest = weight;
        }
    }
}
