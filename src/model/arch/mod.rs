//! Architectures: which metadata keys and switches each has. No arithmetic lives here.
//!
//! To add one: a file beside these and a line in `ARCHS`; a new switch in [`Config`] only for arithmetic that no
//! other architecture has.

mod gemma3;
mod llama;
mod mistral3;
mod qwen2;
mod qwen3;

use super::config::{Activation, Config};
use super::error::LoadError;
use super::names;
use crate::gguf::{self, Meta, Value};
use crate::kernel::op::rope::{Scaling, Spec, Style};

/// An architecture: its name in files and how its configuration is read.
pub struct Arch {
    /// `general.architecture`
    pub name: &'static str,
    /// Keys whose arithmetic this architecture has, though others refuse them.
    understood: &'static [&'static str],
    /// Sets the switches, starting from those of the plain decoder.
    switches: fn(&Keys<'_>, &mut Config) -> Result<(), LoadError>,
}

/// Every architecture that runs.
static ARCHS: &[&Arch] = &[&llama::ARCH, &mistral3::ARCH, &qwen2::ARCH, &qwen3::ARCH, &gemma3::ARCH];

/// Every architecture that runs.
pub fn all() -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().copied()
}

/// Reads the configuration of a model.
pub fn config(file: &gguf::File) -> Result<Config, LoadError> {
    let meta = file.meta();
    let missing = || LoadError::MissingKey { key: "general.architecture".to_owned() };
    let name = meta.str("general.architecture")?.ok_or_else(missing)?;
    let Some(arch) = all().find(|a| a.name == name) else {
        let known: Vec<&str> = all().map(|a| a.name).collect();
        return Err(LoadError::Architecture { name: name.to_owned(), known: known.join(", ") });
    };
    let keys = Keys { meta, arch: arch.name };
    let mut config = plain(&keys, file)?;
    (arch.switches)(&keys, &mut config)?;
    keys.refuse_what_changes_arithmetic(arch.understood)?;
    Ok(config)
}

/// The configuration of a plain decoder: grouped attention, gated SiLU, RMS norms before both, no more.
fn plain(keys: &Keys<'_>, file: &gguf::File) -> Result<Config, LoadError> {
    let n_layers = keys.count("block_count", 100_000)?;
    let dim = keys.count("embedding_length", 1 << 20)?;
    let hidden_dim = keys
        .same_in_all_layers("feed_forward_length", n_layers, 1 << 24)?
        .ok_or_else(|| keys.missing("feed_forward_length"))?;
    let n_heads = keys
        .same_in_all_layers("attention.head_count", n_layers, 1 << 16)?
        .ok_or_else(|| keys.missing("attention.head_count"))?;
    let n_kv_heads =
        keys.same_in_all_layers("attention.head_count_kv", n_layers, 1 << 16)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(keys.value(
            "attention.head_count_kv",
            n_kv_heads,
            format!("must divide attention.head_count, {n_heads}"),
        ));
    }
    let head_dim = match keys.optional_count("attention.key_length", 1 << 16)? {
        Some(n) => n,
        None if dim.is_multiple_of(n_heads) => dim / n_heads,
        None => return Err(keys.missing("attention.key_length")),
    };
    let value_dim = match keys.optional_count("attention.value_length", 1 << 16)? {
        Some(n) => n,
        None if dim.is_multiple_of(n_heads) => dim / n_heads,
        None => head_dim,
    };
    let n_rot = keys.optional_count("rope.dimension_count", 1 << 16)?.unwrap_or(head_dim);
    if n_rot > head_dim || !n_rot.is_multiple_of(2) {
        return Err(keys.value(
            "rope.dimension_count",
            n_rot,
            format!("must be even and at most the head's {head_dim}"),
        ));
    }
    let train_ctx =
        keys.optional_count("context_length", 1 << 30)?.ok_or_else(|| keys.missing("context_length"))?;
    Ok(Config {
        arch: keys.arch,
        dim,
        hidden_dim,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        value_dim,
        // Rows of the embedding, which may be more than the tokenizer has tokens.
        vocab: file.tensor(names::EMBEDDING).map_or(0, |t| t.dims[1] as usize),
        train_ctx,
        norm_eps: keys
            .f32("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?,
        rope_style: Style::Halves,
        rope: keys.rope(n_rot, train_ctx)?,
        local: None,
        attn_scale: match keys.f32("attention.scale")? {
            Some(scale) if scale != 0.0 => scale,
            _ => 1.0 / (head_dim as f32).sqrt(),
        },
        qk_norm: false,
        post_norms: false,
        ffn_scales: true,
        activation: Activation::Silu,
        embed_scale: 1.0,
        final_softcap: None,
    })
}

/// The metadata of one architecture: keys are given without the architecture's prefix.
pub struct Keys<'m> {
    meta: &'m Meta,
    arch: &'static str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn missing(&self, key: &str) -> LoadError {
        LoadError::MissingKey { key: self.full(key) }
    }

    fn value(&self, key: &str, value: impl ToString, expected: String) -> LoadError {
        LoadError::Value { key: self.full(key), value: value.to_string(), expected }
    }

    fn unsupported(&self, key: &str, value: impl ToString) -> LoadError {
        LoadError::Unsupported { key: self.full(key), value: value.to_string(), arch: self.arch }
    }

    fn in_range(&self, key: &str, value: u64, max: usize) -> Result<usize, LoadError> {
        match usize::try_from(value) {
            Ok(n) if (1..=max).contains(&n) => Ok(n),
            _ => Err(self.value(key, value, format!("must be from 1 to {max}"))),
        }
    }

    fn optional_count(&self, key: &str, max: usize) -> Result<Option<usize>, LoadError> {
        let value = self.meta.u64(&self.full(key))?;
        value.map(|v| self.in_range(key, v, max)).transpose()
    }

    fn count(&self, key: &str, max: usize) -> Result<usize, LoadError> {
        self.optional_count(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// A count that some files give for each layer; it must be one number for all.
    fn same_in_all_layers(&self, key: &str, n_layers: usize, max: usize) -> Result<Option<usize>, LoadError> {
        let full = self.full(key);
        if !matches!(self.meta.get(&full), Some(Value::Array(_))) {
            return self.optional_count(key, max);
        }
        let Some(first) = self.meta.u64_at(&full, 0)? else { return Ok(None) };
        for layer in 1..n_layers {
            if let Some(other) = self.meta.u64_at(&full, layer)?
                && other != first
            {
                return Err(self.unsupported(key, format!("{first} in layer 0 and {other} in layer {layer}")));
            }
        }
        self.in_range(key, first, max).map(Some)
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.meta.f32(&self.full(key))?)
    }

    /// The number of `key`, which must be positive; 0 means absent, as writers that always write the key mean it.
    fn positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        match self.f32(key)? {
            None | Some(0.0) => Ok(None),
            Some(x) if x > 0.0 => Ok(Some(x)),
            Some(x) => Err(self.value(key, x, "must be positive".to_owned())),
        }
    }

    /// The rotation of layers that see everything.
    fn rope(&self, n_rot: usize, train_ctx: usize) -> Result<Spec, LoadError> {
        let base = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        let ty = self.meta.str(&self.full("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match self.positive("rope.scaling.factor")? {
            Some(f) => f,
            None => self.positive("rope.scale_linear")?.unwrap_or(1.0),
        };
        let scaling = match ty {
            "none" => Scaling::Linear { factor: 1.0 },
            "linear" => Scaling::Linear { factor },
            "yarn" => Scaling::Yarn {
                factor,
                // Negative: not set.
                ext_factor: self.f32("rope.scaling.yarn_ext_factor")?.filter(|&x| x >= 0.0).unwrap_or(1.0),
                beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original_ctx: self
                    .positive("rope.scaling.original_context_length")?
                    .unwrap_or(train_ctx as f32),
                log_multiplier: self.f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0),
            },
            _ => return Err(self.unsupported("rope.scaling.type", format!("'{ty}'"))),
        };
        let magnitude = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(Spec { n_rot, base, scaling, magnitude })
    }

    /// Refuses keys that ask for arithmetic we would silently leave out. Values in the list mean "none": what writers
    /// that always write every key put there.
    fn refuse_what_changes_arithmetic(&self, understood: &[&str]) -> Result<(), LoadError> {
        const NONE: [(&str, &[f32]); 20] = [
            ("expert_count", &[0.0]),
            ("logit_scale", &[0.0, 1.0]),
            ("residual_scale", &[0.0, 1.0]),
            ("embedding_scale", &[0.0, 1.0]),
            ("attn_logit_softcapping", &[0.0, 50.0]),
            ("final_logit_softcapping", &[0.0, 30.0]),
            ("swiglu_clamp_exp", &[0.0]),
            ("swiglu_clamp_shexp", &[0.0]),
            ("use_parallel_residual", &[0.0]),
            ("nextn_predict_layers", &[0.0]),
            ("attention.max_alibi_bias", &[0.0]),
            ("attention.clamp_kqv", &[0.0]),
            ("attention.output_scale", &[0.0, 1.0]),
            ("attention.value_scale", &[0.0, 1.0]),
            ("attention.temperature_scale", &[0.0]),
            ("attention.sliding_window", &[0.0]),
            ("attention.kv_lora_rank", &[0.0]),
            ("attention.causal", &[1.0]),
            ("attention.indexer.head_count", &[0.0]),
            ("rope.scaling.alpha", &[0.0]),
        ];
        for (key, none) in NONE.iter().filter(|(key, _)| !understood.contains(key)) {
            let Some(value) = self.meta.get(&self.full(key)) else { continue };
            let numbers: Vec<f64> = match value {
                Value::Array(a) => a.iter().map(|v| number(&v)).collect(),
                v => vec![number(&v)],
            };
            if let Some(x) = numbers.into_iter().find(|x| !none.iter().any(|n| f64::from(*n) == *x)) {
                return Err(self.unsupported(key, x));
            }
        }
        for (key, other) in [
            ("attention.key_length_swa", "attention.key_length"),
            ("attention.value_length_swa", "attention.value_length"),
            ("rope.dimension_count_swa", "rope.dimension_count"),
        ] {
            let (a, b) = (self.meta.u64(&self.full(key))?, self.meta.u64(&self.full(other))?);
            if let (Some(a), Some(b)) = (a, b)
                && a != b
            {
                return Err(self.unsupported(key, a));
            }
        }
        Ok(())
    }
}

/// A value as a number; what is none becomes NaN, which equals nothing.
fn number(value: &Value<'_>) -> f64 {
    match value {
        Value::Bool(b) => f64::from(u8::from(*b)),
        v => v.number().unwrap_or(f64::NAN),
    }
}
