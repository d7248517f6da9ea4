//! G2BX files of versions 1 to 3, written from their description in docs/G2BX.md.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use twinband::gguf::{File, Meta};

/// What is put into a file; [`Legacy::of`] takes it from a GGUF file.
pub struct Legacy {
    pub version: u16,
    pub arch: u8,
    pub flags: u8,
    pub ints: [i32; 8],
    pub eps: f32,
    pub theta: f32,
    /// Of version 2 on.
    pub more: [i32; 7],
    pub slots: Vec<Slot>,
    pub tokens: Vec<Vec<u8>>,
    pub merges: Vec<Vec<u8>>,
    pub ids: [i32; 3],
}

#[derive(Clone)]
pub struct Slot {
    pub role: u8,
    pub layer: u16,
    pub ty: u8,
    pub bytes: Vec<u8>,
}

const GLOBAL: [&str; 3] = ["token_embd.weight", "output_norm.weight", "output.weight"];
const OF_LAYER: [&str; 14] = [
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "attn_q_norm.weight",
    "attn_k_norm.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
];

impl Legacy {
    /// The model of a GGUF file.
    pub fn of(file: &File, version: u16) -> Self {
        let meta = file.meta();
        let name = meta.str("general.architecture").ok().flatten().expect("an architecture");
        let arch =
            ["llama", "qwen2", "qwen3"].iter().position(|a| *a == name).expect("one that old files had");
        let int = |key: &str| int(meta, &format!("{name}.{key}"));
        let float = |key: &str| meta.f32(&format!("{name}.{key}")).ok().flatten().expect("a number");
        let strings = |key: &str| -> Vec<Vec<u8>> {
            meta.strings(key).ok().flatten().into_iter().flatten().map(<[u8]>::to_vec).collect()
        };
        let vocab = file.tensor(GLOBAL[0]).map_or(0, |t| t.dims[1] as i32);
        let mut slots: Vec<Slot> = Vec::new();
        for tensor in file.tensors() {
            let (role, layer) = match GLOBAL.iter().position(|name| *name == tensor.name) {
                Some(role) => (role, 0xffff),
                None => {
                    let (layer, part) = tensor.name["blk.".len()..].split_once('.').expect("blk.N.name");
                    let role = OF_LAYER.iter().position(|name| *name == part).expect("a known part") + 3;
                    (role, layer.parse().expect("a number"))
                }
            };
            let ty = match tensor.ty.0 {
                own @ 128.. if version < 3 => own - 128 + 25,
                code => code,
            };
            let bytes = file.data(tensor).expect("tensor data").to_vec();
            slots.push(Slot { role: role as u8, layer, ty: ty as u8, bytes });
        }
        slots.sort_by_key(|slot| (slot.layer.wrapping_add(1), slot.role));
        let tied = file.tensor(GLOBAL[2]).is_none();
        Self {
            version,
            arch: arch as u8,
            flags: u8::from(tied) | u8::from(name == "qwen3") << 1,
            ints: [
                int("embedding_length"),
                int("feed_forward_length"),
                int("block_count"),
                int("attention.head_count"),
                int("attention.head_count_kv"),
                vocab,
                int("context_length"),
                int("attention.key_length"),
            ],
            eps: float("attention.layer_norm_rms_epsilon"),
            theta: float("rope.freq_base"),
            more: [0, 0, 0, 0, 0, 0, int("rope.dimension_count")],
            slots,
            tokens: strings("tokenizer.ggml.tokens"),
            merges: strings("tokenizer.ggml.merges"),
            ids: [
                self::int(meta, "tokenizer.ggml.bos_token_id"),
                self::int(meta, "tokenizer.ggml.eos_token_id"),
                -1,
            ],
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Where the table of slots begins.
    pub fn table_at(&self) -> usize {
        8 + if self.version == 1 { 40 } else { 68 } + 4
    }

    pub fn build(&self) -> Vec<u8> {
        let mut out = b"G2BX".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend([self.arch, self.flags]);
        out.extend(self.ints.iter().flat_map(|v| v.to_le_bytes()));
        out.extend(self.eps.to_le_bytes());
        out.extend(self.theta.to_le_bytes());
        if self.version > 1 {
            out.extend(self.more.iter().flat_map(|v| v.to_le_bytes()));
        }
        out.extend((self.slots.len() as u32).to_le_bytes());
        let mut blob: Vec<u8> = Vec::new();
        for slot in &self.slots {
            blob.resize(blob.len().next_multiple_of(64), 0);
            out.push(slot.role);
            out.extend(slot.layer.to_le_bytes());
            out.push(slot.ty);
            out.extend((slot.bytes.len() as u32).to_le_bytes());
            out.extend((blob.len() as u64).to_le_bytes());
            blob.extend(&slot.bytes);
        }
        blob.resize(blob.len().next_multiple_of(64), 0);
        out.extend(blob);
        if !self.tokens.is_empty() {
            out.extend((self.tokens.len() as u32).to_le_bytes());
            out.extend((self.merges.len() as u32).to_le_bytes());
            out.extend(self.ids.iter().flat_map(|v| v.to_le_bytes()));
            for text in self.tokens.iter().chain(&self.merges) {
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text);
            }
        }
        if self.version >= 3 {
            out.extend(crc32(&out).to_le_bytes());
            out.extend(b"G2BX");
        }
        out
    }
}

fn int(meta: &Meta, key: &str) -> i32 {
    meta.u64(key).ok().flatten().and_then(|v| i32::try_from(v).ok()).unwrap_or(-1)
}

/// CRC-32 bit by bit, as its definition has it.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}
