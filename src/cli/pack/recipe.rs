//! Which type each tensor gets.

use crate::gguf::{File, TensorInfo};
use crate::kernel::format::{self, GgmlType};

pub const EMBEDDING: &str = "token_embd.weight";
pub const HEAD: &str = "output.weight";

/// What the user asked for.
pub struct Recipe {
    /// The type of matrices.
    pub matrices: Option<GgmlType>,
    /// The type of the head.
    pub head: Option<GgmlType>,
}

/// Whether a type is one of ours: their codes are above all of ggml's.
pub fn is_own(ty: GgmlType) -> bool {
    ty >= GgmlType::Q4_0S
}

/// The type that rows get which are no whole blocks of 256: blocks of 32, of as many bits or the next that there is.
fn stand_in(wished: GgmlType) -> Option<GgmlType> {
    use GgmlType as T;
    Some(match wished {
        T::Q2_K | T::Q3_K | T::IQ4_XS => T::IQ4_NL,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        own if is_own(own) => T::Q4_0,
        _ => return None,
    })
}

/// The type of one tensor.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice {
    /// What it becomes; often what it is.
    pub ty: GgmlType,
    /// What it should have become, if its rows are no whole blocks of that.
    pub in_place_of: Option<GgmlType>,
}

impl Recipe {
    /// Chooses.
    pub fn choose(&self, file: &File, tensor: &TensorInfo) -> Choice {
        let keep = Choice { ty: tensor.ty, in_place_of: None };
        let Some(wished) = self.wish(file, tensor).filter(|&ty| ty != tensor.ty) else { return keep };
        let row = usize::try_from(tensor.dims[0]).unwrap_or(usize::MAX);
        let fits = |ty: GgmlType| ty.geometry().is_some_and(|g| row.is_multiple_of(g.block));
        if fits(wished) {
            return Choice { ty: wished, in_place_of: None };
        }
        let ty = stand_in(wished).filter(|&ty| fits(ty)).unwrap_or(tensor.ty);
        Choice { ty, in_place_of: Some(wished) }
    }

    fn wish(&self, file: &File, tensor: &TensorInfo) -> Option<GgmlType> {
        let name = tensor.name.as_str();
        let source = format::of(tensor.ty)?;
        if tensor.n_dims != 2 || !name.ends_with(".weight") {
            return None;
        }
        let tied = file.tensor(HEAD).is_none();
        if self.head.is_some() && name == if tied { EMBEDDING } else { HEAD } {
            return self.head;
        }
        let wished = self.matrices?;
        if name != EMBEDDING && name != HEAD {
            return Some(wished);
        }
        // Every token goes through these twice or once; errors here cost most.
        let bits = |ty: GgmlType| ty.geometry().map_or(0.0, |g| g.bytes as f64 * 8.0 / g.block as f64);
        match source.act() {
            None if bits(wished) < bits(GgmlType::Q8_0) => Some(GgmlType::Q8_0),
            Some(_) if bits(wished) < bits(tensor.ty) => None,
            _ => Some(wished),
        }
    }
}
