//! Which tensors get more bits.

use super::{Kind, Mix, T};
use crate::gguf::{File, TensorInfo};
use crate::kernel::format::GgmlType;
use crate::model::names::{EMBEDDING, HEAD, is_tied};

const EMBEDDINGS: [&str; 2] = [EMBEDDING, "per_layer_token_embd.weight"];

/// What a tensor is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Embedding,
    Head,
    /// Values, alone or with queries and keys.
    Values,
    AttentionOutput,
    Keys,
    Queries,
    Up,
    Gate,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Self {
        const PARTS: [(&str, Role); 9] = [
            ("attn_qkv.weight", Role::Values),
            ("attn_kv_b.weight", Role::Values),
            ("attn_v.weight", Role::Values),
            ("attn_k.weight", Role::Keys),
            ("attn_q.weight", Role::Queries),
            ("attn_output.weight", Role::AttentionOutput),
            ("ffn_up", Role::Up),
            ("ffn_gate", Role::Gate),
            ("ffn_down", Role::Down),
        ];
        if name == HEAD {
            return Self::Head;
        }
        if EMBEDDINGS.contains(&name) {
            return Self::Embedding;
        }
        PARTS.iter().find(|(part, _)| name.contains(part)).map_or(Self::Other, |&(_, role)| role)
    }
}

/// The number of a layer, or -1 for a tensor that is of none.
pub(super) fn layer(name: &str) -> i64 {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    number.unwrap_or(-1)
}

/// What the rules want to know of a model.
pub(super) struct Model {
    layers: i64,
    experts: u64,
    /// Query heads that share a key head.
    shared: u64,
    /// Its values are so few that more bits for them cost little.
    seventy: bool,
    /// The embedding is the head too.
    tied: bool,
    /// Tensors with values.
    values: i64,
    importance: bool,
}

impl Model {
    /// Of a file; what it does not say is 0.
    pub fn new(file: &File, importance: bool) -> Self {
        let meta = file.meta();
        let arch = meta.str("general.architecture").ok().flatten().unwrap_or_default();
        let get = |key: &str| meta.u64_at(&format!("{arch}.{key}"), 0).ok().flatten();
        let layers = get("block_count").unwrap_or(0);
        let heads = get("attention.head_count").unwrap_or(0);
        let kv_heads = get("attention.head_count_kv").unwrap_or(heads);
        let seventy = layers == 80 && (arch == "qwen2" || arch == "llama" && heads != kv_heads);
        Self {
            layers: i64::try_from(layers).unwrap_or(0),
            experts: get("expert_count").unwrap_or(0),
            shared: heads.checked_div(kv_heads).unwrap_or(0),
            seventy,
            tied: is_tied(file),
            values: file.tensors().iter().filter(|t| Role::of(&t.name) == Role::Values).count() as i64,
            importance,
        }
    }
}

/// How many tensors of a role there were before.
#[derive(Default)]
pub(super) struct Seen {
    values: i64,
    up: i64,
    gate: i64,
    down: i64,
}

/// Whether a layer is among the first or the last eighth, or every third between.
fn costly(layer: i64, layers: i64) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

/// The place of a tensor among those of its role, counting it.
fn count(seen: &mut i64) -> i64 {
    *seen += 1;
    *seen - 1
}

impl Mix {
    /// The type that the rules give a tensor, whatever its rows.
    pub(super) fn wish(
        &self,
        model: &Model,
        tensor: &TensorInfo,
        head: Option<GgmlType>,
        seen: &mut Seen,
    ) -> GgmlType {
        let role = Role::of(&tensor.name);
        let is_head = role == Role::Head || model.tied && role == Role::Embedding;
        match head {
            Some(head) if is_head => return head,
            _ if self.kind == Kind::Whole => return self.base,
            _ if is_head => return self.head(tensor),
            _ => {}
        }
        // Tensors of experts may stand in any order.
        let of_name = (model.experts > 1).then(|| layer(&tensor.name));
        let small = matches!(self.kind, Kind::IQ1 | Kind::IQ2Low | Kind::IQ2High);
        match role {
            Role::Embedding => self.embedding(),
            Role::Values if small => self.values_of_small(model),
            Role::Values => self.values(model, count(&mut seen.values)),
            Role::Keys if model.experts == 8 => {
                if small {
                    T::Q4_K
                } else {
                    T::Q8_0
                }
            }
            Role::Keys | Role::Queries => match self.kind {
                Kind::IQ3XS => T::IQ3_XXS,
                Kind::IQ3XXS => T::IQ2_S,
                _ => self.base,
            },
            Role::AttentionOutput => self.attention_output(model),
            Role::Up | Role::Gate => {
                let seen = if role == Role::Up { &mut seen.up } else { &mut seen.gate };
                let at = of_name.unwrap_or(count(seen));
                let between = at >= model.layers / 8 && at < 7 * model.layers / 8;
                if self.kind == Kind::IQ3XS && between { T::IQ3_XXS } else { self.base }
            }
            Role::Down => {
                let at = count(&mut seen.down);
                self.down(model, if small { at } else { of_name.unwrap_or(at) })
            }
            Role::Head | Role::Other => self.base,
        }
    }

    fn head(&self, tensor: &TensorInfo) -> GgmlType {
        let block = self.base.geometry().map_or(1, |g| g.block as u64);
        match self.kind {
            _ if self.base == T::Q8_0 || !tensor.dims[0].is_multiple_of(block) => T::Q8_0,
            Kind::IQ1 | Kind::IQ2Low | Kind::IQ2High | Kind::IQ3XXS => T::Q5_K,
            _ => T::Q6_K,
        }
    }

    fn embedding(&self) -> GgmlType {
        match self.kind {
            Kind::Ternary => T::Q4_K,
            Kind::IQ1 | Kind::IQ2Low => T::Q2_K,
            Kind::IQ2High | Kind::IQ3XXS => T::IQ3_S,
            _ => self.base,
        }
    }

    fn values_of_small(&self, model: &Model) -> GgmlType {
        match self.kind {
            _ if model.shared >= 4 || model.experts >= 4 => T::Q4_K,
            Kind::IQ2High => T::IQ3_S,
            _ => T::Q2_K,
        }
    }

    fn values(&self, model: &Model, at: i64) -> GgmlType {
        let many = model.shared >= 4;
        let ty = match self.kind {
            Kind::Q2K if !many => T::Q3_K,
            Kind::Q2K | Kind::Q2KS | Kind::IQ3XXS | Kind::IQ3XS | Kind::IQ3S if many => T::Q4_K,
            Kind::IQ3XXS if !model.importance => T::IQ3_S,
            Kind::IQ3M => T::Q4_K,
            Kind::Q3KM if at >= 2 => T::Q4_K,
            Kind::Q3KM | Kind::Q3KL => T::Q5_K,
            Kind::IQ4 if many => T::Q5_K,
            Kind::Medium if costly(at, model.values) => T::Q6_K,
            Kind::Q4KS if at < 4 => T::Q5_K,
            _ => self.base,
        };
        match ty {
            _ if model.experts == 8 => T::Q8_0,
            T::Q3_K | T::Q4_K if model.seventy => T::Q5_K,
            ty => ty,
        }
    }

    fn down(&self, model: &Model, at: i64) -> GgmlType {
        let first = at < model.layers / 8;
        match self.kind {
            Kind::Q2K => T::Q3_K,
            Kind::Q2KS if first => T::Q4_K,
            Kind::IQ1 | Kind::IQ2Low if first => T::Q2_K,
            Kind::IQ2High if first => T::IQ3_S,
            Kind::IQ3XXS if !model.importance => {
                if first {
                    T::Q4_K
                } else {
                    T::Q3_K
                }
            }
            Kind::IQ3M if first || model.experts == 8 && costly(at, model.layers) => T::Q4_K,
            Kind::Q3KM if at < model.layers / 16 => T::Q5_K,
            Kind::Q3KM => T::Q4_K,
            Kind::Q3KL => T::Q5_K,
            Kind::Medium if costly(at, model.layers) => T::Q6_K,
            Kind::Q4KS if first => T::Q5_K,
            Kind::IQ4 if first && !model.importance => T::Q5_K,
            Kind::Beside(with_minimum) if first && model.importance => with_minimum,
            _ => self.base,
        }
    }

    fn attention_output(&self, model: &Model) -> GgmlType {
        let eight = model.experts == 8;
        match self.kind {
            Kind::Whole | Kind::Even | Kind::Beside(_) | Kind::Ternary | Kind::Q2KS => self.base,
            Kind::Medium if self.base == T::Q5_K => self.base,
            Kind::Q3KL => {
                if eight {
                    self.base
                } else {
                    T::Q5_K
                }
            }
            _ if eight => T::Q5_K,
            Kind::Q2K => T::Q3_K,
            Kind::Q3KM | Kind::IQ3M => T::Q4_K,
            Kind::IQ3XXS | Kind::IQ2High => T::IQ3_S,
            Kind::IQ1 => T::IQ2_XXS,
            _ => self.base,
        }
    }
}
