//! The shapes that models can be given.

/// The shape of a model: what its speed depends on. The head is the embedding again, as in all small models of these
/// families.
#[derive(Debug, PartialEq)]
pub struct Geometry {
    /// The name to ask for it by.
    pub name: &'static str,
    /// `general.architecture`
    pub arch: &'static str,
    /// How text is cut before it is encoded: `tokenizer.ggml.pre`
    pub pre: &'static str,
    /// Tokens.
    pub vocab: usize,
    /// Width of the hidden state.
    pub dim: usize,
    /// Width of the feed-forward network.
    pub hidden_dim: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Context the model counts as trained for.
    pub ctx: usize,
    /// Whether query and key heads are normalised.
    pub qk_norm: bool,
    /// Whether query, key and value have biases.
    pub bias: bool,
    /// Base of the rotation's frequencies.
    pub rope_base: f32,
    /// Added to mean squares by norms.
    pub norm_eps: f32,
}

/// Every shape, smallest first.
pub static GEOMETRIES: &[Geometry] = &[
    // For tests: every row is a whole number of blocks of every format.
    Geometry {
        name: "tiny",
        arch: "qwen3",
        pre: "qwen2",
        vocab: 1024,
        dim: 256,
        hidden_dim: 512,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        ctx: 8192,
        qk_norm: true,
        bias: false,
        rope_base: 1e6,
        norm_eps: 1e-6,
    },
    Geometry {
        name: "qwen3-0.6b",
        arch: "qwen3",
        pre: "qwen2",
        vocab: 151_936,
        dim: 1024,
        hidden_dim: 3072,
        n_layers: 28,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        ctx: 40_960,
        qk_norm: true,
        bias: false,
        rope_base: 1e6,
        norm_eps: 1e-6,
    },
    Geometry {
        name: "llama-3.2-1b",
        arch: "llama",
        pre: "llama-bpe",
        vocab: 128_256,
        dim: 2048,
        hidden_dim: 8192,
        n_layers: 16,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        ctx: 131_072,
        qk_norm: false,
        bias: false,
        rope_base: 5e5,
        norm_eps: 1e-5,
    },
    Geometry {
        name: "qwen2.5-3b",
        arch: "qwen2",
        pre: "qwen2",
        vocab: 151_936,
        dim: 2048,
        hidden_dim: 11_008,
        n_layers: 36,
        n_heads: 16,
        n_kv_heads: 2,
        head_dim: 128,
        ctx: 32_768,
        qk_norm: false,
        bias: true,
        rope_base: 1e6,
        norm_eps: 1e-6,
    },
];

/// The shape of this name.
pub fn by_name(name: &str) -> Option<&'static Geometry> {
    GEOMETRIES.iter().find(|g| g.name == name)
}
