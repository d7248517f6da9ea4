//! `twinband info`: what is in a model file, whether or not we can run it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::{Ui, report};
use crate::g2bx;
use crate::gguf::{Array, Container, Error, Fault, File, Meta, SplitFault, TensorInfo, Value, printable};
use crate::kernel::format::{self, GgmlType, Layout};
use crate::model::{Model, arch, names};
use crate::tokenizer::{self, Tokenizer};

/// Show what is in a model file: architecture, dimensions, tensor types, memory of the KV cache, what can run
#[derive(Debug, clap::Args)]
#[command(after_help = "Works on files that cannot be run and on the beginning of a download.\n\
                        Example: twinband info --tensors model.gguf")]
pub struct Args {
    /// The model: a GGUF file, of a split set any part, or a G2BX file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// List every tensor: name, type, dimensions, bytes
    #[arg(long)]
    tensors: bool,

    /// List all metadata; with --json arrays are given whole
    #[arg(long)]
    metadata: bool,

    /// Print everything as one JSON object; long arrays of the metadata are shortened without --metadata
    #[arg(long)]
    json: bool,
}

/// Tokens for which the size of the KV cache is stated.
const KV_TOKENS: u64 = 1024;
/// Elements of an array that are shown when it is shortened.
const SHOWN: usize = 8;
/// Bytes of a string that are shown when it is shortened.
const SHOWN_BYTES: usize = 200;

/// Opens the header of the file and describes it on standard output.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let (file, incomplete) = open(&args.file)?;
    let summary = Summary::of(&file, incomplete);
    if let Some(what) = &summary.incomplete {
        ui.warn(what);
    }
    let mut out = io::stdout().lock();
    if args.json {
        let mut json = serde_json::to_value(&summary)?;
        if let Json::Object(object) = &mut json {
            object.insert("tensors".to_owned(), file.tensors().iter().map(tensor_json).collect());
            object.insert("metadata".to_owned(), metadata_json(file.meta(), args.metadata));
        }
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(());
    }
    write!(out, "{}", summary.text())?;
    if args.metadata {
        write!(out, "\n{}", metadata_text(file.meta()))?;
    }
    if args.tensors {
        write!(out, "\n{}", tensors_text(file.tensors()))?;
    }
    Ok(())
}

/// The file, and if it is not whole what is missing.
fn open(path: &std::path::Path) -> Result<(File, Option<String>), g2bx::Error> {
    match g2bx::open(path) {
        Ok(file) => Ok((file, None)),
        Err(
            error @ (g2bx::Error::Fault { fault: g2bx::Fault::Truncated { .. }, .. }
            | g2bx::Error::Gguf(
                Error::Fault { fault: Fault::Truncated { .. }, .. }
                | Error::Split { fault: SplitFault::Missing { .. }, .. },
            )),
        ) => Ok((g2bx::open_header(path)?, Some(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// What `--json` prints before tensors and metadata.
#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    parts: Vec<String>,
    /// GGUF or G2BX.
    container: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    gguf_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    g2bx_version: Option<u32>,
    bytes: u64,
    /// Larger than `bytes` if the file is cut short.
    expected_bytes: u64,
    /// What is missing of a file that is not whole.
    incomplete: Option<String>,
    architecture: Option<String>,
    name: Option<String>,
    parameters: u64,
    bits_per_weight: Option<f64>,
    dimensions: Dimensions,
    types: Vec<TypeUse>,
    tied_head: bool,
    kv_bytes_per_1k_tokens: Option<u64>,
    tokenizer: TokenizerInfo,
    can_run: bool,
    obstacles: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Dimensions {
    layers: Option<u64>,
    dim: Option<u64>,
    hidden_dim: Option<u64>,
    heads: Option<u64>,
    kv_heads: Option<u64>,
    head_dim: Option<u64>,
    experts: Option<u64>,
    experts_used: Option<u64>,
    sliding_window: Option<u64>,
    vocab: Option<u64>,
    context: Option<u64>,
}

#[derive(Debug, Serialize)]
struct TypeUse {
    #[serde(rename = "type")]
    name: String,
    code: u32,
    tensors: u64,
    /// Absent for types of unknown layout.
    bytes: Option<u64>,
    can_run: bool,
}

#[derive(Debug, Serialize)]
struct TokenizerInfo {
    model: Option<String>,
    pre: Option<String>,
    tokens: Option<u64>,
    chat_template: bool,
}

impl Summary {
    fn of(file: &File, incomplete: Option<String>) -> Self {
        let meta = file.meta();
        let text = |key: &str| text_of(meta, key);
        let architecture = text("general.architecture");
        let types = types(file.tensors());
        let obstacles = obstacles(file, &types, incomplete.is_some());
        let parameters = file.tensors().iter().fold(0, |sum: u64, t| sum.saturating_add(t.elements()));
        let weight_bytes: Option<u64> = types.iter().map(|t| t.bytes).sum();
        let bits = |bytes| (bytes as f64 * 8.0 / parameters as f64 * 100.0).round() / 100.0;
        Self {
            file: file.path().display().to_string(),
            parts: file.parts().map(|p| p.display().to_string()).collect(),
            container: file.container().name(),
            gguf_version: (file.container() == Container::Gguf).then(|| file.version()),
            g2bx_version: (file.container() == Container::G2bx).then(|| file.version()),
            bytes: file.size(),
            expected_bytes: file.expected_size(),
            incomplete,
            name: text("general.name"),
            parameters,
            bits_per_weight: weight_bytes.filter(|_| parameters > 0).map(bits),
            dimensions: Dimensions::of(file, architecture.as_deref()),
            types,
            tied_head: names::head(file).is_some_and(|head| head.name == names::EMBEDDING),
            kv_bytes_per_1k_tokens: architecture.as_deref().and_then(|arch| kv_bytes(meta, arch)),
            tokenizer: TokenizerInfo {
                model: text("tokenizer.ggml.model"),
                pre: text("tokenizer.ggml.pre"),
                tokens: array_len(meta, "tokenizer.ggml.tokens"),
                chat_template: meta.get("tokenizer.chat_template").is_some(),
            },
            architecture,
            can_run: obstacles.is_empty(),
            obstacles,
        }
    }

    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{label:<14}{value}");
        };
        let shown = |text: &Option<String>| text.as_ref().map_or("?".to_owned(), |t| printable(t.as_bytes()));
        let parts =
            if self.parts.len() > 1 { format!(" in {} parts", self.parts.len()) } else { String::new() };
        line(
            "file",
            format!(
                "{} ({} version {}, {}{parts})",
                self.file,
                self.container,
                self.gguf_version.or(self.g2bx_version).unwrap_or_default(),
                report::bytes(self.bytes)
            ),
        );
        if self.expected_bytes > self.bytes {
            let percent = self.bytes as f64 * 100.0 / self.expected_bytes as f64;
            line("incomplete", format!("{percent:.1} % of {} are there", report::bytes(self.expected_bytes)));
        }
        line("name", shown(&self.name));
        line("architecture", shown(&self.architecture));
        let bits = self.bits_per_weight.map_or(String::new(), |bits| format!(", {bits} bits each"));
        line("parameters", format!("{}{bits}", count(self.parameters)));
        line("dimensions", self.dimensions.text());
        let tokenizer = &self.tokenizer;
        let pre = tokenizer.pre.as_ref().map_or(String::new(), |p| format!(" ({})", printable(p.as_bytes())));
        let tokens = tokenizer.tokens.map_or(String::new(), |n| format!(", {n} tokens"));
        let template = if tokenizer.chat_template { "a chat template" } else { "no chat template" };
        line("tokenizer", format!("{}{pre}{tokens}, {template}", shown(&tokenizer.model)));
        let kv = self.kv_bytes_per_1k_tokens.map_or("size unknown".to_owned(), |n| {
            format!("{} per {KV_TOKENS} tokens of context (f16)", report::bytes(n))
        });
        line("KV cache", kv);
        if self.tied_head {
            line("head", "tied: token_embd.weight serves as output.weight".to_owned());
        }
        for (i, ty) in self.types.iter().enumerate() {
            let bytes = ty.bytes.map_or("size unknown".to_owned(), report::bytes);
            let note = if ty.can_run { "" } else { "  cannot run" };
            let label = if i == 0 { "types" } else { "" };
            line(label, format!("{:<10}{:>5} tensors {bytes:>12}{note}", ty.name, ty.tensors));
        }
        line(
            "can run",
            if self.can_run { "yes".to_owned() } else { format!("no: {}", self.obstacles.join("; ")) },
        );
        out
    }
}

impl Dimensions {
    fn of(file: &File, architecture: Option<&str>) -> Self {
        let meta = file.meta();
        // A value of another type or sign is shown by --metadata; here it is as good as absent.
        let get = |name: &str| meta.u64_at(&format!("{}.{name}", architecture?), 0).ok().flatten();
        let (dim, heads) = (get("embedding_length"), get("attention.head_count"));
        let rows = |name: &str| file.tensor(name).map(|t| t.rows());
        Self {
            layers: get("block_count"),
            dim,
            hidden_dim: get("feed_forward_length"),
            heads,
            kv_heads: get("attention.head_count_kv").or(heads),
            head_dim: get("attention.key_length").or_else(|| dim?.checked_div(heads?)),
            experts: get("expert_count").filter(|&n| n > 0),
            experts_used: get("expert_used_count").filter(|&n| n > 0),
            sliding_window: get("attention.sliding_window").filter(|&n| n > 0),
            vocab: rows(names::EMBEDDING).or(array_len(meta, "tokenizer.ggml.tokens")),
            context: get("context_length"),
        }
    }

    fn text(&self) -> String {
        let fields = [
            ("layers", self.layers),
            ("dim", self.dim),
            ("hidden", self.hidden_dim),
            ("heads", self.heads),
            ("kv heads", self.kv_heads),
            ("head dim", self.head_dim),
            ("experts", self.experts),
            ("experts used", self.experts_used),
            ("sliding window", self.sliding_window),
            ("vocabulary", self.vocab),
            ("context", self.context),
        ];
        let known = fields.iter().filter_map(|(name, value)| value.map(|v| format!("{name} {v}")));
        known.collect::<Vec<_>>().join(", ")
    }
}

/// How many tensors and bytes there are of each type, in the order of the codes.
fn types(tensors: &[TensorInfo]) -> Vec<TypeUse> {
    let mut by_code: BTreeMap<u32, (u64, Option<u64>)> = BTreeMap::new();
    for tensor in tensors {
        let (n, bytes) = by_code.entry(tensor.ty.0).or_insert((0, Some(0)));
        *n += 1;
        *bytes = bytes.and_then(|sum| sum.checked_add(tensor.bytes()?));
    }
    let usage = |(code, (tensors, bytes))| {
        let ty = GgmlType(code);
        TypeUse { name: ty.to_string(), code, tensors, bytes, can_run: format::of(ty).is_some() }
    };
    by_code.into_iter().map(usage).collect()
}

/// Why the model cannot be run; empty if it can.
fn obstacles(file: &File, types: &[TypeUse], incomplete: bool) -> Vec<String> {
    let mut out = Vec::new();
    if incomplete {
        out.push("the file is not complete".to_owned());
    }
    if file.tensors().is_empty() {
        out.push("there are no tensors".to_owned());
    }
    for usage in types.iter().filter(|usage| !usage.can_run) {
        let first = file.tensors().iter().find(|t| t.ty.0 == usage.code);
        let name = first.map_or(String::new(), |t| printable(t.name.as_bytes()));
        out.push(format!("{} tensors of type {}, the first {name}", usage.tensors, usage.name));
    }
    // The checks of tensor shapes need the data to be there, and would only repeat what was said.
    let model = if out.is_empty() { Model::load(file).map(drop) } else { arch::config(file).map(drop) };
    out.extend(model.err().map(|error| printable(error.to_string().as_bytes())));
    let tokenizer = Tokenizer::from_gguf(file.meta(), &tokenizer::Options::default());
    out.extend(tokenizer.err().map(|error| printable(error.to_string().as_bytes())));
    out
}

/// Bytes of keys and values of [`KV_TOKENS`] tokens in f16; `None` if the metadata does not tell.
fn kv_bytes(meta: &Meta, architecture: &str) -> Option<u64> {
    let key = |name: &str| format!("{architecture}.{name}");
    // Compressed and recurrent states are of other sizes.
    let other = [key("attention.kv_lora_rank"), key("ssm.state_size"), key("wkv.head_size")];
    if other.iter().any(|key| meta.get(key).is_some()) {
        return None;
    }
    let get = |name: &str, layer| meta.u64_at(&key(name), usize::try_from(layer).ok()?).ok()?;
    let layers = get("block_count", 0)?;
    let dim = get("embedding_length", 0)?;
    let mut per_token = 0u64;
    for layer in 0..layers.min(100_000) {
        let heads = get("attention.head_count", layer)?;
        let kv_heads = get("attention.head_count_kv", layer).unwrap_or(heads);
        let derived = dim.checked_div(heads);
        let key_dim = get("attention.key_length", layer).or(derived)?;
        let value_dim = get("attention.value_length", layer).or(derived)?;
        let elements = kv_heads.checked_mul(key_dim.checked_add(value_dim)?)?;
        per_token = per_token.checked_add(elements.checked_mul(2)?)?;
    }
    per_token.checked_mul(KV_TOKENS)
}

fn text_of(meta: &Meta, key: &str) -> Option<String> {
    if let Some(Value::Str(text)) = meta.get(key) {
        Some(String::from_utf8_lossy(text).into_owned())
    } else {
        None
    }
}

fn array_len(meta: &Meta, key: &str) -> Option<u64> {
    if let Some(Value::Array(array)) = meta.get(key) { Some(array.len() as u64) } else { None }
}

fn tensor_json(t: &TensorInfo) -> Json {
    json!({
        "name": t.name,
        "type": t.ty.to_string(),
        "code": t.ty.0,
        "dims": t.dims[..t.n_dims],
        "layout": layout(t),
        "bytes": t.bytes(),
        "part": t.part(),
        "offset": t.offset(),
    })
}

fn layout(t: &TensorInfo) -> &'static str {
    match t.layout {
        Layout::Rows => "rows",
        Layout::Rows8 => "rows8",
    }
}

fn tensors_text(tensors: &[TensorInfo]) -> String {
    let names: Vec<String> = tensors.iter().map(|t| printable(t.name.as_bytes())).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, t) in names.iter().zip(tensors) {
        let dims: Vec<String> = t.dims[..t.n_dims].iter().map(u64::to_string).collect();
        let bytes = t.bytes().map_or("?".to_owned(), |n| n.to_string());
        let interleaved = if t.layout == Layout::Rows { "" } else { "  interleaved" };
        let _ = writeln!(
            out,
            "{name:<width$}  {:<8} {bytes:>12} B  {}{interleaved}",
            t.ty.to_string(),
            dims.join(" x ")
        );
    }
    out
}

fn metadata_json(meta: &Meta, whole: bool) -> Json {
    let value = |value: Value<'_>| match value {
        Value::Array(array) if !whole && array.len() > SHOWN => json!({
            "array_of": array.ty().name(),
            "length": array.len(),
            "first": array.iter().take(SHOWN).map(scalar_json).collect::<Json>(),
        }),
        Value::Array(array) => array.iter().map(scalar_json).collect(),
        scalar => scalar_json(scalar),
    };
    Json::Object(meta.iter().map(|(key, v)| (key.to_owned(), value(v))).collect::<Map<_, _>>())
}

/// JSON has no NaN and no infinities: they become strings.
fn scalar_json(value: Value<'_>) -> Json {
    let float = |v: f64, text: String| if v.is_finite() { json!(v) } else { json!(text) };
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        // The shortest decimal that reads back as the same f32.
        Value::F32(v) => float(v.to_string().parse().unwrap_or_else(|_| v.into()), v.to_string()),
        Value::F64(v) => float(v, v.to_string()),
        Value::Bool(v) => json!(v),
        Value::Str(s) => json!(String::from_utf8_lossy(s)),
        // Arrays of arrays do not open.
        Value::Array(_) => Json::Null,
    }
}

fn metadata_text(meta: &Meta) -> String {
    let mut out = String::new();
    for (key, value) in meta.iter() {
        let shown = match value {
            Value::Array(array) => array_text(array),
            scalar => scalar_text(scalar),
        };
        let _ = writeln!(out, "{} = {shown}", printable(key.as_bytes()));
    }
    out
}

fn array_text(array: Array<'_>) -> String {
    let first: Vec<String> = array.iter().take(SHOWN).map(scalar_text).collect();
    let more = if array.len() > SHOWN { ", ..." } else { "" };
    format!("{} x {}: [{}{more}]", array.len(), array.ty().name(), first.join(", "))
}

fn scalar_text(value: Value<'_>) -> String {
    match value {
        Value::Str(s) if s.len() > SHOWN_BYTES => {
            // Not in the middle of a character.
            let cut = (0..=SHOWN_BYTES).rev().find(|&i| s[i] & 0xc0 != 0x80).unwrap_or(SHOWN_BYTES);
            format!("\"{}...\" ({} bytes)", printable(&s[..cut]), s.len())
        }
        Value::Str(s) => format!("\"{}\"", printable(s)),
        Value::F32(v) => format!("{v:?}"),
        Value::F64(v) => format!("{v:?}"),
        Value::Bool(v) => v.to_string(),
        other => other.integer().map_or(String::new(), |v| v.to_string()),
    }
}

/// A number of parameters for people.
fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1} thousand", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} million", n as f64 / 1e6),
        _ => format!("{:.2} billion", n as f64 / 1e9),
    }
}
