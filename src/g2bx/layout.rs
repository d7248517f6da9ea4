//! Tensors in one order of blocks or the other, a few groups of rows at a time.

use crate::gguf::{self, File, TensorInfo};
use crate::kernel::format::layout::{self, GROUP, Layout};
use crate::kernel::format::{Geometry, GgmlType};

/// How many bytes are turned at once, unless a single group is more.
const CHUNK: usize = 1 << 20;

/// Whether tensors of a type can lie in an order: blocks of one element stay in their rows.
pub(super) fn fits(layout: Layout, ty: GgmlType) -> bool {
    layout == Layout::Rows || ty.geometry().is_some_and(|g| g.block > 1)
}

/// Hands the bytes of one of the file's tensors to `sink` in order `to`, in parts.
pub fn read<E: From<gguf::Error>>(
    file: &File,
    tensor: &TensorInfo,
    to: Layout,
    sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let bytes = file.data(tensor)?;
    // A type that is not known has no bytes to be had; a row is at most 2^31 elements.
    let Some(geometry) = tensor.ty.geometry() else { return Ok(()) };
    convert(bytes, geometry, tensor.dims[0] as usize, tensor.layout, to, sink)
}

/// Hands the bytes of a matrix of `cols` elements a row, which lie in order `from`, to `sink` in order `to`, in parts.
///
/// `bytes` are whole rows and `cols` whole blocks.
pub fn convert<E>(
    bytes: &[u8],
    geometry: Geometry,
    cols: usize,
    from: Layout,
    to: Layout,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let row = cols / geometry.block * geometry.bytes;
    if from == to || row == 0 {
        return bytes.chunks(CHUNK).try_for_each(sink);
    }
    let mut out = Vec::new();
    for part in bytes.chunks(rows_at_once(row) * row) {
        out.resize(part.len(), 0);
        layout::convert([from, to], geometry.bytes, row, part, &mut out);
        sink(&out)?;
    }
    Ok(())
}

/// How many rows of so many bytes, whole groups of them, are held at once.
pub fn rows_at_once(row_bytes: usize) -> usize {
    GROUP * (CHUNK / (GROUP * row_bytes.max(1))).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(bytes: &[u8], geometry: Geometry, cols: usize, from: Layout, to: Layout) -> Vec<u8> {
        let mut out = Vec::new();
        let sink = |part: &[u8]| -> Result<(), std::convert::Infallible> {
            out.extend_from_slice(part);
            Ok(())
        };
        convert(bytes, geometry, cols, from, to, sink).expect("a Vec takes everything");
        out
    }

    #[test]
    fn parts_are_what_the_whole_would_be() {
        let geometry = GgmlType::Q8_0.geometry().expect("a known type");
        // Rows of which neither a whole number nor a multiple of eight fills a part.
        let (rows, cols) = (1001, 4032);
        let row = cols / 32 * 34;
        let bytes: Vec<u8> = (0..rows * row).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut whole = vec![0; bytes.len()];
        layout::convert([Layout::Rows, Layout::Rows8], 34, row, &bytes, &mut whole);
        assert!(whole != bytes && whole.len() > 2 * CHUNK);
        assert!(turned(&bytes, geometry, cols, Layout::Rows, Layout::Rows8) == whole);
        assert!(turned(&whole, geometry, cols, Layout::Rows8, Layout::Rows) == bytes);
        assert!(turned(&bytes, geometry, cols, Layout::Rows, Layout::Rows) == bytes);
        assert_eq!((rows_at_once(1), rows_at_once(row), rows_at_once(1 << 30)), (CHUNK, 240, 8));
    }
}
