//! Holding a device's rows to what the CPU would have computed.
//!
//! Three checks, from cheap to complete (`docs/NUMERICS.md` says what each proves):
//!
//! - *rows*: the band's largest logits and a few rotating ones are computed on the CPU too and compared bit for bit;
//! - *checksum*: with a sign `s[r]` for every row, fixed per load, the vector `C = sum_r s[r] W[r]` is folded once. Then
//!   `sum_r s[r] y[r]` must equal `C . x` up to the rounding that the contract's f32 steps can cause, which `A . |x|`
//!   with `A = sum_r |W[r]|` bounds. A single wrong logit that is off by more than the bound shows, wherever it is;
//! - *full*: every row is computed on the CPU and compared bit for bit.
//!
//! Folds are kept for pieces of the head, so that a band of any number of pieces can be checked after the cut has moved.

use crate::kernel::format::Matrix;

/// Pieces that the head is folded in.
pub const PIECES: usize = 64;

/// Folded weights of the head, built a few rows at a time.
pub struct Checksum {
    rows: usize,
    cols: usize,
    /// Rows in a piece, a multiple of the tile.
    piece: usize,
    /// `[pieces][cols]`: signed sums of decoded weights.
    signed: Vec<f64>,
    /// `[pieces][cols]`: sums of the magnitudes of what the decoded weights are made of.
    magnitude: Vec<f64>,
    /// Rows folded so far, from the end of the head.
    folded: usize,
    /// A decoded row, and one in its packed form.
    row: Vec<f32>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    /// Steps of the f32 sum of a row, for the bound.
    steps: f64,
}

/// The signs of 64 rows from `64 * group` on, a bit each: fixed, without a pattern that a device's own errors could
/// follow (SplitMix64's finaliser).
fn signs(group: usize) -> u64 {
    let mut z = (group as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The sign of a row.
fn sign(row: usize) -> f64 {
    if signs(row / 64) >> (row % 64) & 1 == 0 { 1.0 } else { -1.0 }
}

/// `sum_r s[r] * y[r]` for rows `first..`, where `first` is a multiple of 64.
fn signed_sum(first: usize, y: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (group, y) in y.chunks(64).enumerate() {
        let mut bits = signs(first / 64 + group);
        for &y in y {
            sum += if bits & 1 == 0 { f64::from(y) } else { -f64::from(y) };
            bits >>= 1;
        }
    }
    sum
}

impl Checksum {
    /// Nothing folded yet. `tile` is what bands begin on multiples of.
    pub fn new(w: &Matrix<'_>, tile: usize) -> Self {
        let (rows, cols) = (w.rows(), w.cols());
        let piece = rows.div_ceil(PIECES).next_multiple_of(tile);
        let n = rows.div_ceil(piece) * cols;
        Self {
            rows,
            cols,
            piece,
            signed: vec![0.0; n],
            magnitude: vec![0.0; n],
            folded: 0,
            row: vec![0.0; cols],
            bytes: Vec::new(),
            scratch: Vec::new(),
            // Additions on the longest way through a row's sum: two a block where there are minimums, one for every
            // eight elements in the f32 formats. The rest covers the roundings of a term before it is added and
            // those of decoding.
            steps: 2.0 * (cols as f64 / w.format().geometry().block.max(8) as f64) + 8.0,
        }
    }

    /// Bytes that it takes.
    pub fn bytes(rows: usize, cols: usize, tile: usize) -> usize {
        rows.div_ceil(rows.div_ceil(PIECES).next_multiple_of(tile)) * cols * 2 * size_of::<f64>() + cols * 4
    }

    /// Rows in a piece: a band of fewer cannot be checked.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// Whether every row is folded.
    pub fn complete(&self) -> bool {
        self.folded == self.rows
    }

    /// Folds up to `rows` more rows, from the end of the head backwards (bands are at the end).
    pub fn fold(&mut self, w: &Matrix<'_>, rows: usize) {
        for _ in 0..rows.min(self.rows - self.folded) {
            let r = self.rows - 1 - self.folded;
            let at = r / self.piece * self.cols;
            let s = sign(r);
            w.decode_row(r, &mut self.row);
            for (sum, &v) in self.signed[at..at + self.cols].iter_mut().zip(&self.row) {
                *sum += s * f64::from(v);
            }
            let magnitude = &mut self.magnitude[at..at + self.cols];
            for (sum, &v) in magnitude.iter_mut().zip(&self.row) {
                *sum += f64::from(v.abs());
            }
            if let Some(min) = w.format().ty.minimum_at() {
                // A weight `a - m` is made of two terms that can cancel: |a - m| is not what rounding works on. Without
                // its minimums the row decodes to `a`; |a| + |m| <= |a - m| + 2 |a|.
                let row = w.row(r, &mut self.scratch);
                self.bytes.clear();
                self.bytes.extend_from_slice(row);
                for block in self.bytes.chunks_exact_mut(w.format().geometry().bytes) {
                    block[min..min + 2].fill(0);
                }
                (w.format().decode)(&self.bytes, &mut self.row);
                for (sum, &a) in magnitude.iter_mut().zip(&self.row) {
                    *sum += 2.0 * f64::from(a.abs());
                }
            }
            self.folded += 1;
        }
    }

    /// The largest band of at most `rows` rows that can be checked: it begins at a piece.
    pub fn band(&self, rows: usize) -> usize {
        super::split::rows_from_cut(self.rows, self.piece, rows.min(self.folded))
    }

    /// Checks the device's logits of the last `y.len()` rows ([`Checksum::band`] of them) for the input `x`, decoded to
    /// f32. Returns how far the sum is off and how far it may be.
    pub fn check(&self, x: &[f32], y: &[f32]) -> Check {
        let first = self.rows - y.len();
        debug_assert!(first.is_multiple_of(self.piece), "bands begin at a piece");
        let (mut want, mut bound) = (0.0f64, 0.0f64);
        for p in first / self.piece..self.rows.div_ceil(self.piece) {
            let at = p * self.cols;
            for ((c, a), &x) in self.signed[at..].iter().zip(&self.magnitude[at..at + self.cols]).zip(x) {
                want += c * f64::from(x);
                bound += a * f64::from(x.abs());
            }
        }
        let got = signed_sum(first, y);
        // Unit roundoff of f32 for each step; f64's own rounding of these long sums is far below the margin.
        let unit = f64::from(f32::EPSILON) / 2.0;
        let gamma = self.steps * unit / (1.0 - self.steps * unit);
        Check { off: (got - want).abs(), bound: gamma * bound + f64::from(f32::MIN_POSITIVE) }
    }
}

/// The outcome of a checksum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// How far the two sides are apart.
    pub off: f64,
    /// How far rounding can put them apart.
    pub bound: f64,
}

impl Check {
    /// Whether the band can be right. NaN cannot.
    pub fn passes(&self) -> bool {
        self.off <= self.bound
    }
}

/// Rows to recompute for token number `token`: the largest few of the band, and a few that move on with every token.
pub fn rows_to_check(y: &[f32], token: u64, out: &mut Vec<usize>) {
    const TOP: usize = 4;
    const ROTATING: usize = 8;
    out.clear();
    for (i, &v) in y.iter().enumerate() {
        let at = out.partition_point(|&o| y[o] >= v);
        if at < TOP {
            out.insert(at, i);
            out.truncate(TOP);
        }
    }
    if !y.is_empty() {
        let n = y.len() as u64;
        out.extend((0..ROTATING as u64).map(|i| ((token * ROTATING as u64 + i) % n) as usize));
    }
}

/// Whether a token's band is compared in full: the first, second, fourth, eighth ..., then every 64th.
pub fn full_compare_due(token: u64) -> bool {
    token.is_power_of_two() && token <= 64 || token.is_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format::{Dot, all};
    use crate::kernel::isa::Isa;
    use crate::kernel::op::quantize::Quantised;

    const TILE: usize = 64;

    /// A head of `rows` rows made of a format's golden blocks, an input, and the contract's logits.
    fn head(name: &str, rows: usize) -> Option<(Vec<u8>, &'static crate::kernel::format::Format, usize)> {
        let format = all().find(|f| f.geometry().name == name)?;
        let path = format!("{}/tests/data/dequant/{}.bytes", env!("CARGO_MANIFEST_DIR"), name.to_lowercase());
        let blocks = std::fs::read(path).ok()?;
        let cols = 512;
        let row_bytes = format.geometry().row_bytes(cols)?;
        // Only blocks that decode to moderate numbers, repeated.
        let block = format.geometry().bytes;
        let per = format.geometry().block;
        let mut out = vec![0.0; per];
        let good: Vec<&[u8]> = blocks
            .chunks_exact(block)
            .filter(|b| {
                (format.decode)(b, &mut out);
                out.iter().all(|v| v.abs() < 100.0)
            })
            .collect();
        let bytes =
            good.iter().cycle().take(rows * row_bytes / block).flat_map(|b| b.iter().copied()).collect();
        Some((bytes, format, cols))
    }

    fn logits(w: &Matrix<'_>, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let Dot::Q8(q8) = &w.format().dot else { panic!("an int8 format") };
        let x = Quantised::new(Isa::Scalar, q8.block, x.len(), x);
        let (codes, per) = (x.codes.iter().enumerate(), q8.block.elements());
        let decoded = codes.map(|(i, &c)| f32::from(c) * x.scales[i / per]).collect();
        let row = x.q8().vector(0);
        ((0..w.rows()).map(|r| (q8.scalar)(w.row(r, &mut Vec::new()), row)).collect(), decoded)
    }

    #[test]
    fn right_bands_pass_and_one_wrong_logit_shows() {
        for name in ["Q4_0", "Q4_0S", "Q8_0", "Q4_1", "Q4_K", "Q6_K"] {
            let rows = 1003;
            let (bytes, format, cols) = head(name, rows).expect("golden blocks");
            let w = Matrix::new(format, &bytes, rows, cols).expect("a matrix");
            let x: Vec<f32> = (0..cols).map(|i| ((i * 7919 % 401) as f32 - 200.0) * 0.01).collect();
            let (y, x) = logits(&w, &x);
            let mut sum = Checksum::new(&w, TILE);
            while !sum.complete() {
                sum.fold(&w, 100);
            }
            for asked in [rows, 700, 65, 43] {
                let band = sum.band(asked);
                assert!(band <= asked && (rows - band).is_multiple_of(TILE));
                let mut part = y[rows - band..].to_vec();
                let right = sum.check(&x, &part);
                assert!(right.passes(), "{name}: {right:?}");
                for at in [0, band / 2, band - 1] {
                    let (was, size) = (part[at], (2.0 * right.bound) as f32 + part[at].abs() * 1e-3);
                    part[at] = was + size;
                    assert!(!sum.check(&x, &part).passes(), "{name}: off by {size} at {at}");
                    part[at] = f32::NAN;
                    assert!(!sum.check(&x, &part).passes());
                    part[at] = was;
                }
                // The bound must be worth something: well below the size of the logits themselves.
                let size: f32 = part.iter().map(|v| v.abs()).sum();
                assert!(right.bound < 1e-3 * f64::from(size), "{name}: {right:?} of {size}");
            }
        }
    }

    #[test]
    fn signs_are_balanced() {
        let sum: f64 = (0..10_000).map(sign).sum();
        assert!(sum.abs() < 400.0, "{sum}");
        let y: Vec<f32> = (0..200).map(|i| i as f32).collect();
        let want: f64 = y.iter().enumerate().map(|(i, &y)| sign(128 + i) * f64::from(y)).sum();
        assert_eq!(signed_sum(128, &y), want);
    }

    #[test]
    fn the_best_rows_and_others_in_turn() {
        let mut y = vec![0.0; 100];
        y[7] = 3.0;
        y[50] = 5.0;
        y[99] = 4.0;
        let mut rows = Vec::new();
        rows_to_check(&y, 0, &mut rows);
        assert_eq!(rows[..3], [50, 99, 7]);
        let mut seen = [false; 100];
        for token in 0..13 {
            rows_to_check(&y, token, &mut rows);
            rows[4..].iter().for_each(|&r| seen[r] = true);
        }
        assert!(seen.iter().all(|&s| s), "every row has its turn");
        rows_to_check(&[], 3, &mut rows);
        assert!(rows.is_empty());
        rows_to_check(&[1.0], 3, &mut rows);
        assert!(rows.iter().all(|&r| r == 0));
    }

    #[test]
    fn full_compares_thin_out() {
        let due: Vec<u64> = (1..200).filter(|&t| full_compare_due(t)).collect();
        assert_eq!(due, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
    }
}
