//! Gemma 3: sliding-window layers with a rotation of their own, norms on both sides of each block, scaled embeddings,
//! GELU.

use super::Arch;
use crate::gguf::Value;
use crate::kernel::op::rope::{Scaling, Spec};
use crate::model::config::{Activation, Local};

/// One layer in so many sees everything, if the file does not say.
const PERIOD: usize = 6;
/// Number of layers of the model whose queries are scaled differently.
const LAYERS_27B: usize = 62;

pub(super) static ARCH: Arch = Arch {
    name: "gemma3",
    understood: &["attention.sliding_window", "final_logit_softcapping"],
    switches: |keys, config| {
        config.qk_norm = true;
        config.post_norms = true;
        config.ffn_scales = false;
        config.activation = Activation::Gelu;
        config.embed_scale = (config.dim as f32).sqrt();
        config.final_softcap = keys.positive("final_logit_softcapping")?;
        // 27B was trained with the length of a head as if heads shared `dim`; `attention.scale` is not read by the
        // reference either.
        let scaled_by =
            if config.n_layers == LAYERS_27B { config.dim / config.n_heads } else { config.head_dim };
        config.attn_scale = 1.0 / (scaled_by as f32).sqrt();
        let window = keys.meta.u64(&keys.full("attention.sliding_window"))?.unwrap_or(0);
        if window == 0 {
            return Ok(());
        }
        let pattern = "attention.sliding_window_pattern";
        let layers: Vec<bool> = match keys.meta.get(&keys.full(pattern)) {
            Some(Value::Array(a)) => a.iter().map(|v| super::number(&v) != 0.0).collect(),
            _ => {
                let period = keys.optional_count(pattern, 1 << 20)?.unwrap_or(PERIOD);
                (0..config.n_layers).map(|l| l % period < period - 1).collect()
            }
        };
        if layers.len() != config.n_layers {
            return Err(keys.value(
                pattern,
                format!("{} elements", layers.len()),
                format!("must have one for each of {} layers", config.n_layers),
            ));
        }
        config.local = Some(Local {
            window: keys.in_range("attention.sliding_window", window, 1 << 30)?,
            layers,
            rope: Spec {
                base: keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
                scaling: Scaling::Linear { factor: 1.0 },
                ..config.rope.clone()
            },
        });
        Ok(())
    },
};
