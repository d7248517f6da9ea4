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
/// Batches are not made smaller than this.
const LEAST_BATCH: usize = 8;
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
    /// Prompt tokens evaluated at once.
    pub batch: usize,
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
/// weights that are given up behind the layer that is computed; and all of that anew in smaller batches.
///
/// # Errors
/// If nothing is small enough, with what the least takes.
pub fn choose(needs: &Needs<'_>, wish: Wish, max: u64) -> anyhow::Result<Choice> {
    // This also says what is wrong with a context that is impossible.
    let first = needs.items(wish.kv, wish.ctx)?;
    let halves = |&batch: &usize| (batch > LEAST_BATCH).then(|| LEAST_BATCH.max(batch / 2));
    for batch in std::iter::successors(Some(needs.batch()), halves) {
        if let Some(choice) = within(&needs.in_batches(batch), wish, max)? {
            return Ok(choice);
        }
    }
    let needs = needs.in_batches(LEAST_BATCH.min(needs.batch()));
    let kv = kinds(&needs, wish).last().map_or(wish.kv, |last| *last);
    let least_ctx = wish.least_ctx();
    let least = needs.items(kv, least_ctx).unwrap_or(first);
    if needs.is_repacked() {
        return Err(anyhow::anyhow!(
            "--max-ram {} is too little for --repack, with which all weights stay in memory: at least {} is needed, {} of \
             them for rearranged weights. Without --repack weights can be read anew for every token",
            max / MB,
            total(&needs, wish, &least, false).div_ceil(MB),
            bytes(least.repacked_bytes),
        ));
    }
    let cache = if wish.swap { "in a file".to_owned() } else { bytes(least.kv_bytes) };
    Err(anyhow::anyhow!(
        "--max-ram {} is too little: at least {} is needed. Program {}, tokenizer {}, vectors {}, buffers {}, sampling {}, \
         KV cache of {least_ctx} tokens in {kv} {cache}, weights a layer at a time {}",
        max / MB,
        total(&needs, wish, &least, true).div_ceil(MB),
        bytes(least.program_bytes + PROGRAM_PAGES),
        bytes(least.tokenizer_bytes),
        bytes(least.vector_bytes),
        bytes(least.buffer_bytes),
        bytes(SAMPLING * needs.vocab() as u64),
        bytes(needs.parts().least.max(needs.header())),
    ))
}

/// The first choice that is small enough with these batches.
fn within(needs: &Needs<'_>, wish: Wish, max: u64) -> anyhow::Result<Option<Choice>> {
    let kinds = kinds(needs, wish);
    let ways = if needs.is_repacked() { &[false][..] } else { &[false, true] };
    for &streamed in ways {
        let fits = |items: &Items| total(needs, wish, items, streamed) <= max;
        let choice = |kv, ctx, items: Items| {
            let keep = max.saturating_sub(total(needs, wish, &items, true));
            Choice { kv, ctx, batch: needs.batch(), keep: streamed.then_some(keep), items }
        };
        for &kv in &kinds {
            let items = needs.items(kv, wish.ctx)?;
            if fits(&items) {
                return Ok(Some(choice(kv, wish.ctx, items)));
            }
        }
        let kv = kinds.last().map_or(wish.kv, |last| *last);
        let fitting = needs.largest_ctx(kv, wish.ctx, fits);
        if let Some(ctx) = fitting.filter(|&ctx| ctx >= wish.least_ctx()) {
            return Ok(Some(choice(kv, ctx, needs.items(kv, ctx)?)));
        }
    }
    Ok(None)
}

/// The wish's kind of KV cache, and a smaller one if this model can have it.
fn kinds(needs: &Needs<'_>, wish: Wish) -> Vec<Kv> {
    let reduced = wish.kv.reduced().filter(|&kv| needs.items(kv, wish.ctx).is_ok());
    std::iter::once(wish.kv).chain(reduced).collect()
}

/// Everything that is held, pages of the file included.
fn total(needs: &Needs<'_>, wish: Wish, items: &Items, streamed: bool) -> u64 {
    let file = if streamed {
        // Texts are read in the header before the first layer is, and few after.
        needs.parts().least.max(needs.header())
    } else {
        // What was rearranged is in memory once, not in the pages of the file too.
        needs.file().saturating_sub(items.repacked_bytes)
    };
    let pages = PROGRAM_PAGES + file;
    own(needs, items, wish.swap).saturating_add(pages)
}

impl Wish {
    /// The context below which there is no use.
    fn least_ctx(&self) -> usize {
        self.least_ctx.unwrap_or(LEAST_CTX).min(self.ctx)
    }
}

impl Choice {
    /// What differs from the wish and its batches, in one line; `None` if nothing does. `streamed` are the bytes of weights that are read
    /// for every token.
    pub fn changes(&self, wish: &Wish, batch: usize, streamed: u64, weights: u64) -> Option<String> {
        let mut changes = Vec::new();
        if self.kv != wish.kv {
            changes.push(format!("KV cache in {} in place of {}", self.kv, wish.kv));
        }
        if self.ctx != wish.ctx {
            changes.push(format!("context of {} tokens in place of {}", self.ctx, wish.ctx));
        }
        if self.batch != batch {
            changes.push(format!("batches of {} tokens in place of {batch}", self.batch));
        }
        if self.keep.is_some() {
            let (some, all) = (bytes(streamed), bytes(weights));
            changes.push(format!("{some} of {all} of weights read anew for every batch and token"));
        }
        (!changes.is_empty()).then(|| changes.join(", "))
    }
}
