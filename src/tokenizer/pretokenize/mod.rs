//! Cutting text into the pieces that byte pairs are merged within.
//!
//! Vocabularies are trained with regular expressions, applied one after the other: each cuts every piece the one
//! before it made into its matches and what lies between them. Here every expression is a hand-written function
//! over characters: linear, no recursion, no limit on backtracking that a long run could reach.

mod class;
mod rules;

pub(super) use class::char_at;

/// What a rule finds at the start of a text.
enum Step {
    /// A match of so many bytes, at least one.
    Match(usize),
    /// No match starts within the next so many bytes, at least one.
    Skip(usize),
}

/// A regular expression, tried at the start of a text that is not empty.
type Rule = fn(&[u8]) -> Step;

/// A pre-tokenizer: what `tokenizer.ggml.pre` names.
#[derive(Clone, Copy)]
pub(super) struct Pretokenizer {
    rules: &'static [Rule],
    /// A piece that is a token as a whole is that token, whatever the merges say.
    pub whole_pieces: bool,
    /// Whether a prompt begins with BOS where the metadata does not say.
    pub add_bos: bool,
}

const fn plain(rules: &'static [Rule]) -> Pretokenizer {
    Pretokenizer { rules, whole_pieces: false, add_bos: false }
}

const GPT2: Pretokenizer = plain(&[rules::gpt2]);
const DIGITS_GPT2: Pretokenizer = plain(&[rules::numbers::<1>, rules::gpt2]);
const QWEN2: Pretokenizer = plain(&[rules::cl100k::<1, false>]);
const CL100K: Pretokenizer = plain(&[rules::cl100k::<3, false>]);
const GPT4O: Pretokenizer = plain(&[rules::o200k::<3, true>]);
const LLAMA3: Pretokenizer = Pretokenizer { whole_pieces: true, add_bos: true, ..CL100K };
const TEKKEN: Pretokenizer =
    Pretokenizer { whole_pieces: true, add_bos: true, ..plain(&[rules::o200k::<1, false>]) };
const FALCON: Pretokenizer = plain(&[rules::punctuation::<true>, rules::gpt2, rules::three_digits]);
const DEEPSEEK_LLM: Pretokenizer = plain(&[
    rules::newline,
    rules::space_cased,
    rules::space_signs,
    rules::trailing_space,
    rules::asian,
    rules::numbers::<{ usize::MAX }>,
]);
const DEEPSEEK_CODER: Pretokenizer =
    plain(&[rules::newline, rules::space_letters, rules::space_puncts, rules::asian, rules::numbers::<1>]);
const DEEPSEEK3: Pretokenizer = plain(&[rules::numbers::<3>, rules::han_kana, rules::deepseek3]);

/// What is used where a file names none, and for the name `default`.
pub(super) const DEFAULT: Pretokenizer =
    plain(&[rules::punctuation::<false>, rules::gpt2, rules::numbers::<{ usize::MAX }>, rules::three_digits]);

/// For vocabularies of [raw characters](super::vocab::Form::Spaced): newlines apart, nothing else.
pub(super) const LINES: Pretokenizer = Pretokenizer { add_bos: true, ..plain(&[rules::line]) };

/// All names, as files have them in `tokenizer.ggml.pre`.
const NAMES: &[(&str, Pretokenizer)] = &[
    ("default", DEFAULT),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("llama-bpe", LLAMA3),
    ("falcon3", LLAMA3),
    ("falcon-h1", LLAMA3),
    ("pixtral", LLAMA3),
    ("midm-2.0", LLAMA3),
    ("lfm2", LLAMA3),
    ("dbrx", CL100K),
    ("smaug-bpe", CL100K),
    ("chatglm-bpe", CL100K),
    ("glm4", CL100K),
    ("qwen2", QWEN2),
    ("deepseek-r1-qwen", QWEN2),
    ("kormo", QWEN2),
    ("megrez", QWEN2),
    ("stablelm2", QWEN2),
    ("hunyuan", QWEN2),
    ("solar-open", QWEN2),
    ("qwen35", plain(&[rules::cl100k::<1, true>])),
    ("gpt-2", GPT2),
    ("gpt2", GPT2),
    ("phi-2", GPT2),
    ("mpt", GPT2),
    ("olmo", GPT2),
    ("jais", GPT2),
    ("trillion", GPT2),
    ("exaone4", GPT2),
    ("granite-docling", GPT2),
    ("gigachat", GPT2),
    ("a.x-4.0", GPT2),
    ("mellum", GPT2),
    ("jina-es", GPT2),
    ("jina-de", GPT2),
    ("smollm", DIGITS_GPT2),
    ("starcoder", DIGITS_GPT2),
    ("refact", DIGITS_GPT2),
    ("command-r", DIGITS_GPT2),
    ("codeshell", DIGITS_GPT2),
    ("exaone", DIGITS_GPT2),
    ("minerva-7b", DIGITS_GPT2),
    ("falcon", FALCON),
    ("deepseek-llm", DEEPSEEK_LLM),
    ("deepseek-coder", DEEPSEEK_CODER),
    ("deepseek-v3", DEEPSEEK3),
    ("hunyuan-dense", DEEPSEEK3),
    ("gpt-4o", GPT4O),
    ("llama4", GPT4O),
    ("kanana2", GPT4O),
    ("tekken", TEKKEN),
];

/// The pre-tokenizer of this name.
pub(super) fn by_name(name: &str) -> Option<Pretokenizer> {
    NAMES.iter().find(|(known, _)| *known == name).map(|&(_, pre)| pre)
}

/// All names [`by_name`] knows.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|&(name, _)| name)
}

impl Pretokenizer {
    /// Hands the pieces of `text` to `piece` in order; joined they are `text`.
    pub fn split<'t>(&self, text: &'t [u8], mut piece: impl FnMut(&'t [u8])) {
        split(text, self.rules, &mut piece);
    }
}

/// As deep as there are rules.
fn split<'t>(text: &'t [u8], rules: &[Rule], piece: &mut dyn FnMut(&'t [u8])) {
    if text.is_empty() {
        return;
    }
    let Some((rule, rest)) = rules.split_first() else { return piece(text) };
    let (mut gap, mut at) = (0, 0);
    while at < text.len() {
        match rule(&text[at..]) {
            Step::Skip(n) => at += n,
            Step::Match(n) => {
                split(&text[gap..at], rest, piece);
                split(&text[at..at + n], rest, piece);
                at += n;
                gap = at;
            }
        }
    }
    split(&text[gap..], rest, piece);
}
