//! Text to token ids and back.
//!
//! ```text
//! text -> special    control and user-defined tokens, and the text between them
//!      -> pretokenize pieces that are merged each on its own   (byte-pair vocabularies)
//!      -> bpe | spm  neighbours merged by rank or by score, in a queue
//!      -> ids        -> pieces (bytes) -> stream, whole characters
//! ```
//!
//! Three kinds of vocabulary, by `tokenizer.ggml.model`: `gpt2` (byte-level pairs), `llama` (SentencePiece-style,
//! scores) and `gemma4` (pairs of characters, bytes where there is none). All take time of n log n in the length of
//! the text whatever is in it, and none recurses.
//!
//! Text is bytes: what is not UTF-8 passes through byte for byte. Nothing is normalised.

mod bpe;
mod load;
mod merge;
mod pretokenize;
mod special;
mod spm;
pub mod stream;
pub mod template;
mod vocab;

pub use load::{Error, Options};

use std::borrow::Cow;

use bpe::Merges;
use merge::Merger;
use pretokenize::Pretokenizer;
use special::{Fragment, Specials};
use spm::Scores;
use vocab::{Kind, Vocab};

/// Bytes of text that are encoded in one go: positions in it are 32 bits wide.
const PART: usize = 1 << 30;

/// Whether the text of a control token (`<|im_end|>`) becomes that token.
///
/// User-defined tokens, which stand for text, are found in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Yes: for text that is trusted.
    Parse,
    /// No, it is text like any other: for what a user has typed.
    Ignore,
}

/// A model's vocabulary and the rules for encoding with it.
pub struct Tokenizer {
    vocab: Vocab,
    specials: Specials,
    algorithm: Algorithm,
    ids: Ids,
    add_bos: bool,
    add_eos: bool,
    /// Sorted.
    end_of_generation: Vec<u32>,
    warnings: Vec<String>,
}

enum Algorithm {
    /// Merges over bytes.
    Bytes { merges: Merges, pre: Pretokenizer },
    /// Merges over characters.
    Chars { merges: Merges, pre: Pretokenizer },
    /// Scores over characters; with `space_prefix`, text that begins the prompt or follows a control token is taken
    /// to begin with a space.
    Scores { scores: Scores, space_prefix: bool },
}

/// Tokens with a role.
#[derive(Debug, Clone, Copy, Default)]
struct Ids {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
}

impl Tokenizer {
    /// The token ids of `text`, without BOS and EOS.
    pub fn encode(&self, text: impl AsRef<[u8]>, special: Special) -> Vec<u32> {
        let wanted = |id| special == Special::Parse || self.vocab.kind(id) == Some(Kind::UserDefined);
        let mut encoder = Encoder::new(self);
        self.specials.split(&self.vocab, text.as_ref(), wanted, |fragment| match fragment {
            Fragment::Token(id) => encoder.token(id),
            Fragment::Text(text) => encoder.text(text),
        });
        encoder.ids
    }

    /// The token ids of `text`, with BOS before and EOS behind where the model's metadata ask for them.
    pub fn encode_prompt(&self, text: impl AsRef<[u8]>, special: Special) -> Vec<u32> {
        let mut ids: Vec<u32> = self.leading_bos().into_iter().collect();
        ids.extend(self.encode(text, special));
        ids.extend(self.eos().filter(|_| self.add_eos));
        ids
    }

    /// The bytes that `ids` stand for; control tokens stand for nothing. Of a vocabulary that puts a space before
    /// every text, that space is taken away again.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let mut out: Vec<u8> = Vec::new();
        let prefix = matches!(self.algorithm, Algorithm::Scores { space_prefix: true, .. });
        let mut strip = prefix;
        for &id in ids {
            let piece = &self.piece(id)[..];
            let text = if strip { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece };
            out.extend(text);
            strip = prefix && self.vocab.kind(id).is_some_and(Kind::is_special);
        }
        out
    }

    /// The bytes to show for a token: none for control tokens and ids out of range. Not necessarily whole
    /// characters: see [`stream::Utf8Stream`].
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        match self.vocab.kind(id) {
            Some(Kind::Control | Kind::Unknown) | None => Cow::Borrowed(&[]),
            _ => self.vocab.piece(id),
        }
    }

    /// As [`piece`](Self::piece), with the text of control tokens.
    pub fn piece_special(&self, id: u32) -> Cow<'_, [u8]> {
        self.vocab.piece(id)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// Whether this is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(Kind::Control)
    }

    /// The control or user-defined token with exactly this text.
    pub fn special(&self, text: &str) -> Option<u32> {
        self.specials.find(&self.vocab, text.as_bytes())
    }

    /// The token a sequence begins with.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The token a sequence ends with.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The token a turn of a conversation ends with.
    pub fn eot(&self) -> Option<u32> {
        self.ids.eot
    }

    /// The token a message ends with that another of the same turn follows.
    pub fn eom(&self) -> Option<u32> {
        self.ids.eom
    }

    /// The token for text that is none.
    pub fn unknown(&self) -> Option<u32> {
        self.ids.unknown
    }

    /// The token that fills up batches.
    pub fn padding(&self) -> Option<u32> {
        self.ids.padding
    }

    /// BOS, if a prompt is to begin with it.
    pub fn leading_bos(&self) -> Option<u32> {
        self.ids.bos.filter(|_| self.add_bos)
    }

    /// Whether generation is over with this token: EOS, EOT, EOM, and the tokens known to mean one of these, which
    /// files often leave unsaid.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// All tokens that end generation, in order.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Builds the tables that encoding needs, in two threads where there are two. Otherwise the first text does that.
    pub fn prepare(&self) {
        std::thread::scope(|scope| {
            if let Some(merges) = self.merges() {
                // Without a thread the first text does it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, || merges.index());
            }
            self.vocab.index();
        });
    }

    fn merges(&self) -> Option<&Merges> {
        match &self.algorithm {
            Algorithm::Bytes { merges, .. } | Algorithm::Chars { merges, .. } => Some(merges),
            Algorithm::Scores { .. } => None,
        }
    }

    /// Bytes of memory it takes, with all tables.
    pub fn heap_bytes(&self) -> usize {
        self.vocab.heap_bytes() + self.specials.heap_bytes() + self.merges().map_or(0, Merges::heap_bytes)
    }

    /// Looks through all merges, which loading does not, and says so if some are of no use: for the user to read.
    pub fn check_merges(&self) -> Option<String> {
        let (odd, n) = self.merges()?.odd(&self.vocab);
        (odd > 0).then(|| format!("{odd} of {n} merges name texts that are no tokens: left out"))
    }

    /// What the metadata left out or has wrong, and what is done about it: for the user to read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("n_vocab", &self.n_vocab()).field("ids", &self.ids).finish()
    }
}

/// Collects ids, fragment by fragment.
struct Encoder<'t> {
    tokenizer: &'t Tokenizer,
    merger: Merger,
    ids: Vec<u32>,
    /// At the start, or behind a special token.
    at_start: bool,
}

impl<'t> Encoder<'t> {
    fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, merger: Merger::default(), ids: Vec::new(), at_start: true }
    }

    fn token(&mut self, id: u32) {
        self.ids.push(id);
        self.at_start = true;
    }

    fn text(&mut self, text: &[u8]) {
        let Self { tokenizer: Tokenizer { vocab, algorithm, ids: roles, .. }, merger, ids, at_start } = self;
        for part in text.chunks(PART) {
            match algorithm {
                Algorithm::Bytes { merges, pre } => {
                    bpe::encode_bytes(vocab, merges, pre, part, merger, ids);
                }
                Algorithm::Chars { merges, pre } => {
                    bpe::encode_chars(vocab, merges, pre, part, merger, ids);
                }
                Algorithm::Scores { scores, space_prefix } => {
                    let prefix = *space_prefix && *at_start;
                    spm::encode(vocab, scores, roles.unknown, prefix, part, merger, ids);
                }
            }
            *at_start = false;
        }
    }
}
