//! Weights in the order in which the kernels read them, made when a model is loaded: what a packed file has already.

use std::ops::Range;

use super::Model;
use super::error::LoadError;
use super::weights::Layer;
use crate::kernel::format::layout::convert;
use crate::kernel::format::{Layout, Matrix};

/// Where each matrix begins in the copy: on a line of the cache.
const ALIGN: usize = 64;

impl<'f> Layer<'f> {
    /// Its matrices, to be replaced.
    fn matrices_mut(&mut self) -> [&mut Matrix<'f>; 7] {
        let Self { q, k, v, o, gate, up, down, .. } = self;
        [&mut q.w, &mut k.w, &mut v.w, &mut o.w, &mut gate.w, &mut up.w, &mut down.w]
    }
}

/// Whether a matrix of a layer gains by lying in groups of rows and does not yet. (Not those that are multiplied in f32: their
/// rows are read one by one.)
pub(super) fn is_apart(matrix: &Matrix<'_>) -> bool {
    matrix.layout() == Layout::Rows && matrix.format().act().is_some()
}

/// Bytes of the copy that so many bytes take.
pub(super) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

impl Model<'_> {
    /// From now on reads the matrices of all layers from a copy of them in memory, in [`Layout::Rows8`], made by so many
    /// threads. Their pages of the file are given up. Changes no bit of a logit. The copy lasts as long as the file is open; for
    /// a second model of the file there is no second one. The embedding, of which single rows are read, and the head, part of
    /// which may go to a device, stay in the file.
    ///
    /// # Errors
    /// If there is no memory, or no thread.
    pub fn repack(&mut self, threads: usize) -> Result<(), LoadError> {
        let made = self.file.keep(|| self.interleaved(threads))?;
        let mut at = 0;
        for matrix in self.weights.layers.iter_mut().flat_map(Layer::matrices_mut).filter(|m| is_apart(m)) {
            let len = matrix.bytes().len();
            // What was made has room for all of them, so this is always there.
            if let Some(bytes) = made.get(at..at + len) {
                let copy = Matrix::new(matrix.format(), bytes, matrix.rows(), matrix.cols());
                if let Ok(copy) = copy.and_then(|copy| copy.with_layout(Layout::Rows8)) {
                    *matrix = copy;
                }
            }
            at += padded(len);
        }
        Ok(())
    }

    fn interleaved(&self, threads: usize) -> Result<Vec<u8>, LoadError> {
        let bytes = usize::try_from(self.outline.repack_bytes).unwrap_or(usize::MAX);
        let mut made = Vec::new();
        made.try_reserve_exact(bytes).map_err(|_| LoadError::Memory { bytes })?;
        made.resize(bytes, 0);
        let n = self.weights.layers.len();
        let mut rest = &mut made[..];
        std::thread::scope(|scope| {
            for part in parts(n, threads) {
                let of_layer = |l: usize| self.weights.layers[l].matrices();
                let len =
                    part.clone().flat_map(of_layer).filter(is_apart).map(|m| padded(m.bytes().len())).sum();
                let (mut out, after) = std::mem::take(&mut rest).split_at_mut(len);
                rest = after;
                let work = move || {
                    for matrix in part.flat_map(of_layer).filter(is_apart) {
                        let from = matrix.bytes();
                        let (here, after) = std::mem::take(&mut out).split_at_mut(padded(from.len()));
                        out = after;
                        let layouts = [Layout::Rows, Layout::Rows8];
                        let block = matrix.format().geometry().bytes;
                        convert(layouts, block, matrix.row_bytes(), from, &mut here[..from.len()]);
                        self.file.release(from, false);
                    }
                };
                std::thread::Builder::new().spawn_scoped(scope, work).map_err(LoadError::Thread)?;
            }
            Ok::<(), LoadError>(())
        })?;
        Ok(made)
    }
}

/// `n` layers in about equal parts for so many threads.
fn parts(n: usize, threads: usize) -> impl Iterator<Item = Range<usize>> {
    let threads = threads.clamp(1, n.max(1));
    (0..threads).map(move |i| n * i / threads..n * (i + 1) / threads)
}
