//! Models with random weights and the shape of real ones: for measurements and tests, no one has to download gigabytes.
//!
//! Speed depends on shapes and formats, not on what a model has learnt. Weights are scaled so that activations keep
//! their size from layer to layer and logits are as large as a real model's, so that no arithmetic is taken by
//! infinities or denormal numbers. Tensors are written as they are made, a piece at a time.

pub mod blocks;
mod geometry;
mod vocab;

use std::io::{BufWriter, Write};

pub use geometry::{GEOMETRIES, Geometry, by_name};

use crate::gguf::write::{FILE_TYPE, WriteError, Writer, file_type};
use crate::kernel::format::{self, GgmlType};
use crate::sample::Rng;
use vocab::Vocab;

/// Bytes made at a time, rounded down to whole blocks.
const PIECE: usize = 1 << 20;
/// The most blocks of layers that can be asked for.
pub const MAX_LAYERS: usize = 1000;
/// Standard deviation of the logits. With more of it the last token's own logit would always win, as the head is the
/// embedding again.
const LOGIT_STD: f32 = 1.5;
/// Gain of the matrices that add to the residual stream, over all of them together.
const RESIDUAL_GAIN: f32 = 2.0;
/// Standard deviation of norm weights around 1 and of biases around 0: enough that leaving one out shows.
const VECTOR_STD: f32 = 0.1;

/// Why a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no recipe for the type.
    #[error("no weights can be made of type {0}")]
    Type(GgmlType),
    /// None, or too many.
    #[error("{0} layers: must be from 1 to {MAX_LAYERS}")]
    Layers(usize),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// The file.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A model to be made.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its shape.
    pub geometry: &'static Geometry,
    /// The type of all matrices; norms and biases are F32.
    pub ty: GgmlType,
    /// Layers, in place of those of the shape.
    pub layers: usize,
    /// Which random numbers.
    pub seed: u64,
}

/// A tensor to be made: elements of this mean and standard deviation.
struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    mean: f32,
    std: f32,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let per_block = self.ty.geometry().map_or((1, 1), |g| (g.block as u64, g.bytes as u64));
        self.dims.iter().product::<u64>() / per_block.0 * per_block.1
    }
}

/// Every type that weights can be made of.
pub fn types() -> impl Iterator<Item = GgmlType> {
    format::all().map(|format| format.ty).filter(|ty| blocks::can_fill(*ty))
}

impl Spec {
    /// Bytes of the tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Writes the model to `out`. After each piece `progress` is told how many bytes of tensors are done, and says
    /// whether to go on.
    pub fn write<W: Write>(&self, out: W, mut progress: impl FnMut(u64) -> bool) -> Result<W, Error> {
        if !blocks::can_fill(self.ty) {
            return Err(Error::Type(self.ty));
        }
        if !(1..=MAX_LAYERS).contains(&self.layers) {
            return Err(Error::Layers(self.layers));
        }
        let mut writer = Writer::new();
        self.metadata(&mut writer);
        let tensors = self.tensors();
        for t in &tensors {
            writer.tensor(&t.name, &t.dims, t.ty)?;
        }
        let mut data = writer.begin(BufWriter::with_capacity(PIECE, out))?;
        let mut rng = Rng::new(self.seed);
        let (mut piece, mut done) = (vec![0; PIECE], 0);
        for t in &tensors {
            let block = t.ty.geometry().map_or(1, |g| g.bytes);
            let mut left = t.bytes();
            while left > 0 {
                let n = left.min((PIECE - PIECE % block) as u64) as usize;
                let piece = &mut piece[..n];
                if t.mean == 0.0 {
                    blocks::fill(t.ty, t.std, &mut rng, piece);
                } else {
                    fill_around(t.mean, t.std, &mut rng, piece);
                }
                data.part(piece)?;
                left -= n as u64;
                done += n as u64;
                if !progress(done) {
                    return Err(Error::Stopped);
                }
            }
        }
        let out = data.finish()?;
        Ok(out.into_inner().map_err(|error| WriteError::Io(error.into_error()))?)
    }

    fn metadata(&self, w: &mut Writer) {
        let g = self.geometry;
        let vocab = Vocab::new(g.vocab);
        let control = (g.vocab - vocab::CONTROL.len()) as u32;
        w.str("general.architecture", g.arch);
        w.str("general.name", &format!("{} geometry, random weights", g.name));
        w.u32("general.quantization_version", 2);
        if let Some(code) = file_type(self.ty) {
            w.u32(FILE_TYPE, code);
        }
        let counts = [
            ("block_count", self.layers),
            ("context_length", g.ctx),
            ("embedding_length", g.dim),
            ("feed_forward_length", g.hidden_dim),
            ("attention.head_count", g.n_heads),
            ("attention.head_count_kv", g.n_kv_heads),
            ("attention.key_length", g.head_dim),
            ("attention.value_length", g.head_dim),
            ("rope.dimension_count", g.head_dim),
            ("vocab_size", g.vocab),
        ];
        for (key, value) in counts {
            w.u32(&format!("{}.{key}", g.arch), value as u32);
        }
        w.f32(&format!("{}.attention.layer_norm_rms_epsilon", g.arch), g.norm_eps);
        w.f32(&format!("{}.rope.freq_base", g.arch), g.rope_base);
        w.str("tokenizer.ggml.model", "gpt2");
        w.str("tokenizer.ggml.pre", g.pre);
        w.strings("tokenizer.ggml.tokens", &vocab.tokens);
        w.i32s("tokenizer.ggml.token_type", &vocab.kinds());
        w.strings("tokenizer.ggml.merges", &vocab.merges);
        w.u32("tokenizer.ggml.bos_token_id", control);
        w.u32("tokenizer.ggml.eos_token_id", control + 2);
        w.bool("tokenizer.ggml.add_bos_token", false);
    }

    fn tensors(&self) -> Vec<Tensor> {
        let g = self.geometry;
        let (q, kv) = (g.n_heads * g.head_dim, g.n_kv_heads * g.head_dim);
        let mut all = Vec::new();
        let mut matrix = |name: String, n_in: usize, n_out: usize, gain: f32| {
            let dims = vec![n_in as u64, n_out as u64];
            all.push(Tensor { name, dims, ty: self.ty, mean: 0.0, std: gain / (n_in as f32).sqrt() });
        };
        matrix("token_embd.weight".to_owned(), g.dim, g.vocab, LOGIT_STD);
        let residual = RESIDUAL_GAIN / (2.0 * self.layers as f32).sqrt();
        for layer in 0..self.layers {
            let mut block =
                |name, n_in, n_out, gain| matrix(format!("blk.{layer}.{name}.weight"), n_in, n_out, gain);
            block("attn_q", g.dim, q, 1.0);
            block("attn_k", g.dim, kv, 1.0);
            block("attn_v", g.dim, kv, 1.0);
            block("attn_output", q, g.dim, residual);
            block("ffn_gate", g.dim, g.hidden_dim, 1.0);
            block("ffn_up", g.dim, g.hidden_dim, 1.0);
            block("ffn_down", g.hidden_dim, g.dim, residual);
        }
        let mut vector = |name: String, n: usize, mean: f32| {
            all.push(Tensor { name, dims: vec![n as u64], ty: GgmlType::F32, mean, std: VECTOR_STD });
        };
        for layer in 0..self.layers {
            let mut block = |name, n, mean| vector(format!("blk.{layer}.{name}"), n, mean);
            block("attn_norm.weight", g.dim, 1.0);
            block("ffn_norm.weight", g.dim, 1.0);
            if g.qk_norm {
                block("attn_q_norm.weight", g.head_dim, 1.0);
                block("attn_k_norm.weight", g.head_dim, 1.0);
            }
            if g.bias {
                block("attn_q.bias", q, 0.0);
                block("attn_k.bias", kv, 0.0);
                block("attn_v.bias", kv, 0.0);
            }
        }
        vector("output_norm.weight".to_owned(), g.dim, 1.0);
        all
    }
}

/// Fills with F32 around a mean.
fn fill_around(mean: f32, std: f32, rng: &mut Rng, out: &mut [u8]) {
    blocks::fill(GgmlType::F32, std, rng, out);
    for x in out.as_chunks_mut::<4>().0 {
        *x = (mean + f32::from_le_bytes(*x)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::File;

    fn spec(ty: GgmlType) -> Spec {
        let geometry = by_name("tiny").expect("there is one");
        Spec { geometry, ty, layers: geometry.n_layers, seed: 1 }
    }

    #[test]
    fn a_file_has_the_tensors_of_its_type_and_the_size_foretold() -> Result<(), Box<dyn std::error::Error>> {
        for ty in types() {
            let spec = spec(ty);
            let mut last = 0;
            let bytes = spec.write(Vec::new(), |done| {
                last = done;
                true
            })?;
            assert_eq!(last, spec.bytes(), "{ty}");
            let file = File::from_bytes(bytes)?;
            let sizes = file.tensors().iter().map(|t| t.bytes().unwrap_or(0)).sum::<u64>();
            assert_eq!(sizes, spec.bytes(), "{ty}");
            assert!(file.tensors().iter().all(|t| t.ty == if t.n_dims == 2 { ty } else { GgmlType::F32 }));
        }
        Ok(())
    }

    #[test]
    fn a_seed_is_a_file_and_another_seed_another() -> Result<(), Box<dyn std::error::Error>> {
        let of = |seed| Spec { seed, ..spec(GgmlType::Q4_0) }.write(Vec::new(), |_| true);
        assert!(of(1)? == of(1)?);
        assert!(of(1)? != of(2)?);
        Ok(())
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        let refusal =
            |spec: Spec, go_on| spec.write(Vec::new(), |_| go_on).map(drop).map_err(|e| e.to_string());
        let layers = Spec { layers: 0, ..spec(GgmlType::Q4_0) };
        assert_eq!(refusal(layers, true), Err("0 layers: must be from 1 to 1000".to_owned()));
        let ty = refusal(spec(GgmlType(9)), true).expect_err("there are no weights of Q8_1");
        assert_eq!(ty, "no weights can be made of type Q8_1");
        assert_eq!(refusal(spec(GgmlType::Q4_0), false), Err("stopped".to_owned()));
    }

    #[test]
    fn real_shapes_have_as_many_parameters_as_their_names_say() {
        // From the model cards, in millions; embeddings counted once.
        for (name, millions) in [("qwen3-0.6b", 596.0), ("llama-3.2-1b", 1236.0), ("qwen2.5-3b", 3086.0)] {
            let geometry = by_name(name).expect("a shape");
            let spec = Spec { geometry, ty: GgmlType::F16, layers: geometry.n_layers, seed: 0 };
            let n: u64 = spec.tensors().iter().map(|t| t.dims.iter().product::<u64>()).sum();
            assert!((n as f64 / 1e6 - millions).abs() < 0.006 * millions, "{name}: {n}");
        }
    }
}
