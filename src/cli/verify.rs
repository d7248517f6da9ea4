//! `twinband verify`: is a file what was written?

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::{Interrupted, Progress, Ui, interrupt, load, report};
use crate::g2bx::{self, verify::Checked};
use crate::gguf::{File, TensorInfo, printable};
use crate::kernel::format;
use crate::model::{LoadError, Model};
use crate::tokenizer::{self, Tokenizer};

/// Read a whole model file and check it: structure, checksums, shapes, and that every weight is a finite number
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 0: nothing wrong was found; 1: the message says what is wrong and where.\n\
                        GGUF files have no checksums: there a changed weight goes unnoticed.\n\
                        Example: twinband verify model.g2bx"
)]
pub struct Args {
    /// The model: a G2BX or GGUF file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// A weight that nothing can be computed with.
#[derive(Debug, thiserror::Error)]
#[error("{}: tensor {tensor}, row {row}, element {element} is {value}", path.display())]
struct NotFinite {
    path: PathBuf,
    tensor: String,
    row: usize,
    element: usize,
    value: f32,
}

/// Checks the file and says what that proves.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let flag = interrupt::flag()?;
    let go_on = || !flag.load(Ordering::SeqCst);
    let size = std::fs::metadata(&args.file).map_or(0, |meta| meta.len());
    // Once for the checksums, once for the numbers.
    let mut progress = ui.progress("bytes", 2 * size);
    let verified = g2bx::verify(&args.file, |done| {
        progress.set(done);
        go_on()
    });
    let verified = match verified {
        Err(g2bx::Error::Stopped) => return Err(Interrupted.into()),
        other => other?,
    };
    let file = &verified.file;
    let skipped = numbers(file, &mut progress, size, go_on)?;
    progress.finish();
    match Model::load(file) {
        Ok(_) => {}
        // Whole, if nothing that runs here.
        Err(
            error @ (LoadError::Architecture { .. } | LoadError::Unsupported { .. } | LoadError::Type { .. }),
        ) => {
            ui.note(printable(error.to_string().as_bytes()));
        }
        Err(error) => return Err(anyhow::Error::from(error).context(format!("{}", args.file.display()))),
    }
    // What is no tokenizer that runs here was said above, or is not what this command promises.
    let tokenizer = Tokenizer::from_gguf(file.meta(), &tokenizer::Options::default());
    if let Some(odd) = tokenizer.ok().and_then(|tokenizer| tokenizer.check_merges()) {
        ui.warn(odd);
    }
    let sums = match verified.checked {
        Checked::All => "every checksum holds",
        Checked::Structure => "the format has no checksums",
    };
    let numbers = match skipped {
        0 => "every weight is a finite number".to_owned(),
        n => format!("weights of {n} tensors, of types that do not run, were not looked at"),
    };
    writeln!(
        io::stdout().lock(),
        "{}: good; {} version {}, {}, {} tensors; {sums}; {numbers}",
        args.file.display(),
        file.container().name(),
        file.version(),
        report::bytes(file.size()),
        file.tensors().len(),
    )?;
    Ok(())
}

/// Decodes every weight. Returns how many tensors there are of types that cannot be decoded.
fn numbers(
    file: &File,
    progress: &mut Progress,
    before: u64,
    go_on: impl Fn() -> bool,
) -> anyhow::Result<usize> {
    let (mut done, mut skipped) = (before, 0);
    let mut out = Vec::new();
    for tensor in file.tensors() {
        file.check_unchanged()?;
        let Some(format) = format::of(tensor.ty) else {
            skipped += 1;
            continue;
        };
        let matrix = load::matrix(file, tensor, format)?;
        out.resize(matrix.cols(), 0.0);
        for row in 0..matrix.rows() {
            if row % 64 == 0 && !go_on() {
                return Err(Interrupted.into());
            }
            matrix.decode_row(row, &mut out);
            if let Some(element) = out.iter().position(|x| !x.is_finite()) {
                return Err(not_finite(file, tensor, row, element, out[element]).into());
            }
        }
        done += tensor.bytes().unwrap_or(0);
        progress.set(done);
    }
    Ok(skipped)
}

fn not_finite(file: &File, tensor: &TensorInfo, row: usize, element: usize, value: f32) -> NotFinite {
    let path = file.parts().nth(tensor.part()).unwrap_or(file.path()).to_owned();
    NotFinite { path, tensor: printable(tensor.name.as_bytes()), row, element, value }
}
