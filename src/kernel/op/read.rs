//! Reading memory and nothing else: what decoding cannot exceed.

use crate::kernel::isa::{Isa, Simd};
use crate::kernel::par::Team;
use std::hint::black_box;

/// Members take turns with pieces of so many bytes, so that all of them are in the same part of memory.
const PIECE: usize = 1 << 20;

/// How many bytes before they are read they are asked for: on its own a CPU asks less far ahead than the memory has time to
/// answer, and reads a sixth slower.
const AHEAD: usize = 8 << 10;

/// The members of a team add up all bytes, eight at a time.
pub fn read(isa: Isa, team: &Team, parts: &[&[u8]]) {
    team.run(|member| {
        let pieces = parts.iter().flat_map(|part| part.chunks(PIECE));
        let mut lanes = [0; 8];
        for piece in pieces.skip(member.index()).step_by(member.size()) {
            lanes = crate::simd!(isa, s => add(s, piece, lanes));
        }
        black_box(lanes);
    });
}

/// Adds the words of a piece to eight sums, in turn. What is left at its end does not count.
#[inline(always)]
fn add<S: Simd>(s: S, piece: &[u8], mut lanes: [u64; 8]) -> [u64; 8] {
    for line in piece.as_chunks::<64>().0 {
        s.prefetch(line.as_ptr().wrapping_add(AHEAD));
        for (lane, word) in lanes.iter_mut().zip(line.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_whole_line_is_added_once() {
        let bytes: Vec<u8> = (0..64 * 9 + 5).map(|i| (i * 7 % 251) as u8).collect();
        let mut want = [1u64; 8];
        for i in 0..64 * 9 / 8 {
            let word = u64::from_le_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
            want[i % 8] = want[i % 8].wrapping_add(word);
        }
        for isa in Isa::all() {
            assert_eq!(crate::simd!(isa, s => add(s, &bytes, [1; 8])), want, "{isa:?}");
        }
    }
}
