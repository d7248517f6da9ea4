//! SentencePiece-style encoding: neighbours are merged into the token with the best score.

use super::bpe::{pop_symbols, push_chars};
use super::merge::{Merger, Symbol};
use super::vocab::{SPACE_MARK, Vocab};
use crate::gguf::Numbers;

/// The scores of a vocabulary.
pub(super) enum Scores {
    /// As the file has them, one a token.
    File(Numbers),
    /// The file has none: tokens are sorted by score.
    Sorted,
}

impl Scores {
    /// The best score has the lowest priority.
    fn priority(&self, id: u32) -> u32 {
        match self {
            Scores::File(scores) => priority(scores.float(id as usize).unwrap_or(f32::NEG_INFINITY)),
            Scores::Sorted => priority(-(id as f32)),
        }
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
    let mut written = Vec::with_capacity(text.len() + SPACE_MARK.len());
    if prefix {
        written.extend(SPACE_MARK);
    }
    vocab.form().write(text, &mut written);
    push_chars(vocab, &written, merger);
    merger.run(|a: &Symbol, b: &Symbol| {
        let id = vocab.find(&written[a.start as usize..(b.start + b.len) as usize])?;
        Some((scores.priority(id), id))
    });
    pop_symbols(vocab, &written, merger, unknown, out);
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
