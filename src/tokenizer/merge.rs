//! Merging neighbours in the order of their priority: the heart of both kinds of tokenizer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// In place of an id or an index: none.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of the text that has become one token (or a character that is none).
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// token, or [`NONE`]
    pub id: u32,
    /// first byte in the text
    pub start: u32,
    /// bytes; 0 once merged into the symbol before it
    pub len: u32,
    prev: u32,
    next: u32,
}

/// A pair that could be merged, smallest first: by priority, then from left to right.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// bytes of both when this was found: differs if either has been merged since
    len: u32,
    id: u32,
}

/// Symbols of a text in order, and the queue of pairs. Its memory is used again from text to text.
///
/// Symbols are a doubly linked list in an array; every merge takes one out and adds at most two candidates, so
/// n symbols take O(n log n) steps, whatever the text.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the text before.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends the next `len` bytes of the text as one symbol. There may be 2^32 - 2 of them, and bytes, at most.
    pub fn push(&mut self, id: u32, len: usize) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last_mut().map_or(0, |last| {
            last.next = index;
            last.start + last.len
        });
        self.symbols.push(Symbol { id, start, len: len as u32, prev: index.wrapping_sub(1), next: NONE });
    }

    /// Merges pairs until none is left. `pair` gives for two neighbours the priority (smaller first) and the token
    /// they become, if they can be merged.
    pub fn run(&mut self, mut pair: impl FnMut(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        for left in 1..self.symbols.len() as u32 {
            self.consider(left - 1, &mut pair);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let Candidate { left, len, id, .. } = candidate;
            let Symbol { len: left_len, prev, next, .. } = self.symbols[left as usize];
            if left_len == 0 || next == NONE || left_len + self.symbols[next as usize].len != len {
                continue;
            }
            let right = &mut self.symbols[next as usize];
            right.len = 0;
            let after = right.next;
            let merged = &mut self.symbols[left as usize];
            (merged.id, merged.len, merged.next) = (id, len, after);
            if after != NONE {
                self.symbols[after as usize].prev = left;
                self.consider(left, &mut pair);
            }
            if prev != NONE {
                self.consider(prev, &mut pair);
            }
        }
    }

    fn consider(&mut self, left: u32, pair: &mut impl FnMut(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let a = &self.symbols[left as usize];
        let b = &self.symbols[a.next as usize];
        if let Some((priority, id)) = pair(a, b) {
            self.queue.push(Reverse(Candidate { priority, left, len: a.len + b.len, id }));
        }
    }

    /// What is left, in order.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|s| s.len > 0)
    }
}
