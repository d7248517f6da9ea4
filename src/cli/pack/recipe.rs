//! Which type each tensor gets.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::gguf::write::file_type;
use crate::gguf::{File, TensorInfo};
use crate::kernel::format::{self, GgmlType};
use crate::model::names::{self, EMBEDDING, HEAD};
use crate::surgery::mix::Mix;
use crate::surgery::quantize;

/// What `--type` names.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// A mixture under its usual name.
    Mix(&'static Mix),
    /// A type of which there is no mixture.
    One(GgmlType),
}

impl Target {
    fn all() -> impl Iterator<Item = (&'static str, Self)> {
        let mixes = Mix::all().map(|mix| (mix.name, Self::Mix(mix)));
        let others = quantize::types().filter_map(|ty| Some((ty.name()?, Self::One(ty))));
        mixes.chain(others.filter(|(name, _)| Mix::all().all(|mix| mix.name != *name)))
    }

    /// Takes the names.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(Self::all().map(|(name, _)| name)).try_map(|name| {
            Self::all()
                .find(|(known, _)| known.eq_ignore_ascii_case(&name))
                .map(|(_, t)| t)
                .ok_or("no such type")
        })
    }

    /// One type in place of a mixture: that of its name, or that of most of its matrices.
    pub fn pure(self) -> Self {
        match self {
            Self::Mix(mix) => {
                Self::One(quantize::types().find(|ty| ty.name() == Some(mix.name)).unwrap_or(mix.base))
            }
            one => one,
        }
    }
}

/// What the user asked for.
pub struct Recipe {
    /// What matrices become.
    pub matrices: Option<Target>,
    /// The type of the head.
    pub head: Option<GgmlType>,
}

/// What a converted file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// What it said before.
    Kept,
    /// This number.
    Number(u32),
    /// Nothing: there is no number for it.
    None,
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
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S => T::IQ4_NL,
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

impl Choice {
    fn keep(tensor: &TensorInfo) -> Self {
        Self { ty: tensor.ty, in_place_of: None }
    }
}

impl Recipe {
    /// Chooses for every tensor of a file. `importance`: whether there is importance data.
    pub fn choices(&self, file: &File, importance: bool) -> Vec<Choice> {
        let Some(Target::Mix(mix)) = self.matrices else {
            return file.tensors().iter().map(|tensor| self.choose(file, tensor)).collect();
        };
        let choices = file.tensors().iter().zip(mix.types(file, self.head, importance));
        let choice = |(tensor, types): (&TensorInfo, Option<[GgmlType; 2]>)| match types {
            Some([wished, ty]) if wished != tensor.ty && format::of(tensor.ty).is_some() => {
                Choice { ty, in_place_of: (ty != wished).then_some(wished) }
            }
            _ => Choice::keep(tensor),
        };
        choices.map(choice).collect()
    }

    /// What the file is to say of itself.
    pub fn file_type(&self) -> FileType {
        match self.matrices {
            None => FileType::Kept,
            Some(Target::Mix(mix)) => FileType::Number(mix.file_type),
            Some(Target::One(ty)) => file_type(ty).map_or(FileType::None, FileType::Number),
        }
    }

    fn choose(&self, file: &File, tensor: &TensorInfo) -> Choice {
        let Some(wished) = self.wish(file, tensor).filter(|&ty| ty != tensor.ty) else {
            return Choice::keep(tensor);
        };
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
        if self.head.is_some() && names::head(file).is_some_and(|head| head.name == name) {
            return self.head;
        }
        let Some(Target::One(wished)) = self.matrices else { return None };
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
