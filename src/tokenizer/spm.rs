//! SentencePiece-style encoding: neighbours are merged into the token with the best score.

use super::bpe::{pop_symbols, push_chars};
use super::merge::{Merger, Symbol};
use super::vocab::{Vocab, unmark_spaces};

/// The scores of a vocabulary, as priorities: the best score is 0 or near.
pub(super) struct Scores(Vec<u32>);

impl Scores {
    /// One score a token.
    pub fn new(scores: impl Iterator<Item = f32>) -> Self {
        Self(scores.map(priority).collect())
    }

    /// Bytes of memory they take.
    pub fn heap_bytes(&self) -> usize {
        4 * self.0.capacity()
    }
}

/// Smaller for a higher score, in the order of the reals; both zeros are equal.
fn priority(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// Appends the tokens of `text`; with `prefix` as if it began with a space.
pub(super) fn encode(
    vocab: &Vocab,
    scores: &Scores,
    unknown: Option<u32>,
    prefix: bool,
    text: &[u8],
    merger: &mut Merger,
    out: &mut Vec<u32>,
) {
    let mut plain = Vec::with_capacity(text.len() + 1);
    if prefix {
        plain.push(b' ');
    }
    unmark_spaces(text, &mut plain);
    push_chars(vocab, &plain, merger);
    merger.run(|a: &Symbol, b: &Symbol| {
        let id = vocab.find(&plain[a.start as usize..(b.start + b.len) as usize])?;
        Some((scores.0[id as usize], id))
    });
    pop_symbols(vocab, &plain, merger, unknown, out);
}

#[cfg(test)]
mod tests {
    use super::priority;

    #[test]
    fn priorities_order_as_scores_do() {
        let descending = [f32::INFINITY, 3.0, 1e-40, 0.0, -1e-40, -0.5, -31999.0, f32::NEG_INFINITY];
        assert!(descending.windows(2).all(|w| priority(w[0]) < priority(w[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
