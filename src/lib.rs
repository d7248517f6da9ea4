//! Twinband runs GGUF and G2BX language models on small machines.
//!
//! The pipeline, in the order data flows:
//!
//! | module | does |
//! |---|---|
//! | [`gguf`] | maps a model file, checks every field, hands out metadata and tensor bytes |
//! | [`g2bx`] | our own container: weights in the order kernels read them; opens either kind of file |
//! | [`tokenizer`] | text to token ids and back; chat templates |
//! | [`model`] | configuration, weight views, state (KV cache), the forward pass |
//! | [`host`] | cores and memory of this machine |
//! | [`kernel`] | arithmetic on slices: block formats, matrix products, norms, attention, threads |
//! | [`head`] | hidden vector to logits |
//! | [`gpu`] | the worker process that talks to graphics drivers |
//! | [`sample`] | logits to the next token id |
//! | [`generate`] | the loop around all of it |
//! | [`surgery`] | changing models: what weights are encoded in |
//! | [`synth`] | models of random weights with the shape of real ones |
//! | [`cli`] | the commands |
//!
//! What every function computes, to the bit, is specified in `docs/NUMERICS.md`.

pub mod cli;
pub mod g2bx;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod head;
pub mod host;
pub mod kernel;
pub mod model;
pub mod sample;
pub mod surgery;
pub mod synth;
pub mod tokenizer;
