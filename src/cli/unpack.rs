//! `twinband unpack`: from our own container back to GGUF.

use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::Context as _;

use super::pack::{self, copy::Copy};
use super::{Ui, report};
use crate::g2bx;
use crate::gguf::part_file::PartFile;
use crate::gguf::printable;
use crate::kernel::format::Layout;

/// Turn a packed model back into a GGUF file
#[derive(Debug, clap::Args)]
#[command(after_help = "Tensors get the bytes they had before they were packed.\n\
                        Example: twinband unpack model.g2bx model.gguf")]
pub struct Args {
    /// The model: a G2BX file of any version, or a split GGUF set that is to be one file
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

/// Writes the file; it appears under its name when it is complete.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let file = g2bx::open(&args.input)?;
    pack::not_itself(&file, &args.output)?;
    let mut writer = pack::metadata(&file, pack::FileType::Kept, None);
    for tensor in file.tensors() {
        writer
            .tensor(&tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty)
            .with_context(|| format!("tensor {} cannot be written", printable(tensor.name.as_bytes())))?;
    }
    if let Some(tensor) = file.tensors().iter().find(|tensor| pack::is_own(tensor.ty)) {
        ui.warn(format_args!(
            "{} has types of our own ({}): other programs will not read it",
            args.output.display(),
            tensor.ty
        ));
    }
    let mut copy = Copy::new(&file, ui)?;
    let part = PartFile::create(&args.output, args.force)?;
    let mut data = writer.begin(BufWriter::with_capacity(1 << 20, part.file()))?;
    for tensor in file.tensors() {
        copy.tensor(tensor, tensor.ty, Layout::Rows, None, |bytes| {
            data.part(bytes).with_context(|| format!("{}", args.output.display()))?;
            Ok(())
        })?;
    }
    data.finish().with_context(|| format!("{}", args.output.display()))?;
    let size = part.file().metadata().map_or(0, |meta| meta.len());
    part.publish()?;
    copy.finish();
    let n = file.tensors().len();
    ui.note(format_args!("wrote {}: {}, {n} tensors", args.output.display(), report::bytes(size)));
    Ok(())
}
