//! Byte-pair encoding: neighbours are merged in the order in which training merged them.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::merge::{Merger, NONE};
use super::pretokenize::{Pretokenizer, char_at};
use super::vocab::{SPACE_MARK, Vocab, unmark_spaces};

/// Pairs of tokens and what they merge into; their position is their rank.
pub(super) struct Merges {
    list: Vec<Merge>,
    /// Positions in `list`, by pair.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

struct Merge {
    pair: [u32; 2],
    merged: u32,
}

impl Merges {
    /// Takes in merges as a file has them, `left right`, and says how many name a text that is no token: those are
    /// left out. `None` where there are more than 2^32 - 2.
    pub fn new<'a>(vocab: &Vocab, merges: impl ExactSizeIterator<Item = &'a [u8]>) -> Option<(Self, usize)> {
        let n = u32::try_from(merges.len()).ok().filter(|&n| n < NONE)? as usize;
        let mut list = Vec::with_capacity(n);
        let mut index = HashTable::with_capacity(n);
        let hasher = DefaultHashBuilder::default();
        let (mut scratch, mut joined) = (Vec::new(), Vec::new());
        let mut odd = 0;
        for text in merges {
            let mut resolve = || {
                // A token may begin with a space, so the first one does not count.
                let space = 1 + text.get(1..)?.iter().position(|&b| b == b' ')?;
                let (left, right) = (&text[..space], &text[space + 1..]);
                let pair = [vocab.find_written(left, &mut joined)?, vocab.find_written(right, &mut scratch)?];
                joined.extend(&scratch);
                Some(Merge { pair, merged: vocab.symbol(&joined)? })
            };
            let Some(merge) = resolve() else {
                odd += 1;
                continue;
            };
            let hash = hasher.hash_one(merge.pair);
            // Of equal pairs the first counts.
            if index.find(hash, |&at| pair_at(&list, at) == merge.pair).is_none() {
                index.insert_unique(hash, list.len() as u32, |&at| hasher.hash_one(pair_at(&list, at)));
                list.push(merge);
            }
        }
        Some((Self { list, index, hasher }, odd))
    }

    /// Bytes of memory they take.
    pub fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Merge>() + self.index.allocation_size()
    }

    /// Rank and result of merging two tokens.
    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let pair = [left, right];
        let hash = self.hasher.hash_one(pair);
        let rank = *self.index.find(hash, |&at| pair_at(&self.list, at) == pair)?;
        Some((rank, self.list[rank as usize].merged))
    }
}

fn pair_at(list: &[Merge], at: u32) -> [u32; 2] {
    list[at as usize].pair
}

/// Appends the tokens of `text`, whose bytes are the first symbols.
pub(super) fn encode_bytes(
    vocab: &Vocab,
    merges: &Merges,
    pre: &Pretokenizer,
    text: &[u8],
    merger: &mut Merger,
    out: &mut Vec<u32>,
) {
    pre.split(text, |piece| {
        if pre.whole_pieces
            && let Some(id) = vocab.find(piece)
        {
            out.push(id);
            return;
        }
        merger.clear();
        for &byte in piece {
            merger.push(vocab.byte(byte).unwrap_or(NONE), 1);
        }
        merger.run(|a, b| merges.get(a.id, b.id));
        // A byte the vocabulary lacks (one that no UTF-8 text has, as a rule) has no token: the model cannot see it.
        out.extend(merger.symbols().map(|s| s.id).filter(|&id| id != NONE));
    });
}

/// Appends the tokens of `text`, whose characters are the first symbols; those that are no token become bytes.
pub(super) fn encode_chars(
    vocab: &Vocab,
    merges: &Merges,
    pre: &Pretokenizer,
    text: &[u8],
    merger: &mut Merger,
    out: &mut Vec<u32>,
) {
    let mut plain = Vec::with_capacity(text.len());
    unmark_spaces(text, &mut plain);
    pre.split(&plain, |piece| {
        push_chars(vocab, piece, merger);
        merger.run(|a, b| merges.get(a.id, b.id));
        pop_symbols(vocab, piece, merger, None, out);
    });
}

/// Starts over with the characters of `text`.
pub(super) fn push_chars(vocab: &Vocab, text: &[u8], merger: &mut Merger) {
    merger.clear();
    let mut at = 0;
    while at < text.len() {
        let (_, len) = char_at(text, at);
        merger.push(vocab.find(&text[at..at + len]).unwrap_or(NONE), len);
        at += len;
    }
}

/// Appends the tokens that `text` was merged into, with bytes (or else `unknown`) for what is no token.
pub(super) fn pop_symbols(
    vocab: &Vocab,
    text: &[u8],
    merger: &Merger,
    unknown: Option<u32>,
    out: &mut Vec<u32>,
) {
    for symbol in merger.symbols() {
        if symbol.id != NONE {
            out.push(symbol.id);
            continue;
        }
        let bytes = match &text[symbol.start as usize..(symbol.start + symbol.len) as usize] {
            b" " => SPACE_MARK,
            bytes => bytes,
        };
        out.extend(bytes.iter().filter_map(|&byte| vocab.byte(byte).or(unknown)));
    }
}
