//! What running a model takes, item by item: for `fit`, and for the commands that run one before they take it.

use serde::Serialize;

use super::options::Kv;
use crate::gguf::File;
use crate::head::{Engine, EngineOptions};
use crate::model::{Outline, Parts, StateError};
use crate::tokenizer::Tokenizer;

/// What the program holds of its own whatever the model: relocated data, the heap's slack, the main thread's stack.
const PROGRAM: u64 = 500_000;
/// The same for each thread.
const THREAD: u64 = 30_000;

/// A model and how it would be run, the KV cache and the context left open.
#[derive(Clone, Copy)]
pub struct Needs<'o> {
    outline: &'o Outline,
    options: EngineOptions,
    tokenizer: u64,
    weights: u64,
    repack: bool,
    header: u64,
    file: u64,
}

/// Bytes that are allocated when the context is full, and nothing of the model file, which is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Items {
    /// The program itself and its threads.
    pub program_bytes: u64,
    /// The tables of vocabulary and merges.
    pub tokenizer_bytes: u64,
    /// Norms, biases and other vectors, which are copied as f32.
    pub vector_bytes: u64,
    /// Activations of a batch, scores, logits.
    pub buffer_bytes: u64,
    /// Keys and values.
    pub kv_bytes: u64,
    /// Rearranged weights, which take the place of pages of the file.
    pub repacked_bytes: u64,
}

impl Items {
    /// Without keys and values.
    pub fn fixed(&self) -> u64 {
        self.program_bytes
            + self.tokenizer_bytes
            + self.vector_bytes
            + self.buffer_bytes
            + self.repacked_bytes
    }

    /// All of it that is in memory of the process's own; with `swap` keys and values are not.
    pub fn own(&self, swap: bool) -> u64 {
        self.fixed().saturating_add(if swap { 0 } else { self.kv_bytes })
    }
}

impl<'o> Needs<'o> {
    /// For a file's model with this outline and tokenizer; `kv` and `ctx` of the options are not used.
    pub fn new(file: &File, outline: &'o Outline, tokenizer: &Tokenizer, options: EngineOptions) -> Self {
        let weights = file.tensors().iter().filter_map(|tensor| tensor.bytes()).sum();
        let tokenizer = tokenizer.heap_bytes() as u64;
        let (header, file) = (file.header_size(), file.expected_size());
        Self { outline, options, tokenizer, weights, repack: false, header, file }
    }

    /// The same with rearranged weights.
    pub fn repacked(self, repack: bool) -> Self {
        Self { repack, ..self }
    }

    /// Whether weights are rearranged, which takes a copy of all of them: none can be given up.
    pub fn is_repacked(&self) -> bool {
        self.repack
    }

    /// The same in batches of so many tokens.
    pub fn in_batches(self, batch: usize) -> Self {
        Self { options: EngineOptions { batch, ..self.options }, ..self }
    }

    /// Tokens of a batch.
    pub fn batch(&self) -> usize {
        self.options.batch
    }

    /// Bytes of all tensors, which are mapped: read from the file when they are used, and given up by the system when it
    /// wants the memory for something else.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Bytes of the file's header, which is mapped as well: the tokenizer reads texts there.
    pub fn header(&self) -> u64 {
        self.header
    }

    /// Bytes of the whole file, which is mapped.
    pub fn file(&self) -> u64 {
        self.file
    }

    /// The parts in which the weights can be streamed.
    pub fn parts(&self) -> Parts {
        self.outline.parts(self.options.batch)
    }

    /// Logits of a token.
    pub fn vocab(&self) -> usize {
        self.outline.config.vocab
    }

    /// What it takes with this KV cache and context.
    pub fn items(&self, kv: Kv, ctx: usize) -> Result<Items, StateError> {
        let options = EngineOptions { kv: kv.into(), ctx, ..self.options };
        let plan = Engine::plan(self.outline, &options)?;
        Ok(Items {
            program_bytes: PROGRAM + THREAD * options.threads as u64,
            tokenizer_bytes: self.tokenizer,
            vector_bytes: self.outline.vector_bytes as u64,
            buffer_bytes: plan.buffer_bytes as u64,
            kv_bytes: plan.kv_bytes as u64,
            repacked_bytes: if self.repack { self.outline.repack_bytes } else { 0 },
        })
    }

    /// The largest context, of those up to `most`, for which `fits` holds; `None` if it holds for none. What holds for one
    /// context holds for every smaller one.
    pub fn largest_ctx(&self, kv: Kv, most: usize, fits: impl Fn(&Items) -> bool) -> Option<usize> {
        let holds = |ctx: usize| self.items(kv, ctx).is_ok_and(|items| fits(&items));
        let (mut good, mut bad) = (0, most.saturating_add(1));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if holds(middle) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        (good > 0).then_some(good)
    }
}
