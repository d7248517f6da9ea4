//! Weights: views into the file, each checked against the configuration.

use super::acts::Blocks;
use super::config::Config;
use super::error::LoadError;
use super::names;
use crate::gguf::{File, TensorInfo};
use crate::kernel::format::{ActBlock, Matrix, all, of};
use crate::kernel::isa::Isa;
use crate::kernel::op::map::{add, scale};
use crate::simd;
use std::collections::HashSet;
use std::ops::Range;

/// Names shown of a long list.
const SHOWN: usize = 8;

/// All weights of a decoder.
pub struct Weights<'f> {
    /// `[vocab][dim]`
    pub token_embd: Matrix<'f>,
    /// The blocks in order.
    pub layers: Vec<Layer<'f>>,
    /// `[dim]`
    pub output_norm: Vec<f32>,
    /// `[vocab][dim]`; the embedding again where the file has no other.
    pub output: Linear<'f>,
    /// Divisors of the rotation's frequencies, `[n_rot / 2]`
    pub rope_factors: Option<Vec<f32>>,
    /// Bytes of all vectors, which are copied out of the file as f32.
    pub vector_bytes: usize,
}

/// The weights of one block. Shapes are `[outputs][inputs]`.
pub struct Layer<'f> {
    /// `[dim]`
    pub attn_norm: Vec<f32>,
    /// `[q_dim][dim]`
    pub q: Linear<'f>,
    /// `[k_dim][dim]`
    pub k: Linear<'f>,
    /// `[v_dim][dim]`
    pub v: Linear<'f>,
    /// `[head_dim]`
    pub q_norm: Option<Vec<f32>>,
    /// `[head_dim]`
    pub k_norm: Option<Vec<f32>>,
    /// `[dim][att_dim]`
    pub o: Linear<'f>,
    /// `[dim]`
    pub post_attn_norm: Option<Vec<f32>>,
    /// `[dim]`
    pub ffn_norm: Vec<f32>,
    /// `[hidden_dim][dim]`
    pub gate: Linear<'f>,
    /// `[hidden_dim][dim]`
    pub up: Linear<'f>,
    /// `[dim][hidden_dim]`
    pub down: Linear<'f>,
    /// `[dim]`
    pub post_ffn_norm: Option<Vec<f32>>,
}

/// A matrix with what is done to its products.
pub struct Linear<'f> {
    /// The matrix.
    pub w: Matrix<'f>,
    /// Applied in order to every product.
    pub then: [Option<Then>; 2],
}

impl Linear<'_> {
    /// Applies what follows the product to the outputs `rows` of one token.
    pub fn finish(&self, isa: Isa, out: &mut [f32], rows: Range<usize>) {
        for then in self.then.iter().flatten() {
            match then {
                Then::Scale(by) => simd!(isa, s => scale(s, out, *by)),
                Then::Bias(b) => simd!(isa, s => add(s, out, &b[rows.clone()])),
            }
        }
    }
}

/// Something done to the outputs of a matrix.
pub enum Then {
    /// Multiply by a number.
    Scale(f32),
    /// Add a vector, `[outputs]`
    Bias(Vec<f32>),
}

impl<'f> Weights<'f> {
    /// Finds and checks every tensor. Tensors that nothing needs are named in one line of `warnings`.
    pub fn load(file: &'f File, config: &Config, warnings: &mut Vec<String>) -> Result<Self, LoadError> {
        Self::read(file, config, warnings, true)
    }

    /// As [`Weights::load`], but looks at the header only: matrices have their formats and no rows, vectors are empty.
    /// Good for sizes, not for computing.
    pub(super) fn without_data(file: &'f File, config: &Config) -> Result<Self, LoadError> {
        Self::read(file, config, &mut Vec::new(), false)
    }

    fn read(
        file: &'f File,
        config: &Config,
        warnings: &mut Vec<String>,
        with_data: bool,
    ) -> Result<Self, LoadError> {
        let mut missing = required(config).filter(|name| file.tensor(name).is_none()).peekable();
        if missing.peek().is_some() {
            let names: Vec<String> = missing.by_ref().take(SHOWN).collect();
            return Err(LoadError::MissingTensors { names: list(&names, names.len() + missing.count()) });
        }
        let mut load = Loader { file, with_data, used: HashSet::new(), vector_bytes: 0 };
        let weights = load.all(config)?;
        let tokens = file.meta().strings("tokenizer.ggml.tokens")?.map_or(0, |t| t.len());
        if tokens > config.vocab {
            return Err(LoadError::Vocabulary { rows: config.vocab, tokens });
        }
        let mut extra = file.tensors().iter().filter(|t| !load.used.contains(t.name.as_str())).peekable();
        if extra.peek().is_some() {
            let names: Vec<String> = extra.clone().take(SHOWN).map(|t| t.name.clone()).collect();
            warnings.push(format!("tensors not used: {}", list(&names, extra.count())));
        }
        Ok(weights)
    }

    /// The forms of activations that the readers of an input need.
    pub fn forms(readers: impl IntoIterator<Item = Matrix<'f>>) -> Blocks {
        let mut forms = [None, None];
        for w in readers {
            match w.format().act() {
                Some(ActBlock::B32) => forms[0] = Some(ActBlock::B32),
                Some(ActBlock::B256) => forms[1] = Some(ActBlock::B256),
                None => {}
            }
        }
        forms
    }
}

fn list(names: &[String], n: usize) -> String {
    let shown = names.join(", ");
    if n > names.len() { format!("{shown} and {} more", n - names.len()) } else { shown }
}

/// The names of all tensors without which a model cannot run.
fn required(c: &Config) -> impl Iterator<Item = String> {
    const ALWAYS: [&str; 9] = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    const QK_NORM: [&str; 2] = ["attn_q_norm", "attn_k_norm"];
    const POST_NORMS: [&str; 2] = ["post_attention_norm", "post_ffw_norm"];
    let (qk_norm, post_norms) = (c.qk_norm, c.post_norms);
    let blocks = (0..c.n_layers).flat_map(move |l| {
        let some = |switch: bool, names: [&'static str; 2]| names.into_iter().filter(move |_| switch);
        let parts = ALWAYS.into_iter().chain(some(qk_norm, QK_NORM)).chain(some(post_norms, POST_NORMS));
        parts.map(move |part| format!("blk.{l}.{part}.weight"))
    });
    [names::EMBEDDING.to_owned(), "output_norm.weight".to_owned()].into_iter().chain(blocks)
}

struct Loader<'f> {
    file: &'f File,
    /// Whether the file's data may be looked at.
    with_data: bool,
    used: HashSet<&'f str>,
    vector_bytes: usize,
}

impl<'f> Loader<'f> {
    fn all(&mut self, c: &Config) -> Result<Weights<'f>, LoadError> {
        let token_embd = self.matrix(names::EMBEDDING, c.vocab, c.dim)?;
        let output_norm = self.vector("output_norm.weight", c.dim)?;
        let output =
            if names::is_tied(self.file) { token_embd } else { self.matrix(names::HEAD, c.vocab, c.dim)? };
        let bias = self.optional_vector("output.bias", c.vocab)?.map(Then::Bias);
        let output = Linear { w: output, then: [bias, None] };
        let rope_factors = self.optional_vector("rope_freqs.weight", c.rope.n_rot / 2)?;
        if let Some(i) = rope_factors.as_ref().and_then(|f| f.iter().position(|&x| x == 0.0)) {
            return Err(LoadError::Element { tensor: "rope_freqs.weight".to_owned(), index: i, value: 0.0 });
        }
        let layers = (0..c.n_layers).map(|l| self.layer(c, l)).collect::<Result<_, _>>()?;
        let vector_bytes = self.vector_bytes;
        Ok(Weights { token_embd, layers, output_norm, output, rope_factors, vector_bytes })
    }

    fn layer(&mut self, c: &Config, l: usize) -> Result<Layer<'f>, LoadError> {
        let name = |part: &str| format!("blk.{l}.{part}.weight");
        let when = |switch: bool, part: &str, n: usize, this: &mut Self| {
            if switch { this.vector(&name(part), n).map(Some) } else { Ok(None) }
        };
        Ok(Layer {
            attn_norm: self.vector(&name("attn_norm"), c.dim)?,
            q: self.linear(l, "attn_q", c.q_dim(), c.dim)?,
            k: self.linear(l, "attn_k", c.k_dim(), c.dim)?,
            v: self.linear(l, "attn_v", c.v_dim(), c.dim)?,
            q_norm: when(c.qk_norm, "attn_q_norm", c.head_dim, self)?,
            k_norm: when(c.qk_norm, "attn_k_norm", c.head_dim, self)?,
            o: self.linear(l, "attn_output", c.dim, c.att_dim())?,
            post_attn_norm: when(c.post_norms, "post_attention_norm", c.dim, self)?,
            ffn_norm: self.vector(&name("ffn_norm"), c.dim)?,
            gate: self.ffn(c, l, "ffn_gate", c.hidden_dim, c.dim)?,
            up: self.ffn(c, l, "ffn_up", c.hidden_dim, c.dim)?,
            down: self.ffn(c, l, "ffn_down", c.dim, c.hidden_dim)?,
            post_ffn_norm: when(c.post_norms, "post_ffw_norm", c.dim, self)?,
        })
    }

    /// A matrix with its optional scale, then its optional bias.
    fn linear(&mut self, l: usize, part: &str, rows: usize, cols: usize) -> Result<Linear<'f>, LoadError> {
        let w = self.matrix(&format!("blk.{l}.{part}.weight"), rows, cols)?;
        Ok(Linear { w, then: [self.scale(l, part)?, self.bias(l, part, rows)?] })
    }

    /// The same in the feed-forward block, where the bias comes before the scale.
    fn ffn(
        &mut self,
        c: &Config,
        l: usize,
        part: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Linear<'f>, LoadError> {
        let w = self.matrix(&format!("blk.{l}.{part}.weight"), rows, cols)?;
        let scale = if c.ffn_scales { self.scale(l, part)? } else { None };
        Ok(Linear { w, then: [self.bias(l, part, rows)?, scale] })
    }

    fn bias(&mut self, l: usize, part: &str, rows: usize) -> Result<Option<Then>, LoadError> {
        Ok(self.optional_vector(&format!("blk.{l}.{part}.bias"), rows)?.map(Then::Bias))
    }

    fn scale(&mut self, l: usize, part: &str) -> Result<Option<Then>, LoadError> {
        let scale = self.optional_vector(&format!("blk.{l}.{part}.scale"), 1)?;
        Ok(scale.and_then(|s| s.first().copied()).map(Then::Scale))
    }

    fn find(&mut self, name: &str) -> Option<&'f TensorInfo> {
        let info = self.file.tensor(name)?;
        self.used.insert(&info.name);
        Some(info)
    }

    fn required(&mut self, name: &str) -> Result<&'f TensorInfo, LoadError> {
        self.find(name).ok_or_else(|| LoadError::MissingTensors { names: name.to_owned() })
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix<'f>, LoadError> {
        let info = self.required(name)?;
        self.view(info, &[cols, rows])
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>, LoadError> {
        let info = self.required(name)?;
        self.floats(info, n)
    }

    fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<Vec<f32>>, LoadError> {
        self.find(name).map(|info| self.floats(info, n)).transpose()
    }

    fn floats(&mut self, info: &TensorInfo, n: usize) -> Result<Vec<f32>, LoadError> {
        let view = self.view(info, &[n])?;
        self.vector_bytes += n * size_of::<f32>();
        if !self.with_data {
            return Ok(Vec::new());
        }
        let mut out = vec![0.0; n];
        view.decode_row(0, &mut out);
        match out.iter().position(|x| !x.is_finite()) {
            Some(index) => Err(LoadError::Element { tensor: info.name.clone(), index, value: out[index] }),
            None => Ok(out),
        }
    }

    /// The tensor as a matrix of exactly this shape (`[cols]` or `[cols, rows]`, the order of the file).
    fn view(&self, info: &TensorInfo, shape: &[usize]) -> Result<Matrix<'f>, LoadError> {
        let format = of(info.ty).ok_or_else(|| LoadError::Type {
            tensor: info.name.clone(),
            ty: info.ty,
            supported: all().map(|f| f.geometry().name).collect::<Vec<_>>().join(", "),
        })?;
        let want = |i: usize| shape.get(i).map_or(1, |&n| n as u64);
        if (0..4).any(|i| info.dims[i] != want(i)) {
            return Err(LoadError::Shape {
                tensor: info.name.clone(),
                found: shown(&info.dims[..info.n_dims.clamp(1, 4)]),
                expected: shown(shape),
            });
        }
        let (bytes, rows) =
            if self.with_data { (self.file.data(info)?, want(1) as usize) } else { (&[][..], 0) };
        Matrix::new(format, bytes, rows, shape[0])
            .and_then(|matrix| matrix.with_layout(info.layout))
            .map_err(|source| LoadError::Matrix { tensor: info.name.clone(), source })
    }
}

fn shown(dims: &[impl ToString]) -> String {
    format!("[{}]", dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}
