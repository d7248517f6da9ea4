//! Where rows lie on the device, and how work on them is cut. Arithmetic only.
//!
//! Rows are cut in tiles of [`TILE`]. Within a tile, word j of every row lies side by side, so that neighbouring
//! invocations, which compute neighbouring rows, read neighbouring words: `u32 [tile][word][TILE]`. A row's bytes are
//! padded to whole words; rows missing in the last tile are zeros. The format of the rows does not matter.
//!
//! Tiles are cut in chunks, one storage buffer each, because a device limits how much of a buffer a shader can see.

use twinband_protocol::TILE;

/// Largest storage buffer: what every device has to allow.
pub(super) const MAX_CHUNK: u64 = 128 << 20;

/// Rows of a matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub rows: u32,
    pub row_bytes: u32,
}

/// Whole tiles in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub first_tile: u32,
    pub tiles: u32,
}

/// What a device or a test allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Workgroups of a dispatch in each of two dimensions.
    pub groups: [u32; 2],
    /// Tiles of one submit.
    pub submit: u32,
}

/// One dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dispatch {
    /// Index of the chunk.
    pub chunk: usize,
    /// First tile within the chunk.
    pub first_tile: u32,
    pub tiles: u32,
    /// Where its results begin.
    pub first_row: u32,
    /// How many results; the last tile may have fewer than [`TILE`].
    pub rows: u32,
    /// Workgroups; the last ones may have nothing to do.
    pub groups: [u32; 2],
}

impl Shape {
    /// Words of a row.
    pub fn words(&self) -> u32 {
        self.row_bytes.div_ceil(4)
    }

    pub fn tiles(&self) -> u32 {
        self.rows.div_ceil(TILE)
    }

    /// Bytes of a tile.
    pub fn tile_bytes(&self) -> u64 {
        u64::from(self.words()) * 4 * u64::from(TILE)
    }

    /// The chunks for buffers of at most `max` bytes, as even as can be; `None` if not even one tile fits.
    pub fn chunks(&self, max: u64) -> Option<Vec<Chunk>> {
        let most = u32::try_from(max.min(MAX_CHUNK) / self.tile_bytes().max(1)).ok().filter(|t| *t > 0)?;
        let count = self.tiles().div_ceil(most);
        let each = self.tiles().div_ceil(count.max(1));
        let firsts = (0..count).map(|i| i * each);
        // Rounding up can leave the last ones with nothing.
        let chunks = firsts.filter(|f| *f < self.tiles());
        Some(chunks.map(|f| Chunk { first_tile: f, tiles: each.min(self.tiles() - f) }).collect())
    }
}

/// Cuts the work on `rows` rows from tile `first_tile` on into submits of dispatches.
pub(super) fn plan(chunks: &[Chunk], first_tile: u32, rows: u32, bounds: Bounds) -> Vec<Vec<Dispatch>> {
    let [max_x, max_y] = bounds.groups.map(|g| g.max(1));
    let per_dispatch = max_x.saturating_mul(max_y);
    let per_submit = bounds.submit.max(1);
    let end = first_tile + rows.div_ceil(TILE);
    let mut submits = vec![Vec::new()];
    let mut room = per_submit;
    let mut tile = first_tile;
    for (index, chunk) in chunks.iter().enumerate() {
        let chunk_end = chunk.first_tile + chunk.tiles;
        while tile < end && (chunk.first_tile..chunk_end).contains(&tile) {
            if room == 0 {
                submits.push(Vec::new());
                room = per_submit;
            }
            let tiles = (end.min(chunk_end) - tile).min(per_dispatch).min(room);
            let first_row = (tile - first_tile) * TILE;
            let x = tiles.min(max_x);
            let dispatch = Dispatch {
                chunk: index,
                first_tile: tile - chunk.first_tile,
                tiles,
                first_row,
                rows: (tiles * TILE).min(rows - first_row),
                groups: [x, tiles.div_ceil(x)],
            };
            if let Some(last) = submits.last_mut() {
                last.push(dispatch);
            }
            room -= tiles;
            tile += tiles;
        }
    }
    submits
}

/// Interleaves up to [`TILE`] rows, one after the other in `rows`, into a tile of `words` words a row.
pub(super) fn interleave(rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    /// Words of a row handled together: a cache line.
    const STRIP: usize = 16;
    let (lane, words) = (TILE as usize, row_bytes.div_ceil(4));
    let count = rows.len() / row_bytes.max(1);
    let (tile, _) = tile.as_chunks_mut::<4>();
    if count < lane {
        tile.fill([0; 4]);
    }
    for strip in (0..words).step_by(STRIP) {
        for (r, row) in rows.chunks_exact(row_bytes.max(1)).take(lane).enumerate() {
            let (whole, rest) = row.as_chunks::<4>();
            for j in strip..words.min(strip + STRIP) {
                tile[j * lane + r] = whole.get(j).copied().unwrap_or_else(|| {
                    let mut last = [0; 4];
                    last[..rest.len()].copy_from_slice(rest);
                    last
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { rows: 1003, row_bytes: 18 };
    const NO_BOUNDS: Bounds = Bounds { groups: [65535; 2], submit: u32::MAX };

    #[test]
    fn chunks_cover_all_tiles_within_the_limit() {
        assert_eq!((SHAPE.words(), SHAPE.tiles(), SHAPE.tile_bytes()), (5, 16, 1280));
        for max in [1280, 1281, 2560, 5000, 1 << 20, u64::MAX] {
            let chunks = SHAPE.chunks(max).expect("a tile fits");
            let mut next = 0;
            for c in &chunks {
                assert_eq!(c.first_tile, next);
                assert!(c.tiles > 0 && u64::from(c.tiles) * 1280 <= max);
                next += c.tiles;
            }
            assert_eq!(next, 16, "{max}");
        }
        assert_eq!(SHAPE.chunks(1279), None);
        // A head of 151 MB where a buffer may have 128 MiB.
        let head = Shape { rows: 262_144, row_bytes: 576 };
        assert_eq!(head.chunks(u64::MAX).map(|c| c.len()), Some(2));
        let wide = Shape { rows: 1, row_bytes: 262_144 };
        assert_eq!(wide.chunks(MAX_CHUNK), Some(vec![Chunk { first_tile: 0, tiles: 1 }]));
    }

    #[test]
    fn a_plan_computes_every_row_once_within_its_bounds() {
        let cases = [
            NO_BOUNDS,
            Bounds { groups: [3, 65535], submit: u32::MAX },
            Bounds { groups: [2, 2], submit: u32::MAX },
            Bounds { groups: [65535; 2], submit: 5 },
            Bounds { groups: [1, 1], submit: 1 },
            Bounds { groups: [0, 0], submit: 0 },
        ];
        for bounds in cases {
            for max in [1280, 4000, u64::MAX] {
                let chunks = SHAPE.chunks(max).expect("a tile fits");
                for (first, rows) in [(0, 1003), (0, 1), (3, 64), (3, 65), (15, 43), (2, 1003 - 128)] {
                    let mut row = 0;
                    for submit in plan(&chunks, first, rows, bounds) {
                        assert!(submit.iter().map(|d| d.tiles).sum::<u32>() <= bounds.submit.max(1));
                        for d in submit {
                            let [x, y] = d.groups;
                            assert!(x <= bounds.groups[0].max(1) && y <= bounds.groups[1].max(1));
                            assert!(x * y >= d.tiles && x * (y - 1) < d.tiles, "{d:?}");
                            assert!(d.first_tile + d.tiles <= chunks[d.chunk].tiles);
                            assert_eq!(d.first_row, row);
                            assert_eq!(chunks[d.chunk].first_tile + d.first_tile, first + d.first_row / TILE);
                            assert_eq!(d.tiles, d.rows.div_ceil(TILE));
                            row += d.rows;
                        }
                    }
                    assert_eq!(row, rows, "{bounds:?} {max} {first}");
                }
            }
        }
    }

    #[test]
    fn words_of_neighbouring_rows_lie_side_by_side() {
        for (row_bytes, count) in [(18usize, 64), (18, 3), (20, 64), (130, 64), (3, 1)] {
            let rows: Vec<u8> = (0..row_bytes * count).map(|i| (i * 7 + 1) as u8).collect();
            let words = row_bytes.div_ceil(4);
            let mut tile = vec![0xaa; words * 256];
            interleave(&rows, row_bytes, &mut tile);
            for (at, &byte) in tile.iter().enumerate() {
                let (word, r, b) = (at / 256, at / 4 % 64, at % 4);
                let column = word * 4 + b;
                let want = if r < count && column < row_bytes { rows[r * row_bytes + column] } else { 0 };
                assert_eq!(byte, want, "{row_bytes} {count} {at}");
            }
        }
    }
}
