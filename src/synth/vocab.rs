//! A byte-level BPE vocabulary of any size: the 256 bytes, control tokens, and runs of up to five letters.

/// Control tokens: end of text (also the beginning), start and end of a message.
pub const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// The smallest vocabulary.
pub const SMALLEST: usize = 256 + CONTROL.len();

const LETTERS: std::ops::RangeInclusive<char> = 'a'..='z';
/// How byte-level vocabularies write a space.
const SPACE: char = 'Ġ';

/// Tokens in the order of their ids, and the merges that make them.
pub struct Vocab {
    /// Bytes, then what merges make, then [`CONTROL`].
    pub tokens: Vec<String>,
    /// Two tokens with a space between them, in the order they are tried.
    pub merges: Vec<String>,
}

impl Vocab {
    /// A vocabulary of `n` tokens, at least [`SMALLEST`].
    pub fn new(n: usize) -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|byte| char_of(byte).to_string()).collect();
        let mut merges = Vec::new();
        // Each token is one that is already there and one letter more; only its first may be a space.
        let mut stems: Vec<String> = LETTERS.chain([SPACE]).map(String::from).collect();
        let wanted = n.saturating_sub(SMALLEST);
        while merges.len() < wanted {
            let longer = stems.iter().flat_map(|stem| LETTERS.map(move |letter| (stem, letter)));
            let mut next = Vec::new();
            for (stem, letter) in longer.take(wanted - merges.len()) {
                merges.push(format!("{stem} {letter}"));
                next.push(format!("{stem}{letter}"));
            }
            tokens.extend_from_slice(&next);
            stems = next;
        }
        tokens.extend(CONTROL.map(str::to_owned));
        Self { tokens, merges }
    }

    /// The kind of each token, in the codes of `tokenizer.ggml.token_type`: 1 normal, 3 control.
    pub fn kinds(&self) -> Vec<i32> {
        let control = self.tokens.len() - CONTROL.len();
        (0..self.tokens.len()).map(|id| if id < control { 1 } else { 3 }).collect()
    }
}

/// The character that stands for a byte: itself if it is printable, else the next free one from 256 on.
fn char_of(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_token_is_there_once_and_every_merge_makes_one() {
        for n in [SMALLEST, SMALLEST + 1, 1024, 151_936] {
            let vocab = Vocab::new(n);
            assert_eq!((vocab.tokens.len(), vocab.kinds().len()), (n, n));
            let known: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
            assert_eq!(known.len(), n);
            assert_eq!(vocab.merges.len(), n - SMALLEST);
            let halves = |merge: &str| merge.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
            for (a, b) in vocab.merges.iter().filter_map(|merge| halves(merge)) {
                assert!(known.contains(&*a) && known.contains(&*b) && known.contains(&*(a + &b)));
            }
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0)), ('Ġ', 'Ċ', 'Ā'));
    }
}
