//! Finding control and user-defined tokens in a text.
//!
//! The longest tokens are taken first, wherever they stand, then shorter ones from what is left, each from left to
//! right. (Not the leftmost first: where two overlap, the longer one wins even if it starts later.)

use super::vocab::Vocab;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher as _;

/// Longer tokens are not searched for, so that the time stays linear in the text.
pub(super) const LONGEST: usize = 1024;

/// A stretch of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t [u8]),
    Token(u32),
}

/// The tokens to search for, by text.
pub(super) struct Specials {
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// All different lengths, longest first.
    lengths: Vec<usize>,
    /// For each first byte, one bit for every length that tokens with it have, 64 lengths a group.
    starts: Vec<[u64; 256]>,
}

impl Specials {
    /// Of tokens with the same text the first is kept.
    pub fn new(vocab: &Vocab) -> Self {
        let searched: Vec<_> =
            vocab.specials().filter(|(_, piece)| (1..=LONGEST).contains(&piece.len())).collect();
        let mut lengths: Vec<usize> = searched.iter().map(|(_, piece)| piece.len()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut specials = Self {
            index: HashTable::with_capacity(searched.len()),
            hasher: DefaultHashBuilder::default(),
            starts: vec![[0; 256]; lengths.len().div_ceil(64)],
            lengths,
        };
        for (id, piece) in searched {
            let Self { index, hasher, lengths, starts } = &mut specials;
            let hash = hasher.hash_one(&piece[..]);
            if index.find(hash, |&other| vocab.piece(other) == piece).is_none() {
                index.insert_unique(hash, id, |&id| hasher.hash_one(&vocab.piece(id)[..]));
            }
            let at = lengths.partition_point(|&len| len > piece.len());
            starts[at / 64][usize::from(piece[0])] |= 1 << (at % 64);
        }
        specials
    }

    /// The token with exactly this text.
    pub fn find(&self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        self.index.find(hash, |&id| *vocab.piece(id) == *text).copied()
    }

    /// Bytes of memory it takes.
    pub fn heap_bytes(&self) -> usize {
        self.index.allocation_size() + 8 * self.lengths.capacity() + size_of_val(&self.starts[..])
    }

    /// Cuts `text` into tokens that satisfy `wanted` and what lies between them; no fragment is empty.
    pub fn split<'t>(
        &self,
        vocab: &Vocab,
        text: &'t [u8],
        wanted: impl Fn(u32) -> bool,
        mut fragment: impl FnMut(Fragment<'t>),
    ) {
        // Starts and ids of the tokens taken; which bytes are theirs.
        let mut taken: Vec<(usize, u32)> = Vec::new();
        let mut covered: Vec<bool> = Vec::new();
        let mut hits: Vec<(usize, u64)> = Vec::new();
        for (group, lengths) in self.starts.iter().zip(self.lengths.chunks(64)) {
            hits.clear();
            for (at, first) in text.iter().enumerate() {
                let mut lengths_left = group[usize::from(*first)];
                let mut found = 0;
                while lengths_left != 0 {
                    let bit = lengths_left.trailing_zeros();
                    lengths_left &= lengths_left - 1;
                    let token = text.get(at..at + lengths[bit as usize]).and_then(|t| self.find(vocab, t));
                    if token.is_some_and(&wanted) {
                        found |= 1 << bit;
                    }
                }
                if found != 0 {
                    hits.push((at, found));
                }
            }
            if hits.is_empty() {
                continue;
            }
            covered.resize(text.len(), false);
            for (bit, &len) in lengths.iter().enumerate() {
                for &(at, _) in hits.iter().filter(|(_, found)| found >> bit & 1 == 1) {
                    // What was taken before is no shorter: where it overlaps, it covers an end of this.
                    if covered[at] || covered[at + len - 1] {
                        continue;
                    }
                    covered[at..at + len].fill(true);
                    taken.extend(self.find(vocab, &text[at..at + len]).map(|id| (at, id)));
                }
            }
        }
        taken.sort_unstable();
        let mut from = 0;
        for (at, id) in taken {
            if from < at {
                fragment(Fragment::Text(&text[from..at]));
            }
            fragment(Fragment::Token(id));
            from = at + vocab.piece(id).len();
        }
        if from < text.len() {
            fragment(Fragment::Text(&text[from..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vocab::{Form, Kind};
    use super::*;

    fn split(tokens: &[&str], text: &str) -> String {
        let tokens: Vec<_> = tokens.iter().map(|&text| (text, Kind::UserDefined)).collect();
        let vocab = Vocab::of(Form::Bytes, &tokens);
        let mut out = String::new();
        Specials::new(&vocab).split(
            &vocab,
            text.as_bytes(),
            |_| true,
            |f| match f {
                Fragment::Text(t) => out += &String::from_utf8_lossy(t),
                Fragment::Token(id) => out += &format!("[{id}]"),
            },
        );
        out
    }

    #[test]
    fn longest_first_then_left_to_right() {
        assert_eq!(split(&["<s>", "<s>x"], "a<s>b<s>xc<s"), "a[0]b[1]c<s");
        assert_eq!(split(&["ab", "bcd"], "abcd ab"), "a[1] [0]");
        assert_eq!(split(&["  ", "    "], "       x "), "[1][0] x ");
        assert_eq!(split(&["aa"], "aaaaa"), "[0][0]a");
        assert_eq!(split(&["", "é"], "éé"), "[1][1]");
        assert_eq!(split(&[], "text"), "text");
        assert_eq!(split(&["x"], ""), "");
    }

    #[test]
    fn more_lengths_than_bits() {
        let tokens: Vec<String> = (1..200).map(|n| "a".repeat(n)).collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        assert_eq!(split(&tokens, &"a".repeat(199 + 150)), "[198][149]");
    }
}
