//! What distinguishes one model from another: plain numbers and switches, read once from the metadata.

use crate::kernel::op::rope::{Spec, Style};

/// The shape of a decoder and the switches of its arithmetic. Lengths are in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`
    pub arch: &'static str,
    /// Length of the residual stream.
    pub dim: usize,
    /// Length inside the feed-forward block.
    pub hidden_dim: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; `n_heads` is a multiple.
    pub n_kv_heads: usize,
    /// Length of a query or key head.
    pub head_dim: usize,
    /// Length of a value head.
    pub value_dim: usize,
    /// Rows of the embedding: ids are below this.
    pub vocab: usize,
    /// Tokens the model was trained to look back on.
    pub train_ctx: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Which elements of a head rotate together.
    pub rope_style: Style,
    /// The rotation of layers that see everything.
    pub rope: Spec,
    /// Sliding-window layers, if the model has any.
    pub local: Option<Local>,
    /// What scores are multiplied by.
    pub attn_scale: f32,
    /// Query and key heads are normalised before they are rotated.
    pub qk_norm: bool,
    /// The outputs of attention and feed-forward are normalised before they are added.
    pub post_norms: bool,
    /// Products of the feed-forward block are multiplied by their tensors' `.scale` companions. The reference does so
    /// for some architectures only, and files are made to suit it.
    pub ffn_scales: bool,
    /// The feed-forward block's activation.
    pub activation: Activation,
    /// What embeddings are multiplied by.
    pub embed_scale: f32,
    /// `c` of `c * tanh(logit / c)`.
    pub final_softcap: Option<f32>,
}

/// Layers that look back on a window only.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// Positions that are seen, the token's own included.
    pub window: usize,
    /// For each layer whether it is local.
    pub layers: Vec<bool>,
    /// Their rotation.
    pub rope: Spec,
}

/// The function between the two products of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// The tanh form of GELU.
    Gelu,
}

impl Config {
    /// Length of all query heads.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Length of all key heads.
    pub fn k_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Length of all value heads.
    pub fn v_dim(&self) -> usize {
        self.n_kv_heads * self.value_dim
    }

    /// Length of what attention hands to its output product.
    pub fn att_dim(&self) -> usize {
        self.n_heads * self.value_dim
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Whether layer `layer` looks back on a window only.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.as_ref().is_some_and(|l| l.layers[layer])
    }

    /// The first position that the token at `pos` sees in layer `layer`.
    pub fn first_seen(&self, layer: usize, pos: usize) -> usize {
        match &self.local {
            Some(local) if local.layers[layer] => (pos + 1).saturating_sub(local.window),
            _ => 0,
        }
    }
}
