//! A tiny model, made up on the spot: llama architecture, random weights, a real byte-level BPE tokenizer, a chat
//! template. Always the same bytes for the same settings, some 150 KB.
//!
//! ```ignore
//! let good = Tiny::new().build();
//! let no_rope = Tiny::new().n_vocab(1003).tied().without_key("llama.rope.freq_base").build();
//! let odd = Tiny::new().put("llama.block_count", |w, key| { w.str(key, "two"); }).build();
//! let f32s = Tiny::new().format(encode::f32).build();
//! ```

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::path::{Path, PathBuf};

use twinband::gguf::write::Writer;
use twinband::kernel::format::GgmlType;

/// One tensor before it is encoded: `values` holds rows of `dims[0]` elements.
pub struct Plain {
    pub name: String,
    pub dims: Vec<u64>,
    pub values: Vec<f32>,
}

impl Plain {
    /// Whether it is a weight matrix (and not a norm, a bias or a table of factors).
    pub fn is_matrix(&self) -> bool {
        self.dims.len() == 2
    }
}

/// A tensor as it goes into the file.
pub type Encoded = (GgmlType, Vec<u8>);
type Format = Box<dyn Fn(&Plain) -> Encoded>;
type Put = Box<dyn Fn(&mut Writer, &str)>;

/// Settings of a tiny model; start with [`Tiny::new`].
pub struct Tiny {
    pub arch: &'static str,
    pub dim: u64,
    pub hidden_dim: u64,
    pub n_layers: u64,
    pub n_heads: u64,
    pub n_kv_heads: u64,
    pub head_dim: u64,
    pub context: u32,
    pub n_vocab: usize,
    pub seed: u64,
    tied: bool,
    format: Format,
    puts: Vec<(String, Put)>,
    dropped_keys: Vec<String>,
    extra: Vec<Plain>,
    raw: Vec<(String, Vec<u64>, Encoded)>,
    dropped_tensors: Vec<String>,
}

pub const EOS: &str = "<|im_end|>";
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
    {% endif %}";

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", EOS];
/// Merges that make common words of one token; both halves of each are tokens when it is reached.
const MERGES: [(&str, &str); 41] = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "t"),
    ("Ġ", "the"),
    ("i", "n"),
    ("e", "r"),
    ("o", "n"),
    ("Ġ", "a"),
    ("r", "e"),
    ("a", "n"),
    ("Ġ", "s"),
    ("a", "t"),
    ("e", "n"),
    ("o", "r"),
    ("Ġ", "w"),
    ("i", "s"),
    ("Ġ", "o"),
    ("a", "l"),
    ("i", "t"),
    ("e", "s"),
    ("Ġ", "b"),
    ("o", "u"),
    ("Ġ", "c"),
    ("in", "g"),
    ("Ġ", "m"),
    ("a", "r"),
    ("Ġ", "f"),
    ("l", "l"),
    ("e", "d"),
    ("o", "w"),
    ("Ġ", "in"),
    ("an", "d"),
    ("Ġ", "and"),
    ("e", "ll"),
    ("h", "ell"),
    ("hell", "o"),
    ("Ġ", "hello"),
    ("Ġ", "d"),
    ("s", "t"),
    ("l", "e"),
    ("Ġ", "is"),
];

impl Tiny {
    /// 2 layers, 64 wide, 4 heads sharing 2 key-value heads, 300 tokens, context 256; matrices Q8_0, the rest F32.
    pub fn new() -> Self {
        Self {
            arch: "llama",
            dim: 64,
            hidden_dim: 128,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            context: 256,
            n_vocab: 300,
            seed: 1,
            tied: false,
            format: Box::new(|t| if t.is_matrix() { encode::q8_0(t) } else { encode::f32(t) }),
            puts: Vec::new(),
            dropped_keys: Vec::new(),
            extra: Vec::new(),
            raw: Vec::new(),
            dropped_tensors: Vec::new(),
        }
    }

    /// The number of tokens, at least 300; more are more merges. 1003 is no multiple of any block or lane count.
    pub fn n_vocab(mut self, n: usize) -> Self {
        self.n_vocab = n;
        self
    }

    /// Changes dimensions: `Tiny::new().with(|t| t.dim = 256)`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Without output.weight: token_embd.weight serves as the head too.
    pub fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// How tensors are encoded.
    pub fn format(mut self, format: impl Fn(&Plain) -> Encoded + 'static) -> Self {
        self.format = Box::new(format);
        self
    }

    /// Adds a metadata key, or replaces it where it stands: `put` gets the writer and the key.
    pub fn put(mut self, key: &str, put: impl Fn(&mut Writer, &str) + 'static) -> Self {
        self.puts.push((key.to_owned(), Box::new(put)));
        self
    }

    pub fn without_key(mut self, key: &str) -> Self {
        self.dropped_keys.push(key.to_owned());
        self
    }

    pub fn without_tensor(mut self, name: &str) -> Self {
        self.dropped_tensors.push(name.to_owned());
        self
    }

    /// Adds a tensor that is encoded like the others, or replaces it.
    pub fn tensor(mut self, name: &str, dims: &[u64], values: Vec<f32>) -> Self {
        self.extra.push(Plain { name: name.to_owned(), dims: dims.to_vec(), values });
        self
    }

    /// Adds a tensor of these very bytes, or replaces it.
    pub fn raw_tensor(mut self, name: &str, dims: &[u64], ty: GgmlType, bytes: Vec<u8>) -> Self {
        self.raw.push((name.to_owned(), dims.to_vec(), (ty, bytes)));
        self
    }

    /// The file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.write_meta(&mut writer);
        let mut tensors: Vec<(String, Vec<u64>, Encoded)> = Vec::new();
        let mut add = |name: &str, dims: &[u64], encoded: Encoded| {
            let new = (name.to_owned(), dims.to_vec(), encoded);
            match tensors.iter_mut().find(|(old, ..)| old == name) {
                Some(old) => *old = new,
                None => tensors.push(new),
            }
        };
        for t in self.weights().iter().chain(&self.extra) {
            add(&t.name, &t.dims, (self.format)(t));
        }
        for (name, dims, (ty, bytes)) in &self.raw {
            add(name, dims, (*ty, bytes.clone()));
        }
        tensors.retain(|(name, ..)| !self.dropped_tensors.contains(name));
        for (name, dims, (ty, _)) in &tensors {
            writer.tensor(name, dims, *ty).expect("a tensor of a known layout");
        }
        let mut data = writer.begin(Vec::new()).expect("good metadata");
        for (_, _, (_, bytes)) in &tensors {
            data.tensor(bytes).expect("as many bytes as the dimensions ask for");
        }
        data.finish().expect("all tensors given")
    }

    /// Writes `name` into a folder.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, self.build()).expect("a folder that can be written to");
        path
    }

    fn write_meta(&self, writer: &mut Writer) {
        let tokens = self.tokens();
        let merges: Vec<String> = merges(self.n_vocab).iter().map(|(a, b)| format!("{a} {b}")).collect();
        let types: Vec<i32> =
            tokens.iter().map(|t| if CONTROL.contains(&t.as_str()) { 3 } else { 1 }).collect();
        let id = |text: &str| tokens.iter().position(|t| t == text).map_or(0, |id| id as u32);
        let (bos, eos) = (id(CONTROL[0]), id(EOS));
        let (arch, dim, kv) = (self.arch, self.dim as u32, self.n_kv_heads as u32);
        let (hidden, layers, heads) = (self.hidden_dim as u32, self.n_layers as u32, self.n_heads as u32);
        let (head_dim, context, n_vocab) = (self.head_dim as u32, self.context, self.n_vocab as u32);

        let key = |name: &str| format!("{arch}.{name}");
        let u32 = |v: u32| -> Put { Box::new(move |w, k| drop_ref(w.u32(k, v))) };
        let f32 = |v: f32| -> Put { Box::new(move |w, k| drop_ref(w.f32(k, v))) };
        let str = |v: &'static str| -> Put { Box::new(move |w, k| drop_ref(w.str(k, v))) };
        let defaults: Vec<(String, Put)> = vec![
            ("general.architecture".to_owned(), str(arch)),
            ("general.name".to_owned(), str("Tiny")),
            ("general.file_type".to_owned(), u32(7)),
            (key("block_count"), u32(layers)),
            (key("context_length"), u32(context)),
            (key("embedding_length"), u32(dim)),
            (key("feed_forward_length"), u32(hidden)),
            (key("attention.head_count"), u32(heads)),
            (key("attention.head_count_kv"), u32(kv)),
            (key("attention.key_length"), u32(head_dim)),
            (key("attention.value_length"), u32(head_dim)),
            (key("attention.layer_norm_rms_epsilon"), f32(1e-5)),
            (key("rope.dimension_count"), u32(head_dim)),
            (key("rope.freq_base"), f32(10_000.0)),
            (key("vocab_size"), u32(n_vocab)),
            ("tokenizer.ggml.model".to_owned(), str("gpt2")),
            ("tokenizer.ggml.pre".to_owned(), str("gpt-2")),
            ("tokenizer.ggml.tokens".to_owned(), Box::new(move |w, k| drop_ref(w.strings(k, &tokens)))),
            ("tokenizer.ggml.token_type".to_owned(), Box::new(move |w, k| drop_ref(w.i32s(k, &types)))),
            ("tokenizer.ggml.merges".to_owned(), Box::new(move |w, k| drop_ref(w.strings(k, &merges)))),
            ("tokenizer.ggml.bos_token_id".to_owned(), u32(bos)),
            ("tokenizer.ggml.eos_token_id".to_owned(), u32(eos)),
            ("tokenizer.ggml.add_bos_token".to_owned(), Box::new(|w, k| drop_ref(w.bool(k, false)))),
            ("tokenizer.chat_template".to_owned(), str(CHAT_TEMPLATE)),
        ];
        let changed = |key: &str| self.puts.iter().rev().find(|(k, _)| k == key).map(|(_, put)| put);
        let kept = |key: &str| !self.dropped_keys.iter().any(|k| k == key);
        for (key, put) in defaults.iter().filter(|(key, _)| kept(key)) {
            changed(key).unwrap_or(put)(writer, key);
        }
        let is_new = |key: &str| !defaults.iter().any(|(k, _)| k == key);
        for (i, (key, put)) in self.puts.iter().enumerate() {
            if is_new(key) && !self.puts[i + 1..].iter().any(|(k, _)| k == key) {
                put(writer, key);
            }
        }
    }

    /// The 256 bytes, the merges, and the control tokens last.
    pub fn tokens(&self) -> Vec<String> {
        let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
        tokens.extend(merges(self.n_vocab).iter().map(|(a, b)| format!("{a}{b}")));
        tokens.extend(CONTROL.map(str::to_owned));
        assert_eq!(tokens.len(), self.n_vocab, "there are not as many merges");
        tokens
    }

    /// Random weights of the llama architecture.
    pub fn weights(&self) -> Vec<Plain> {
        let mut rng = Rng(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut out = Vec::new();
        let mut matrix = |name: String, n_in: u64, n_out: u64, scale: f32| {
            let bound = scale * (3.0 / n_in as f32).sqrt();
            let values = (0..n_in * n_out).map(|_| bound * rng.signed()).collect();
            out.push(Plain { name, dims: vec![n_in, n_out], values });
        };
        let (q, kv) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        matrix("token_embd.weight".to_owned(), self.dim, self.n_vocab as u64, 8.0);
        for layer in 0..self.n_layers {
            let mut block =
                |name: &str, n_in, n_out| matrix(format!("blk.{layer}.{name}.weight"), n_in, n_out, 1.5);
            block("attn_q", self.dim, q);
            block("attn_k", self.dim, kv);
            block("attn_v", self.dim, kv);
            block("attn_output", q, self.dim);
            block("ffn_gate", self.dim, self.hidden_dim);
            block("ffn_up", self.dim, self.hidden_dim);
            block("ffn_down", self.hidden_dim, self.dim);
        }
        if !self.tied {
            matrix("output.weight".to_owned(), self.dim, self.n_vocab as u64, 3.0);
        }
        let norms =
            (0..self.n_layers).flat_map(|l| [format!("blk.{l}.attn_norm"), format!("blk.{l}.ffn_norm")]);
        for name in norms.chain(["output_norm".to_owned()]) {
            let values = (0..self.dim).map(|_| 1.0 + 0.1 * rng.signed()).collect();
            out.push(Plain { name: format!("{name}.weight"), dims: vec![self.dim], values });
        }
        out
    }
}

/// The writer's methods return the writer.
fn drop_ref(_: &mut Writer) {}

/// `n_vocab - 259` merges: the common ones, then pairs of letters in alphabetical order.
fn merges(n_vocab: usize) -> Vec<(String, String)> {
    let letters = || ('a'..='z').map(|c| c.to_string());
    let capitals = ('A'..='Z').map(|c| c.to_string());
    let first = letters().chain(["Ġ".to_owned()]).chain(capitals);
    let more = first.flat_map(|a| letters().map(move |b| (a.clone(), b)));
    let mut out: Vec<(String, String)> = MERGES.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect();
    for pair in more {
        if !out.contains(&pair) {
            out.push(pair);
        }
    }
    out.truncate(n_vocab.saturating_sub(256 + CONTROL.len()));
    out
}

/// The character that stands for a byte in byte-level BPE vocabularies: itself if printable, else one from 256 on.
fn byte_char(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap_or('?')
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    /// From -1 to 1.
    fn signed(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Simple encoders, independent of the program's own.
pub mod encode {
    use half::{bf16, f16};
    use twinband::kernel::format::GgmlType;

    use super::{Encoded, Plain};

    pub fn f32(t: &Plain) -> Encoded {
        (GgmlType::F32, t.values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    pub fn f16(t: &Plain) -> Encoded {
        (GgmlType::F16, t.values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect())
    }

    pub fn bf16(t: &Plain) -> Encoded {
        (GgmlType::BF16, t.values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect())
    }

    /// Blocks of 32: f16 scale, 32 codes of 8 bits.
    pub fn q8_0(t: &Plain) -> Encoded {
        let block = |x: &[f32; 32]| {
            let scale = x.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
            let code = |v: &f32| if scale == 0.0 { 0 } else { (v / scale).round() as i8 };
            let mut out = f16::from_f32(scale).to_le_bytes().to_vec();
            out.extend(x.iter().map(|v| code(v) as u8));
            out
        };
        (GgmlType::Q8_0, t.values.as_chunks().0.iter().flat_map(block).collect())
    }

    /// Blocks of 32: f16 scale, codes of 4 bits plus 8; values 0 to 15 in the low halves, 16 to 31 in the high.
    pub fn q4_0(t: &Plain) -> Encoded {
        let block = |x: &[f32; 32]| {
            let scale = x.iter().fold(0f32, |m, &v| if v.abs() > m.abs() { v } else { m }) / -8.0;
            let code = |v: f32| if scale == 0.0 { 8 } else { (v / scale + 8.5).clamp(0.0, 15.0) as u8 };
            let mut out = f16::from_f32(scale).to_le_bytes().to_vec();
            out.extend((0..16).map(|i| code(x[i]) | code(x[i + 16]) << 4));
            out
        };
        (GgmlType::Q4_0, t.values.as_chunks().0.iter().flat_map(block).collect())
    }
}
