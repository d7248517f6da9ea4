//! Tensors on their way from one file to another, as they are or in another type.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;

use crate::cli::{Interrupted, Progress, Ui, interrupt, load};
use crate::g2bx::layout;
use crate::gguf::{File, TensorInfo, printable};
use crate::host::Host;
use crate::kernel::format::{self, GgmlType, Layout, Matrix};
use crate::surgery::quantize::{QuantizeError, quantize};

/// What is read, and how far it is.
pub struct Copy<'f> {
    file: &'f File,
    progress: Progress,
    /// Bytes read of tensors.
    done: u64,
    flag: &'static AtomicBool,
    threads: usize,
}

impl<'f> Copy<'f> {
    /// Counts what there is to do.
    pub fn new(file: &'f File, ui: &Ui) -> anyhow::Result<Self> {
        let total = file.tensors().iter().filter_map(TensorInfo::bytes).sum();
        let (progress, flag) = (ui.progress("bytes", total), interrupt::flag()?);
        Ok(Self { file, progress, done: 0, flag, threads: Host::new().default_threads() })
    }

    /// Erases the progress bar.
    pub fn finish(&mut self) {
        self.progress.finish();
    }

    /// Hands a tensor to `sink` as this type and in this order, in parts. If the type changes, errors in a column count what
    /// `importance` says of it, a number for each column of each of its matrices.
    pub fn tensor(
        &mut self,
        tensor: &TensorInfo,
        ty: GgmlType,
        to: Layout,
        importance: Option<&[f32]>,
        mut sink: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.file.check_unchanged()?;
        if ty != tensor.ty {
            return self.converted(tensor, ty, to, importance, sink);
        }
        layout::read(self.file, tensor, to, |bytes| {
            self.step(bytes.len())?;
            sink(bytes)
        })
    }

    /// So many bytes more were read.
    fn step(&mut self, bytes: usize) -> anyhow::Result<()> {
        if self.flag.load(Ordering::SeqCst) {
            return Err(Interrupted.into());
        }
        self.done += bytes as u64;
        self.progress.set(self.done);
        Ok(())
    }

    fn converted(
        &mut self,
        tensor: &TensorInfo,
        ty: GgmlType,
        to: Layout,
        importance: Option<&[f32]>,
        mut sink: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let name = printable(tensor.name.as_bytes());
        let source = format::of(tensor.ty)
            .with_context(|| format!("tensor {name}: {} cannot be decoded", tensor.ty))?;
        let matrix = load::matrix(self.file, tensor, source)?;
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let geometry = ty.geometry().with_context(|| format!("{ty} cannot be written"))?;
        let row_bytes =
            geometry.row_bytes(cols).with_context(|| format!("tensor {name}: no whole blocks of {ty}"))?;
        // The rows of a matrix share what its columns count.
        let of_row = |row: usize| {
            let at = row / usize::try_from(tensor.dims[1]).unwrap_or(usize::MAX) * cols;
            importance.and_then(|all| all.get(at..)?.get(..cols))
        };
        let mut encoded = Vec::new();
        let mut first = 0;
        while first < rows {
            let n = (layout::rows_at_once(row_bytes) * self.threads).min(rows - first);
            encoded.resize(n * row_bytes, 0);
            encode(&matrix, first, (ty, row_bytes), &of_row, &mut encoded, self.threads)
                .map_err(|(row, error)| anyhow::anyhow!("tensor {name}, row {row}: {error}"))?;
            layout::convert(&encoded, geometry, cols, Layout::Rows, to, &mut sink)?;
            self.step(n * matrix.row_bytes())?;
            first += n;
        }
        Ok(())
    }
}

/// Encodes rows from `first` on, as many as `out` has room for. An error comes with the row it is about.
fn encode<'i>(
    matrix: &Matrix<'_>,
    first: usize,
    (ty, row_bytes): (GgmlType, usize),
    importance: &(impl Fn(usize) -> Option<&'i [f32]> + Sync),
    out: &mut [u8],
    threads: usize,
) -> Result<(), (usize, QuantizeError)> {
    let share = (out.len() / row_bytes).div_ceil(threads.max(1));
    let one = |first: usize, out: &mut [u8]| {
        let mut x = vec![0.0; matrix.cols()];
        for (i, out) in out.chunks_mut(row_bytes).enumerate() {
            matrix.decode_row(first + i, &mut x);
            quantize(ty, &x, importance(first + i), out).map_err(|error| (first + i, error))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let parts = out.chunks_mut(share * row_bytes).enumerate();
        let workers: Vec<_> =
            parts.map(|(i, out)| scope.spawn(move || one(first + i * share, out))).collect();
        // A worker does not panic; if it does, so does this thread, here.
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
