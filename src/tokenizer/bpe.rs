//! Byte-pair encoding: neighbours are merged in the order in which training merged them.

use std::hash::BuildHasher as _;
use std::sync::OnceLock;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::merge::{Merger, NONE};
use super::pretokenize::{Pretokenizer, char_at};
use super::vocab::Vocab;
use crate::gguf::Texts;

/// Pairs of tokens that merge, `left right` as the file writes them; their order is their rank. They stay in the file.
pub(super) struct Merges {
    texts: Texts,
    /// Positions in `texts`, by text. Built when it is first needed.
    index: OnceLock<HashTable<u32>>,
    hasher: DefaultHashBuilder,
}

impl Merges {
    /// `None` where there are more than 2^32 - 2, or 2^32 - 1 bytes of text.
    pub fn new(texts: Texts) -> Option<Self> {
        let fits = texts.len() < NONE as usize && texts.has_positions();
        fits.then(|| Self { texts, index: OnceLock::new(), hasher: DefaultHashBuilder::default() })
    }

    /// The table by text. Of equal pairs the first counts.
    pub fn index(&self) -> &HashTable<u32> {
        self.index.get_or_init(|| {
            let mut index = HashTable::with_capacity(self.texts.len());
            for (at, text) in self.texts.iter() {
                let hash = self.hasher.hash_one(text);
                if index.find(hash, |&other| self.texts.at(other) == text).is_none() {
                    index.insert_unique(hash, at, |&at| self.hasher.hash_one(self.texts.at(at)));
                }
            }
            index
        })
    }

    /// How many name a text that is no token, and how many there are. Those come to nothing.
    pub fn odd(&self, vocab: &Vocab) -> (usize, usize) {
        let (mut joined, mut scratch) = (Vec::new(), Vec::new());
        let mut resolves = |text: &[u8]| {
            // A token may begin with a space, so the first one does not count.
            let space = 1 + text.get(1..)?.iter().position(|&b| b == b' ')?;
            let (left, right) = (&text[..space], &text[space + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let mut symbol = |text| vocab.symbol(text, &mut scratch);
            symbol(left)?;
            symbol(right)?;
            symbol(&joined)
        };
        let odd = self.texts.iter().filter(|(_, text)| resolves(text).is_none()).count();
        (odd, self.texts.len())
    }

    /// Bytes of memory they take once text has been encoded.
    pub fn heap_bytes(&self) -> usize {
        self.index.get().map_or_else(
            || HashTable::<u32>::with_capacity(self.texts.len()).allocation_size(),
            HashTable::allocation_size,
        )
    }

    /// Merges symbols of `text`, written as the file writes it, until no pair is left.
    fn apply(&self, vocab: &Vocab, text: &[u8], merger: &mut Merger) {
        let mut key = Vec::new();
        merger.run(|a, b| {
            if a.id == NONE || b.id == NONE {
                return None;
            }
            // The token of a symbol is a function of its text, so the pair of texts is the pair of tokens.
            let (start, middle, end) = (a.start as usize, b.start as usize, (b.start + b.len) as usize);
            key.clear();
            key.extend_from_slice(&text[start..middle]);
            key.push(b' ');
            key.extend_from_slice(&text[middle..end]);
            let hash = self.hasher.hash_one(&key[..]);
            let rank = *self.index().find(hash, |&at| self.texts.at(at) == key)?;
            Some((rank, vocab.find(&text[start..end])?))
        });
    }
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
    let mut written = Vec::new();
    pre.split(text, |piece| {
        written.clear();
        merger.clear();
        for &byte in piece {
            let before = written.len();
            vocab.form().write(&[byte], &mut written);
            merger.push(vocab.byte(byte).unwrap_or(NONE), written.len() - before);
        }
        if pre.whole_pieces
            && let Some(id) = vocab.find(&written)
        {
            out.push(id);
            return;
        }
        merges.apply(vocab, &written, merger);
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
    let mut written = Vec::with_capacity(text.len());
    vocab.form().write(text, &mut written);
    pre.split(&written, |piece| {
        push_chars(vocab, piece, merger);
        merges.apply(vocab, piece, merger);
        pop_symbols(vocab, piece, merger, None, out);
    });
}

/// Starts over with the characters of `text`, written as the file writes it.
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
        let bytes = &text[symbol.start as usize..(symbol.start + symbol.len) as usize];
        out.extend(bytes.iter().filter_map(|&byte| vocab.byte(byte).or(unknown)));
    }
}
