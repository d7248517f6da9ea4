//! Versions 1 to 3: what an earlier program wrote. Read, never written.
//!
//! They name tensors by role and layer, have no shapes (role and configuration give them), no metadata beyond the numbers
//! of the configuration, and of the tokenizer only tokens and merges. Here they become the metadata and tensors of a GGUF
//! file of the same model. Every field and every sum of two is checked before it is used.

use super::read::field;
use super::{Fault, MAGIC};
use crate::gguf::write::{WriteError, Writer};
use crate::gguf::{self, Container, Cursor, Header, Map, Meta, TensorInfo};
use crate::kernel::format::GgmlType;
use std::sync::Arc;

const SLOT: usize = 16;
const SLOT_LIMIT: u32 = 1 << 20;
/// The layer of what belongs to none.
const GLOBAL: u16 = 0xffff;
/// The checksum and the end mark of version 3.
const TRAILER: usize = 8;
/// Tokens, merges, or bytes of a token.
const TOKENIZER_LIMIT: u32 = 1 << 20;
/// The fixed fields of the tokenizer.
const TOKENIZER_HEAD: u64 = 20;
/// The first version whose codes of our own types are above ggml's.
const OWN_CODES: u16 = 3;

const TIED: u8 = 1 << 0;
/// Bits that a file may have set: the mark of a tied head, that of normalised heads, and one that means nothing.
const FLAGS: u8 = TIED | 1 << 1 | 1 << 2;

/// Reads and checks everything but the tensors' bytes.
pub(super) fn parse(map: &Arc<Map>) -> Result<Header, Fault> {
    let mut cursor = Cursor::new(map);
    cursor.take(MAGIC.len() as u64, "the magic number")?;
    let version = u16::from_le_bytes(cursor.array("the version")?);
    let [arch, flags] = cursor.array("architecture and flags")?;
    let arch = architecture(arch)?;
    if flags & !FLAGS != 0 {
        return Err(field("the flags", 7, flags, format!("of the bits {FLAGS:#05b}")));
    }
    // What follows the blob ends before the trailer.
    let end = match version {
        ..OWN_CODES => map.len(),
        _ => map.len() - trailer(map)?,
    };
    let config = Config::parse(&mut cursor, version)?;
    let slots_at = cursor.at() as u64;
    let n = cursor.u32("the number of slots")?;
    if !(1..=SLOT_LIMIT).contains(&n) {
        return Err(field("the number of slots", slots_at, n, format!("from 1 to {SLOT_LIMIT}")));
    }
    let table_at = cursor.at() as u64;
    let mut table = Cursor::new(cursor.take(u64::from(n) * SLOT as u64, "the table of slots")?);
    let blob = cursor.at() as u64;

    let mut tensors = Vec::new();
    let mut blob_end = blob;
    for index in 0..n as usize {
        let slot = Slot::parse(&mut table, index, table_at)?;
        let end_of_slot = slot.end(blob, end as u64)?;
        blob_end = blob_end.max(end_of_slot);
        tensors.extend(slot.tensor(&config, version, blob)?);
    }
    let has = |name| tensors.iter().any(|t: &TensorInfo| t.name == name);
    if flags & TIED == 0 && !has("output.weight") {
        return Err(Fault::NoOutput);
    }
    let tokenizer_at = blob + (blob_end - blob).next_multiple_of(64);
    let mut writer = Writer::new();
    config.metadata(arch, &mut writer);
    if end as u64 > tokenizer_at.saturating_add(TOKENIZER_HEAD) {
        let mut cursor = Cursor::new(&map[..end]);
        cursor.take(tokenizer_at, "what comes before the tokenizer")?;
        tokenizer(&mut cursor, arch, &mut writer)?;
    }
    let meta = Meta::of(&writer).map_err(|error| match error {
        WriteError::Fault(fault) => Fault::Common(fault),
        // No key is written twice.
        other => field("the metadata", 0, other, "writable".to_owned()),
    })?;
    let container = Container::G2bx;
    Ok(Header { container, version: version.into(), alignment: 4, meta, tensors, data_start: blob })
}

/// Of version 3: how many bytes the checksum is of, and it.
pub(super) fn whole_sum(bytes: &[u8], version: u16) -> Option<(usize, u32)> {
    let end = bytes.len().checked_sub(TRAILER).filter(|_| version >= OWN_CODES)?;
    Some((end, Cursor::new(&bytes[end..]).u32("the checksum").ok()?))
}

/// The length of the trailer, if it is there.
fn trailer(bytes: &[u8]) -> Result<usize, Fault> {
    if bytes.ends_with(MAGIC) && bytes.len() > 2 * TRAILER { Ok(TRAILER) } else { Err(Fault::Trailer) }
}

fn architecture(code: u8) -> Result<&'static str, Fault> {
    match code {
        0 => Ok("llama"),
        1 => Ok("qwen2"),
        2 => Ok("qwen3"),
        3 => Err(Fault::Architecture { code, name: "lfm2" }),
        4 => Err(Fault::Architecture { code, name: "qwen35" }),
        _ => Err(Fault::Architecture { code, name: "?" }),
    }
}

/// The numbers that shapes follow from.
struct Config {
    dim: u32,
    hidden_dim: u32,
    n_layers: u32,
    n_heads: u32,
    n_kv_heads: u32,
    vocab: u32,
    seq_len: u32,
    head_dim: u32,
    eps: f32,
    rope_theta: f32,
    n_rot: u32,
}

impl Config {
    fn parse(cursor: &mut Cursor<'_>, version: u16) -> Result<Self, Fault> {
        fn count(c: &mut Cursor<'_>, what: &'static str, least: i32, most: i32) -> Result<u32, Fault> {
            let at = c.at() as u64;
            let value = i32::from_le_bytes(c.array(what)?);
            let good = u32::try_from(value).ok().filter(|_| (least..=most).contains(&value));
            good.ok_or_else(|| field(what, at, value, format!("from {least} to {most}")))
        }
        fn positive(c: &mut Cursor<'_>, what: &'static str) -> Result<f32, Fault> {
            let at = c.at() as u64;
            let value = f32::from_le_bytes(c.array(what)?);
            let good = Some(value).filter(|v| v.is_finite() && *v > 0.0);
            good.ok_or_else(|| field(what, at, value, "a positive number".to_owned()))
        }
        let c = cursor;
        let mut config = Self {
            dim: count(c, "the model's dimension", 1, 65536)?,
            hidden_dim: count(c, "the hidden dimension", 1, 1 << 20)?,
            n_layers: count(c, "the number of layers", 1, 1024)?,
            n_heads: count(c, "the number of heads", 1, 1024)?,
            n_kv_heads: count(c, "the number of key-value heads", 1, 1024)?,
            vocab: count(c, "the vocabulary", 1, 1 << 22)?,
            seq_len: count(c, "the context", 1, 1 << 20)?,
            head_dim: count(c, "the heads' dimension", 1, 1024)?,
            eps: positive(c, "the epsilon of norms")?,
            rope_theta: positive(c, "the base of the rotation")?,
            n_rot: 0,
        };
        if !config.n_heads.is_multiple_of(config.n_kv_heads) {
            let expected = format!("a divisor of the {} heads", config.n_heads);
            return Err(field("the number of key-value heads", 24, config.n_kv_heads, expected));
        }
        if version >= 2 {
            // Of architectures that we do not run.
            c.take(6 * 4, "the configuration")?;
            config.n_rot = count(c, "the rotated dimensions", 0, config.head_dim as i32)?;
        }
        Ok(config)
    }

    fn metadata(&self, arch: &str, w: &mut Writer) {
        w.str("general.architecture", arch);
        let n_rot = if self.n_rot == 0 { self.head_dim } else { self.n_rot };
        for (name, value) in [
            ("block_count", self.n_layers),
            ("context_length", self.seq_len),
            ("embedding_length", self.dim),
            ("feed_forward_length", self.hidden_dim),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", n_rot),
        ] {
            w.u32(&format!("{arch}.{name}"), value);
        }
        w.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), self.eps);
        w.f32(&format!("{arch}.rope.freq_base"), self.rope_theta);
    }
}

/// An entry of the directory.
struct Slot {
    index: usize,
    at: u64,
    role: u8,
    layer: u16,
    ty: u8,
    bytes: u32,
    /// Counted from the start of the blob.
    offset: u64,
}

impl Slot {
    fn parse(table: &mut Cursor<'_>, index: usize, table_at: u64) -> Result<Self, Fault> {
        let at = table_at + table.at() as u64;
        let what = "a slot";
        let [role] = table.array(what)?;
        let layer = u16::from_le_bytes(table.array(what)?);
        let [ty] = table.array(what)?;
        Ok(Self { index, at, role, layer, ty, bytes: table.u32(what)?, offset: table.u64(what)? })
    }

    fn fault(&self, what: impl Into<String>) -> Fault {
        let Self { index, at, role, layer, .. } = *self;
        Fault::Slot { index, at, role, layer, what: what.into() }
    }

    /// The end of its bytes in the file, which must come before `limit`.
    fn end(&self, blob: u64, limit: u64) -> Result<u64, Fault> {
        if !self.offset.is_multiple_of(4) {
            return Err(self.fault(format!("offset {} is no multiple of 4", self.offset)));
        }
        let end = blob.checked_add(self.offset).and_then(|start| start.checked_add(self.bytes.into()));
        end.filter(|&end| end <= limit).ok_or_else(|| {
            let (offset, bytes) = (self.offset, self.bytes);
            self.fault(format!(
                "truncated: {bytes} bytes at offset {offset} of the data, which end at byte {limit}"
            ))
        })
    }

    /// The tensor, or `None` for a role that was added after the last program of this kind.
    fn tensor(&self, c: &Config, version: u16, blob: u64) -> Result<Option<TensorInfo>, Fault> {
        let (dim, hidden) = (c.dim, c.hidden_dim);
        let (q, kv) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let (name, row, rows) = match self.role {
            0 => ("token_embd.weight", dim, Some(c.vocab)),
            1 => ("output_norm.weight", dim, None),
            2 => ("output.weight", dim, Some(c.vocab)),
            3 => ("attn_norm.weight", dim, None),
            4 => ("attn_q.weight", dim, Some(q)),
            5 => ("attn_k.weight", dim, Some(kv)),
            6 => ("attn_v.weight", dim, Some(kv)),
            7 => ("attn_output.weight", q, Some(dim)),
            8 => ("attn_q_norm.weight", c.head_dim, None),
            9 => ("attn_k_norm.weight", c.head_dim, None),
            10 => ("ffn_norm.weight", dim, None),
            11 => ("ffn_gate.weight", dim, Some(hidden)),
            12 => ("ffn_up.weight", dim, Some(hidden)),
            13 => ("ffn_down.weight", hidden, Some(dim)),
            14 => ("attn_q.bias", q, None),
            15 => ("attn_k.bias", kv, None),
            16 => ("attn_v.bias", kv, None),
            17..30 => return Err(self.fault("no llama or qwen model has such a tensor")),
            30.. => return Ok(None),
        };
        let global = self.role <= 2;
        let name = match (global, self.layer) {
            (true, GLOBAL) => name.to_owned(),
            (false, layer) if u32::from(layer) < c.n_layers => format!("blk.{layer}.{name}"),
            (true, _) => return Err(self.fault(format!("{name} belongs to no layer"))),
            (false, _) => return Err(self.fault(format!("{name} of a model of {} layers", c.n_layers))),
        };
        let ty = self.ty(version).ok_or_else(|| self.fault(format!("type {} is not known", self.ty)))?;
        let (n_dims, rows) = rows.map_or((1, 1), |rows| (2, rows));
        let dims = [row.into(), rows.into(), 1, 1];
        let tensor = TensorInfo::new(&name, dims, n_dims, ty, 0, blob + self.offset)?;
        match tensor.bytes() {
            None => Err(Fault::Type { tensor: name, ty }),
            Some(n) if n > self.bytes.into() => {
                Err(self.fault(format!("{name} of {ty} takes {n} bytes, the slot has {}", self.bytes)))
            }
            Some(_) => Ok(Some(tensor)),
        }
    }

    /// ggml's code of the type, or our own.
    fn ty(&self, version: u16) -> Option<GgmlType> {
        let code = match self.ty {
            // These have become codes of ggml's integers.
            25..=27 if version < OWN_CODES => u32::from(self.ty - 25) + 0x80,
            0x80..=0x82 if version >= OWN_CODES => self.ty.into(),
            0..=3 | 6..=23 | 28..=30 => self.ty.into(),
            _ => return None,
        };
        Some(GgmlType(code))
    }
}

/// Reads the tokenizer into the keys of GGUF. Kinds of tokens, scores and the name of the pre-tokenizer are not there.
fn tokenizer(c: &mut Cursor<'_>, arch: &str, w: &mut Writer) -> Result<(), Fault> {
    let count = |c: &mut Cursor<'_>, what: &'static str| {
        let at = c.at() as u64;
        let n = c.u32(what)?;
        let good = Some(n).filter(|n| *n <= TOKENIZER_LIMIT);
        good.ok_or_else(|| field(what, at, n, format!("at most {TOKENIZER_LIMIT}")))
    };
    let n_tokens = count(c, "the number of tokens")?;
    let n_merges = count(c, "the number of merges")?;
    let mut ids = [0i32; 3];
    for id in &mut ids {
        *id = i32::from_le_bytes(c.array("a special token's id")?);
    }
    let mut texts = |n: u32, what: &'static str| -> Result<Vec<&[u8]>, Fault> {
        // Held against the file before anything is reserved.
        let mut ahead = c.clone();
        ahead.take(u64::from(n) * 4, what)?;
        let mut out = Vec::with_capacity(n as usize);
        for _ in 0..n {
            let len = count(c, what)?;
            out.push(c.take(len.into(), what)?);
        }
        Ok(out)
    };
    let tokens = texts(n_tokens, "a token")?;
    let merges = texts(n_merges, "a merge")?;
    // Vocabularies of SentencePiece have no merges; in their place are scores, which are in the order of the ids.
    let model = if merges.is_empty() { "llama" } else { "gpt2" };
    w.str("tokenizer.ggml.model", model);
    if arch.starts_with("qwen") {
        // All models of these architectures have this one.
        w.str("tokenizer.ggml.pre", "qwen2");
    }
    w.strings("tokenizer.ggml.tokens", &tokens);
    if !merges.is_empty() {
        w.strings("tokenizer.ggml.merges", &merges);
    }
    for (name, id) in ["bos", "eos", "unknown"].into_iter().zip(ids) {
        if id >= 0 {
            w.value(&format!("tokenizer.ggml.{name}_token_id"), gguf::Value::I32(id));
        }
    }
    Ok(())
}
