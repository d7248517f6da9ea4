//! How the blocks of a matrix follow each other.

/// The order of a matrix's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row after row.
    #[default]
    Rows,
    /// Rows in groups of eight, the last of what is left: block 0 of each row of a group, block 1 of each, and so on. The
    /// same bytes in another order: what is computed side by side lies side by side.
    Rows8,
}

/// Rows in a group of [`Layout::Rows8`].
pub const GROUP: usize = 8;

/// Rows (`row_bytes` each, of whole blocks of `block_bytes`) from one layout to another. `from` and `to` have the same
/// length; pieces of whole groups can be converted one after the other.
///
/// # Panics
/// If lengths disagree.
pub fn convert(layouts: [Layout; 2], block_bytes: usize, row_bytes: usize, from: &[u8], to: &mut [u8]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(row_bytes.max(1)), "whole rows");
    assert!(row_bytes.is_multiple_of(block_bytes), "whole blocks");
    if layouts[0] == layouts[1] {
        return to.copy_from_slice(from);
    }
    let n = row_bytes / block_bytes;
    let groups = from.chunks(GROUP * row_bytes).zip(to.chunks_mut(GROUP * row_bytes));
    for (from, to) in groups {
        let height = from.len() / row_bytes;
        for r in 0..height {
            for b in 0..n {
                let (apart, together) = ((r * n + b) * block_bytes, (b * height + r) * block_bytes);
                let (at, put) =
                    if layouts[1] == Layout::Rows8 { (apart, together) } else { (together, apart) };
                to[put..put + block_bytes].copy_from_slice(&from[at..at + block_bytes]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_move_as_pictured_and_back() {
        // Ten rows of three blocks of two bytes: row number, block number.
        let rows: Vec<u8> = (0..10).flat_map(|r| (0..3).flat_map(move |b| [r, b])).collect();
        let mut eights = vec![0; rows.len()];
        convert([Layout::Rows, Layout::Rows8], 2, 6, &rows, &mut eights);
        assert_eq!(eights[..20], [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 0, 1, 1, 1]);
        assert_eq!(eights[48..], [8, 0, 9, 0, 8, 1, 9, 1, 8, 2, 9, 2]);
        let mut back = vec![0; rows.len()];
        convert([Layout::Rows8, Layout::Rows], 2, 6, &eights, &mut back);
        assert_eq!(back, rows);
    }
}
