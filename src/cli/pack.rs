//! `twinband pack`: a model in our own container, its weights in the order in which they are read.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use self::copy::Copy;
use self::recipe::{Choice, Recipe, Target};
pub use self::recipe::{FileType, is_own};
use super::options::types;
use super::{Ui, Usage, report};
use crate::g2bx;
use crate::gguf::part_file::PartFile;
use crate::gguf::write::{FILE_TYPE, Writer};
use crate::gguf::{File, TensorInfo, Value, printable};
use crate::kernel::format::{self, GgmlType, Layout};
use crate::model::names::{EMBEDDING, HEAD};
use crate::surgery::importance::Importance;
use crate::surgery::quantize;

pub mod copy;
mod recipe;
mod weigh;

/// Pack a model into a G2BX file: the same weights in the order in which they are read, with checksums
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without a type every tensor stays what it is, and every key of the metadata travels: `twinband unpack` gives \
                        the GGUF file back. With one, each tensor gets the type that llama.cpp's mixture of this name gives it. \
                        With --pure, and for types of our own, all matrices get that one type; the embedding and the head keep \
                        at least 8 bits a weight unless --head says otherwise.\n\
                        Example: twinband pack model.gguf model.g2bx && twinband run model.g2bx \"Once\""
)]
pub struct Args {
    /// The model: a GGUF file, of a split set any part, or a G2BX file of any version
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Keep the types of all tensors, which is the default
    #[arg(long, group = "types")]
    keep: bool,

    /// Convert matrices to this type, or to the mixture that llama.cpp gives this name
    #[arg(long = "type", value_name = "T", value_parser = Target::parser(), ignore_case = true, group = "types")]
    ty: Option<Target>,

    /// Give all matrices the type that is named, no mixture
    #[arg(long, requires = "ty")]
    pure: bool,

    /// Convert matrices to Q4_0
    #[arg(long, group = "types")]
    q4: bool,

    /// Convert matrices to Q4_0S
    #[arg(long, group = "types")]
    q4s: bool,

    /// Convert matrices to Q4_0S_PSY
    #[arg(long, group = "types")]
    psy: bool,

    /// Convert matrices to Q4_VVC
    #[arg(long, group = "types")]
    vvc: bool,

    /// Convert the head to this type; where the embedding serves as one, that is converted and goes on to serve
    #[arg(long, value_name = "T", value_parser = types(quantize::types), ignore_case = true)]
    head: Option<GgmlType>,

    /// Importance data of llama.cpp (imatrix, GGUF or .dat): errors of weights that meet large inputs count more
    #[arg(long, value_name = "F")]
    imatrix: Option<PathBuf>,

    /// Fail if a matrix cannot have the type asked for, in place of giving it another
    #[arg(long)]
    strict: bool,

    /// Leave the rows of matrices one after the other
    #[arg(long)]
    no_interleave: bool,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

impl Args {
    fn recipe(&self) -> Recipe {
        let named = [
            (self.q4, GgmlType::Q4_0),
            (self.q4s, GgmlType::Q4_0S),
            (self.psy, GgmlType::Q4_0S_PSY),
            (self.vvc, GgmlType::Q4_VVC),
        ];
        let flag = named.into_iter().find(|(set, _)| *set).map(|(_, ty)| Target::One(ty));
        let named = self.ty.map(|target| if self.pure { target.pure() } else { target });
        Recipe { matrices: named.or(flag), head: self.head }
    }
}

/// Keys that describe how a model was cut into files.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];
/// Names shown of a long list.
const SHOWN: usize = 4;

/// Writes the file; it appears under its name when it is complete.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let file = g2bx::open(&args.input)?;
    not_itself(&file, &args.output)?;
    let recipe = args.recipe();
    let choices = recipe.choices(&file, args.imatrix.is_some());
    let plan = || file.tensors().iter().zip(&choices);
    substitutions(plan(), args.strict, ui)?;
    let importance = weigh::open(args.imatrix.as_deref(), plan(), ui)?;
    let layout = |tensor: &TensorInfo, ty| {
        if args.no_interleave { Layout::Rows } else { chosen_layout(tensor, ty) }
    };
    let mut writer = g2bx::write::Writer::new(metadata(&file, recipe.file_type(), importance.as_ref()));
    for (tensor, choice) in plan() {
        writer
            .tensor(&tensor.name, &tensor.dims[..tensor.n_dims], choice.ty, layout(tensor, choice.ty))
            .with_context(|| format!("tensor {} cannot be packed", printable(tensor.name.as_bytes())))?;
    }
    let size = writer.file_size()?;
    let mut copy = Copy::new(&file, ui)?;
    let part = PartFile::create(&args.output, args.force)?;
    let mut data = writer.begin(BufWriter::with_capacity(1 << 20, part.file()))?;
    for (tensor, choice) in plan() {
        let sink = |bytes: &[u8]| data.part(bytes).with_context(|| format!("{}", args.output.display()));
        let importance = importance.as_ref().map(|data| data.of(tensor)).transpose()?.flatten();
        copy.tensor(tensor, choice.ty, layout(tensor, choice.ty), importance.as_deref(), sink)?;
    }
    data.finish().with_context(|| format!("{}", args.output.display()))?;
    part.publish()?;
    copy.finish();
    let interleaved = plan().filter(|(t, c)| layout(t, c.ty) != Layout::Rows).count();
    let converted = match plan().filter(|(t, c)| t.ty != c.ty).count() {
        0 => "all of the types they had".to_owned(),
        n => format!("{n} converted"),
    };
    ui.note(format_args!(
        "wrote {}: {}, {} tensors, {interleaved} of them interleaved, {converted}",
        args.output.display(),
        report::bytes(size),
        choices.len(),
    ));
    Ok(())
}

/// Says which tensors do not get the type asked for, and fails if that is not wished.
fn substitutions<'a>(
    plan: impl Iterator<Item = (&'a TensorInfo, &'a Choice)>,
    strict: bool,
    ui: &Ui,
) -> anyhow::Result<()> {
    let mut all: Vec<(GgmlType, GgmlType, Vec<&TensorInfo>)> = Vec::new();
    for (tensor, choice) in plan {
        let Some(wished) = choice.in_place_of else { continue };
        match all.iter_mut().find(|(a, b, _)| (*a, *b) == (wished, choice.ty)) {
            Some((.., tensors)) => tensors.push(tensor),
            None => all.push((wished, choice.ty, vec![tensor])),
        }
    }
    for (wished, ty, tensors) in all {
        let bytes = tensors.iter().filter_map(|t| t.bytes()).sum();
        let text = format!(
            "{} tensors ({} now) have rows that are no whole blocks of {wished}: {}",
            tensors.len(),
            report::bytes(bytes),
            names(&tensors)
        );
        anyhow::ensure!(!strict, "{text}");
        ui.warn(format_args!("{text}; they become {ty}"));
    }
    Ok(())
}

/// The first few names.
fn names(tensors: &[&TensorInfo]) -> String {
    let names: Vec<_> = tensors.iter().take(SHOWN).map(|t| printable(t.name.as_bytes())).collect();
    let more = if tensors.len() > SHOWN { ", ..." } else { "" };
    names.join(", ") + more
}

/// The order in which the kernels read a tensor: matrices in groups of rows. Not so the embedding, of which single rows
/// are read, and the head, of which decoding was no faster for it and devices are given rows.
fn chosen_layout(tensor: &TensorInfo, ty: GgmlType) -> Layout {
    let by_groups = tensor.n_dims == 2
        && format::of(ty).is_some_and(|format| format.act().is_some())
        && ![EMBEDDING, HEAD].contains(&tensor.name.as_str());
    if by_groups { Layout::Rows8 } else { Layout::Rows }
}

/// The file's metadata, without what says how it was split, and with what the file is to say of its types and of the data
/// by which it is converted.
pub fn metadata(file: &File, file_type: FileType, importance: Option<&Importance>) -> Writer {
    let mut writer = Writer::new();
    let replaced = |key: &str| importance.is_some() && weigh::KEYS.contains(&key);
    for (key, value) in file.meta().iter().filter(|(key, _)| !SPLIT_KEYS.contains(key) && !replaced(key)) {
        let value = match file_type {
            FileType::Number(number) if key == FILE_TYPE => Value::U32(number),
            FileType::None if key == FILE_TYPE => continue,
            _ => value,
        };
        writer.value(key, value);
    }
    if let Some(importance) = importance {
        weigh::note(importance, &mut writer);
    }
    writer
}

/// An error if `output` is a file that is being read.
pub fn not_itself(file: &File, output: &Path) -> anyhow::Result<()> {
    let Ok(output) = output.canonicalize() else { return Ok(()) };
    if file.parts().any(|part| part.canonicalize().is_ok_and(|part| part == output)) {
        return Err(Usage(format!("{} is the input: choose another name", output.display())).into());
    }
    Ok(())
}
