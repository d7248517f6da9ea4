//! Rows that lie in groups in the model file, taken apart.

use twinband_protocol::GROUP;

/// Puts one row after the other: `from` has groups of [`GROUP`] rows, the last of what is left, and in a group block 0 of
/// each row, block 1 of each, and so on. `to` is as long as `from`, whole rows of `row_bytes`; those are whole blocks of
/// `block_bytes`.
pub fn take_apart(from: &[u8], row_bytes: usize, block_bytes: usize, to: &mut [u8]) {
    let group_bytes = GROUP as usize * row_bytes;
    for (from, to) in from.chunks(group_bytes).zip(to.chunks_mut(group_bytes)) {
        let height = to.len() / row_bytes;
        for (r, row) in to.chunks_exact_mut(row_bytes).enumerate() {
            let blocks = from.chunks_exact(block_bytes).skip(r).step_by(height);
            for (to, from) in row.chunks_exact_mut(block_bytes).zip(blocks) {
                to.copy_from_slice(from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_back_to_their_rows() {
        // Ten rows of three blocks of two bytes, each block its row's number and its own: a group of eight and one of two.
        let group = |rows: std::ops::Range<u8>| -> Vec<u8> {
            (0..3).flat_map(|b| rows.clone().flat_map(move |r| [r, b])).collect()
        };
        let together = [group(0..8), group(8..10)].concat();
        let mut apart = vec![0xff; together.len()];
        take_apart(&together, 6, 2, &mut apart);
        let rows: Vec<u8> = (0..10).flat_map(|r| (0..3).flat_map(move |b| [r, b])).collect();
        assert_eq!(apart, rows);
    }
}
