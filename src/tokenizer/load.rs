//! A tokenizer from a model file's metadata.

use thiserror::Error as ThisError;

use super::bpe::Merges;
use super::pretokenize::{self, Pretokenizer};
use super::special::{LONGEST, Specials};
use super::spm::Scores;
use super::vocab::{Form, Kind, Vocab};
use super::{Algorithm, Ids, Tokenizer};
use crate::gguf::{self, Meta};

/// Choices that override the metadata.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The pre-tokenizer, by one of the names of `tokenizer.ggml.pre`.
    pub pre: Option<String>,
}

/// Why there is no tokenizer to be had from a file.
#[derive(Debug, ThisError)]
pub enum Error {
    /// A value has the wrong type.
    #[error(transparent)]
    Meta(#[from] gguf::Error),
    /// A key that must be there is not.
    #[error("the file has no {key}: {why}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it is needed for.
        why: &'static str,
    },
    /// The tokens are of a kind that is not supported.
    #[error("tokenizer.ggml.model is \"{0}\": only gpt2, llama and gemma4 are supported")]
    UnknownModel(String),
    /// Guessing would give wrong ids without a sign of it.
    #[error(
        "the pre-tokenizer \"{name}\" is not known; to use another at the risk of wrong ids, choose it with --pre: {}",
        pretokenize::names().collect::<Vec<_>>().join(", ")
    )]
    UnknownPre {
        /// Its name in the file or the options.
        name: String,
    },
    /// Arrays that belong together are not equally long.
    #[error("{key} has {found} elements, tokenizer.ggml.tokens has {tokens}: the file is damaged")]
    Length {
        /// The array.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// Ids and positions are 32 bits wide.
    #[error("{key} is too large: {found} elements")]
    TooLarge {
        /// The array.
        key: &'static str,
        /// Its length.
        found: usize,
    },
}

/// Tokens that end an answer. Files often name but one of those their model uses.
const END_OF_GENERATION: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_role|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "</s>",
];

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const PRE: &str = "tokenizer.ggml.pre";

impl Tokenizer {
    /// Builds the tokenizer that a file's metadata describe. Texts stay in the file, which it keeps open; nothing is borrowed.
    pub fn from_gguf(meta: &Meta, options: &Options) -> Result<Self, Error> {
        let mut warnings = Vec::new();
        let why = "it says how text is encoded";
        let model = meta.str(MODEL)?.ok_or(Error::Missing { key: MODEL, why })?;
        let form = match model {
            "gpt2" => Form::Bytes,
            "llama" | "gemma4" => Form::Spaced,
            _ => return Err(Error::UnknownModel(printable(model))),
        };
        let (mut vocab, ends) = read_vocab(meta, form, &mut warnings)?;
        let (algorithm, add_bos) = match model {
            "llama" => {
                let scores = read_scores(meta, vocab.len(), &mut warnings)?;
                let space_prefix = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                (Algorithm::Scores { scores, space_prefix }, true)
            }
            "gpt2" => {
                let pre = read_pre(meta, options, &mut warnings)?;
                let merges = read_merges(meta)?;
                (Algorithm::Bytes { merges, pre }, pre.add_bos)
            }
            _ => {
                let pre = pretokenize::LINES;
                let merges = read_merges(meta)?;
                (Algorithm::Chars { merges, pre }, pre.add_bos)
            }
        };
        let ids = read_ids(meta, model, &mut vocab, &mut warnings);
        let end_of_generation = end_of_generation(&ids, &mut vocab, &ends);
        let long = vocab.specials().filter(|(_, piece)| piece.len() > LONGEST).count();
        if long > 0 {
            warnings.push(format!(
                "{long} special tokens are longer than {LONGEST} bytes: not searched for in text"
            ));
        }
        let add_bos = meta.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
        if add_bos && ids.bos.is_none() {
            warnings.push("prompts should begin with BOS, but the file names no such token: left out".into());
        }
        Ok(Self {
            specials: Specials::new(&vocab),
            vocab,
            algorithm,
            ids,
            add_bos,
            add_eos: meta.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            end_of_generation,
            warnings,
        })
    }
}

/// The vocabulary, and which of its tokens may be [`END_OF_GENERATION`].
fn read_vocab(meta: &Meta, form: Form, warnings: &mut Vec<String>) -> Result<(Vocab, Vec<u32>), Error> {
    let why = "without the vocabulary text cannot be encoded";
    let tokens = meta.texts(TOKENS)?.ok_or(Error::Missing { key: TOKENS, why })?;
    let n = tokens.len();
    if n == 0 {
        return Err(Error::Missing { key: TOKENS, why });
    }
    let types = meta.integers(TYPES)?;
    match &types {
        Some(types) => same_length(TYPES, types.len(), n)?,
        None => {
            let note = "control tokens are taken to be those with a role and those that look like <|...|>";
            warnings.push(format!("the file has no {TYPES}: {note}"));
        }
    }
    let names: Vec<Vec<u8>> = END_OF_GENERATION
        .iter()
        .map(|name| {
            let mut written = Vec::new();
            form.write(name.as_bytes(), &mut written);
            written
        })
        .collect();
    let mut ends = Vec::new();
    let seen = |id, text: &[u8]| {
        // Looking at the first byte is enough for nearly all.
        if matches!(text, [b'<' | b'_' | b'[', ..])
            && END_OF_GENERATION
                .iter()
                .zip(&names)
                .any(|(name, written)| text == name.as_bytes() || text == written)
        {
            ends.push(id);
        }
    };
    let (vocab, odd) =
        Vocab::new(form, tokens, types, seen).ok_or(Error::TooLarge { key: TOKENS, found: n })?;
    if odd > 0 {
        warnings.push(format!("{odd} values of {TYPES} are not known: taken to be normal tokens"));
    }
    Ok((vocab, ends))
}

fn read_scores(meta: &Meta, tokens: usize, warnings: &mut Vec<String>) -> Result<Scores, Error> {
    let Some(scores) = meta.floats(SCORES)? else {
        // Vocabularies of this kind are sorted by score.
        warnings.push(format!("the file has no {SCORES}: tokens with a lower id are preferred"));
        return Ok(Scores::Sorted);
    };
    same_length(SCORES, scores.len(), tokens)?;
    Ok(Scores::File(scores))
}

fn same_length(key: &'static str, found: usize, tokens: usize) -> Result<(), Error> {
    if found == tokens { Ok(()) } else { Err(Error::Length { key, found, tokens }) }
}

fn read_merges(meta: &Meta) -> Result<Merges, Error> {
    let why = "a byte-pair vocabulary cannot be used without its merges; convert the model again";
    let texts = meta.texts(MERGES)?.ok_or(Error::Missing { key: MERGES, why })?;
    let found = texts.len();
    Merges::new(texts).ok_or(Error::TooLarge { key: MERGES, found })
}

fn read_pre(meta: &Meta, options: &Options, warnings: &mut Vec<String>) -> Result<Pretokenizer, Error> {
    let by_name =
        |name: &str| pretokenize::by_name(name).ok_or_else(|| Error::UnknownPre { name: printable(name) });
    if let Some(name) = &options.pre {
        return by_name(name);
    }
    match meta.str(PRE)? {
        Some(name) => by_name(name),
        None => {
            warnings.push(format!(
                "the file has no {PRE}: the default is used, which may give other ids than the model was trained with"
            ));
            Ok(pretokenize::DEFAULT)
        }
    }
}

fn read_ids(meta: &Meta, model: &str, vocab: &mut Vocab, warnings: &mut Vec<String>) -> Ids {
    let n = vocab.len();
    let mut id = |key: &str| {
        let value = meta.get(key)?;
        let id = value.integer().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n);
        // -1 is how some converters write that there is none.
        if id.is_none() && value.integer() != Some(-1) {
            let found = value.integer().map_or_else(|| value.ty().name().to_owned(), |id| id.to_string());
            warnings.push(format!("{key} is {found}, not the id of one of {n} tokens: ignored"));
        }
        id
    };
    let mut ids = Ids {
        bos: id("tokenizer.ggml.bos_token_id"),
        eos: id("tokenizer.ggml.eos_token_id"),
        eot: id("tokenizer.ggml.eot_token_id"),
        eom: id("tokenizer.ggml.eom_token_id"),
        unknown: id("tokenizer.ggml.unknown_token_id"),
        padding: id("tokenizer.ggml.padding_token_id"),
    };
    if model == "llama" {
        // Where these vocabularies have them, unless the file says otherwise.
        let usual = |key: &str, id: u32, piece: &[u8]| {
            (meta.get(key).is_none() && *vocab.piece(id) == *piece).then_some(id)
        };
        ids.unknown = ids.unknown.or(usual("tokenizer.ggml.unknown_token_id", 0, b"<unk>"));
        ids.bos = ids.bos.or(usual("tokenizer.ggml.bos_token_id", 1, b"<s>"));
        ids.eos = ids.eos.or(usual("tokenizer.ggml.eos_token_id", 2, b"</s>"));
    }
    if meta.get(TYPES).is_none() {
        for id in [ids.bos, ids.eos, ids.eot, ids.eom, ids.padding].into_iter().flatten() {
            vocab.set_control(id);
        }
    }
    ids
}

/// The tokens with which an answer is over, of those named so the `candidates`. Those found by name become control tokens,
/// whatever the file has them as: otherwise they would be shown, and be typed by users.
fn end_of_generation(ids: &Ids, vocab: &mut Vocab, candidates: &[u32]) -> Vec<u32> {
    let mut found: Vec<u32> = [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect();
    let mut named: Vec<(u32, &str)> = Vec::new();
    for &name in END_OF_GENERATION {
        let is = |id: &u32| *vocab.piece(*id) == *name.as_bytes();
        let special = |id: &u32| vocab.kind(*id).is_some_and(Kind::is_special);
        named.extend(candidates.iter().filter(|id| special(id) && is(id)).map(|&id| (id, name)));
        // Of ordinary ones that which text becomes.
        let last = candidates.iter().rfind(|&id| vocab.is_found(*id) && is(id));
        named.extend(last.filter(|&&id| vocab.kind(id) != Some(Kind::Control)).map(|&id| (id, name)));
    }
    // Without its counterpart this is a tag of HTML.
    let paired = ids.bos.is_some_and(|bos| *vocab.piece(bos) == *b"<s>");
    named.retain(|&(id, name)| name != "</s>" || paired || vocab.kind(id) == Some(Kind::Control));
    // Where an answer has several messages, this ends but one of them.
    let has = |name| named.iter().any(|&(_, n)| n == name);
    if has("<|return|>") && has("<|call|>") {
        named.retain(|&(_, name)| name != "<|end|>");
    }
    found.extend(named.iter().map(|&(id, _)| id));
    found.sort_unstable();
    found.dedup();
    for &id in &found {
        vocab.set_control(id);
    }
    found
}

/// A name from the file, cut to a sane length and without control characters.
fn printable(name: &str) -> String {
    gguf::printable(name.as_bytes())
}
