//! Who gets which piece of a buffer that is dealt while it is worked on.

use super::part;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was taken of a member's share: the deal, then the pieces in the low [`PIECES`] bits. In a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Turn(AtomicU64);

/// Bits that hold a number of pieces.
pub(super) const PIECES: u32 = 28;

/// Deals the pieces of a buffer. A member takes its own share from front to back, then what is left of the others': one that
/// was held up by the system holds up nobody.
pub(super) struct Shares<'m> {
    pub turns: &'m [Turn],
    /// The number of this deal: later ones have greater numbers.
    pub deal: u64,
    /// Whose share is being taken.
    pub of: usize,
    pub pieces: usize,
}

impl Shares<'_> {
    /// The next piece, and where the share ends that it is from.
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let size = self.turns.len();
        for _ in 0..size {
            let share = part(self.pieces, 1, self.of, size);
            if let Some(i) = self.take_of(share.len()) {
                return Some((share.start + i, share.end));
            }
            self.of = (self.of + 1) % size;
        }
        None
    }

    /// The next piece of a share of `count`. None too if anybody has taken of it in a later deal: after all of this was taken.
    fn take_of(&self, count: usize) -> Option<usize> {
        let turn = &self.turns[self.of].0;
        // Relaxed: what was written before is ordered by the barrier, and pieces have nothing to do with each other.
        let mut now = turn.load(Ordering::Relaxed);
        loop {
            let next = match (now >> PIECES).cmp(&self.deal) {
                Less => 0,
                Equal => now & ((1 << PIECES) - 1),
                Greater => return None,
            };
            if next as usize >= count {
                return None;
            }
            let then = self.deal << PIECES | (next + 1);
            match turn.compare_exchange_weak(now, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next as usize),
                Err(changed) => now = changed,
            }
        }
    }
}
