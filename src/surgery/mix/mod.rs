//! Mixtures of types under the names that llama.cpp's `llama-quantize` gives them, such as Q4_K_M: which type each tensor of
//! a model gets. The rules are those of its version of autumn 2026, exceptions of single architectures left out.
//!
//! Most matrices get the type that the mixture is named for. Those whose errors cost most get more bits: the head, values,
//! and the last matrix of the feed-forward, often only in the first and last layers and every third between. Rows that
//! are no whole blocks make another type necessary.

use crate::gguf::{File, TensorInfo};
use crate::kernel::format::GgmlType;

mod rules;

/// A mixture.
#[derive(Debug)]
pub struct Mix {
    /// Its name.
    pub name: &'static str,
    /// What `general.file_type` says of such files.
    pub file_type: u32,
    /// The type of most matrices.
    pub base: GgmlType,
    kind: Kind,
}

/// What the rules tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Numbers, not blocks: every matrix gets the type.
    Whole,
    /// Nothing but the head differs.
    Even,
    /// Q4_0 and Q5_0, which have a type with a minimum beside them.
    Beside(GgmlType),
    Ternary,
    Q2K,
    Q2KS,
    Q3KS,
    Q3KM,
    Q3KL,
    Q4KS,
    /// Q4_K_M and Q5_K_M.
    Medium,
    /// IQ1_S, IQ1_M.
    IQ1,
    /// IQ2_XXS, IQ2_XS.
    IQ2Low,
    /// IQ2_S, IQ2_M.
    IQ2High,
    IQ3XXS,
    IQ3XS,
    IQ3S,
    IQ3M,
    IQ4,
}

use GgmlType as T;

const fn mix(name: &'static str, file_type: u32, base: GgmlType, kind: Kind) -> Mix {
    Mix { name, file_type, base, kind }
}

/// All that there are.
static ALL: &[Mix] = &[
    mix("F32", 0, T::F32, Kind::Whole),
    mix("F16", 1, T::F16, Kind::Whole),
    mix("BF16", 32, T::BF16, Kind::Whole),
    mix("Q4_0", 2, T::Q4_0, Kind::Beside(T::Q4_1)),
    mix("Q4_1", 3, T::Q4_1, Kind::Even),
    mix("Q5_0", 8, T::Q5_0, Kind::Beside(T::Q5_1)),
    mix("Q5_1", 9, T::Q5_1, Kind::Even),
    mix("Q8_0", 7, T::Q8_0, Kind::Even),
    mix("Q2_K", 10, T::Q2_K, Kind::Q2K),
    mix("Q2_K_S", 21, T::Q2_K, Kind::Q2KS),
    mix("Q3_K", 12, T::Q3_K, Kind::Q3KM),
    mix("Q3_K_S", 11, T::Q3_K, Kind::Q3KS),
    mix("Q3_K_M", 12, T::Q3_K, Kind::Q3KM),
    mix("Q3_K_L", 13, T::Q3_K, Kind::Q3KL),
    mix("Q4_K", 15, T::Q4_K, Kind::Medium),
    mix("Q4_K_S", 14, T::Q4_K, Kind::Q4KS),
    mix("Q4_K_M", 15, T::Q4_K, Kind::Medium),
    mix("Q5_K", 17, T::Q5_K, Kind::Medium),
    mix("Q5_K_S", 16, T::Q5_K, Kind::Even),
    mix("Q5_K_M", 17, T::Q5_K, Kind::Medium),
    mix("Q6_K", 18, T::Q6_K, Kind::Even),
    mix("IQ1_S", 24, T::IQ1_S, Kind::IQ1),
    mix("IQ1_M", 31, T::IQ1_M, Kind::IQ1),
    mix("IQ2_XXS", 19, T::IQ2_XXS, Kind::IQ2Low),
    mix("IQ2_XS", 20, T::IQ2_XS, Kind::IQ2Low),
    mix("IQ2_S", 28, T::IQ2_XS, Kind::IQ2High),
    mix("IQ2_M", 29, T::IQ2_S, Kind::IQ2High),
    mix("IQ3_XXS", 23, T::IQ3_XXS, Kind::IQ3XXS),
    mix("IQ3_XS", 22, T::IQ3_S, Kind::IQ3XS),
    mix("IQ3_S", 26, T::IQ3_S, Kind::IQ3S),
    mix("IQ3_M", 27, T::IQ3_S, Kind::IQ3M),
    mix("IQ4_NL", 25, T::IQ4_NL, Kind::IQ4),
    mix("IQ4_XS", 30, T::IQ4_XS, Kind::IQ4),
    mix("TQ1_0", 36, T::TQ1_0, Kind::Ternary),
    mix("TQ2_0", 37, T::TQ2_0, Kind::Ternary),
];

impl Mix {
    /// All mixtures.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        ALL.iter()
    }

    /// What each tensor of a file becomes, in the file's order: nothing if it stays what it is, else what it should become
    /// and, where its rows are no whole blocks of that, what it becomes instead.
    ///
    /// `head` is the type of the head, against the rules; `importance` whether there is importance data.
    pub fn types(&self, file: &File, head: Option<GgmlType>, importance: bool) -> Vec<Option<[GgmlType; 2]>> {
        let model = rules::Model::new(file, importance);
        // Layers are counted by the tensors that there are, in the order of their numbers.
        let mut order: Vec<usize> = (0..file.tensors().len()).collect();
        order.sort_by_key(|&at| {
            let name = file.tensors()[at].name.as_str();
            (rules::layer(name), name)
        });
        let mut found = vec![None; order.len()];
        let mut seen = rules::Seen::default();
        for at in order {
            let tensor = &file.tensors()[at];
            if converts(tensor) {
                let wished = self.wish(&model, tensor, head, &mut seen);
                found[at] = Some([wished, fitting(wished, tensor.dims[0])]);
            }
        }
        found
    }
}

/// Whether a tensor is converted at all: matrices are, but for small ones on which much depends.
fn converts(tensor: &TensorInfo) -> bool {
    const SPARED: [&str; 8] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "attn_rel_b.weight",
    ];
    let name = tensor.name.as_str();
    tensor.dims[1..].iter().any(|&n| n > 1)
        && name.ends_with("weight")
        && !["position_embd.weight", "token_types.weight"].contains(&name)
        && !SPARED.iter().any(|part| name.contains(part))
}

/// The type, or one in whose place it is if rows of so many elements are no whole blocks of it.
fn fitting(ty: GgmlType, columns: u64) -> GgmlType {
    let fits = |ty: GgmlType| ty.geometry().is_some_and(|g| columns.is_multiple_of(g.block as u64));
    if fits(ty) {
        return ty;
    }
    let other = match ty {
        T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        _ => T::IQ4_NL,
    };
    if fits(other) { other } else { T::F16 }
}

#[cfg(test)]
mod tests;
