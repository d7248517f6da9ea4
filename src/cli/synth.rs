//! `twinband synth`: a model of random weights with the shape of a real one.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::options::{positive, types};
use super::{Interrupted, Ui, Usage, interrupt, report};
use crate::gguf::part_file::PartFile;
use crate::kernel::format::GgmlType;
use crate::synth::{self, Geometry, Spec};

/// Write a model of random weights with the shape of a real one, for measurements
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: twinband synth qwen3-0.6b --type Q4_0 -o q.gguf && twinband bench q.gguf")]
pub struct Args {
    /// The shape
    #[arg(value_parser = shapes())]
    geometry: &'static Geometry,

    /// The type of all matrices
    #[arg(long = "type", value_name = "TYPE", value_parser = types(synth::types), ignore_case = true)]
    ty: GgmlType,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Which random weights: the same number gives the same file
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Layers [default: as many as the shape has]
    #[arg(long, value_name = "N", value_parser = positive)]
    layers: Option<usize>,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Writes the file; it appears under its name when it is complete.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let Args { geometry, ty, .. } = *args;
    let layers = args.layers.unwrap_or(geometry.n_layers);
    if layers > synth::MAX_LAYERS {
        return Err(Usage(format!("--layers {layers}: at most {}", synth::MAX_LAYERS)).into());
    }
    let spec = Spec { geometry, ty, layers, seed: args.seed };
    let part = PartFile::create(&args.output, args.force)?;
    let flag = interrupt::flag()?;
    let mut progress = ui.progress("bytes", spec.bytes());
    let written = spec.write(part.file(), |done| {
        progress.set(done);
        !flag.load(Ordering::SeqCst)
    });
    match written {
        Ok(_) => {}
        Err(synth::Error::Stopped) => return Err(Interrupted.into()),
        Err(error) => return Err(error).with_context(|| format!("{}", args.output.display())),
    }
    part.publish()?;
    progress.finish();
    ui.note(format_args!(
        "wrote {}: {} of {ty}, {layers} layers, seed {}",
        args.output.display(),
        report::bytes(spec.bytes()),
        args.seed
    ));
    Ok(())
}

fn shapes() -> impl TypedValueParser<Value = &'static Geometry> {
    PossibleValuesParser::new(synth::GEOMETRIES.iter().map(|g| g.name))
        .try_map(|name| synth::by_name(&name).ok_or("no such shape"))
}
