//! `--max-ram`: what is reduced, and in which order, until a model takes no more memory than it may.

use super::needs::{Items, Needs};
use super::options::Kv;
use super::report::bytes;

/// A megabyte of `--max-ram`.
pub const MB: u64 = 1_000_000;
/// Pages of the program and its libraries, which are mapped as the model is.
const PROGRAM_PAGES: u64 = 9 * MB;
/// Contexts are not made smaller than this.
const LEAST_CTX: usize = 512;
/// What sampling takes for each token of the vocabulary at temperatures above 0.
const SAMPLING: u64 = 16;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// How keys and values are kept.
    pub kv: Kv,
    /// Tokens of context.
    pub ctx: usize,
    /// The context below which the command makes no sense, if there is one.
    pub least_ctx: Option<usize>,
    /// The cache is kept in a file and not counted.
    pub swap: bool,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How keys and values are kept.
    pub kv: Kv,
    /// Tokens of context.
    pub ctx: usize,
    /// If not all weights can stay in memory: bytes of those that can.
    pub keep: Option<u64>,
    /// What is allocated.
    pub items: Items,
}

/// Bytes that are allocated, with what is not certain to be.
pub fn own(needs: &Needs<'_>, items: &Items, swap: bool) -> u64 {
    items.own(swap).saturating_add(SAMPLING * needs.vocab() as u64)
}

/// The choice that keeps all memory, pages of the file included, within `max` bytes. Taken in turn until that is so: the KV
/// cache in 8 bits, a smaller context, and then, with cache and context as they were and with the same two steps again,
/// weights that are given up behind the layer that is computed.
///
/// # Errors
/// If nothing is small enough, with what the least takes.
pub fn choose(needs: &Needs<'_>, wish: Wish, max: u64) -> anyhow::Result<Choice> {
    let least_ctx = wish.least_ctx.unwrap_or(LEAST_CTX).min(wish.ctx);
    let parts = needs.parts();
    // As asked, with a smaller cache, with a smaller context.
    let mut tries = vec![(wish.kv, wish.ctx)];
    tries.extend(wish.kv.reduced().filter(|&kv| needs.items(kv, wish.ctx).is_ok()).map(|kv| (kv, wish.ctx)));
    // The first also says what is wrong with a context that is impossible.
    let first = needs.items(wish.kv, wish.ctx)?;
    let pages = |streamed: bool| PROGRAM_PAGES + if streamed { parts.least } else { needs.file() };
    let total = |items: &Items, streamed| own(needs, items, wish.swap).saturating_add(pages(streamed));
    for streamed in [false, true] {
        let choice = |kv, ctx, items: Items| {
            let keep = max.saturating_sub(total(&items, true));
            Choice { kv, ctx, keep: streamed.then_some(keep), items }
        };
        for &(kv, ctx) in &tries {
            let items = needs.items(kv, ctx)?;
            if total(&items, streamed) <= max {
                return Ok(choice(kv, ctx, items));
            }
        }
        let kv = tries.last().map_or(wish.kv, |last| last.0);
        let fitting = needs.largest_ctx(kv, wish.ctx, |items| total(items, streamed) <= max);
        if let Some(ctx) = fitting.filter(|&ctx| ctx >= least_ctx) {
            return Ok(choice(kv, ctx, needs.items(kv, ctx)?));
        }
    }
    let kv = tries.last().map_or(wish.kv, |last| last.0);
    let least = needs.items(kv, least_ctx).unwrap_or(first);
    let cache = if wish.swap { "in a file".to_owned() } else { bytes(least.kv_bytes) };
    Err(anyhow::anyhow!(
        "--max-ram {} is too little: at least {} is needed. Program {}, tokenizer {}, vectors {}, buffers {}, sampling {}, \
         KV cache of {least_ctx} tokens in {kv} {cache}, weights two layers at a time {}",
        max / MB,
        total(&least, true).div_ceil(MB),
        bytes(least.program_bytes + PROGRAM_PAGES),
        bytes(least.tokenizer_bytes),
        bytes(least.vector_bytes),
        bytes(least.buffer_bytes),
        bytes(SAMPLING * needs.vocab() as u64),
        bytes(parts.least),
    ))
}

impl Choice {
    /// What differs from the wish, in one line; `None` if nothing does. `streamed` are the bytes of weights that are read
    /// for every token.
    pub fn changes(&self, wish: &Wish, streamed: u64, weights: u64) -> Option<String> {
        let mut changes = Vec::new();
        if self.kv != wish.kv {
            changes.push(format!("KV cache in {} in place of {}", self.kv, wish.kv));
        }
        if self.ctx != wish.ctx {
            changes.push(format!("context of {} tokens in place of {}", self.ctx, wish.ctx));
        }
        if self.keep.is_some() {
            let (some, all) = (bytes(streamed), bytes(weights));
            changes.push(format!("{some} of {all} of weights read anew for every batch and token"));
        }
        (!changes.is_empty()).then(|| changes.join(", "))
    }
}
