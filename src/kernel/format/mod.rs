//! The weight formats: geometry of every ggml type, decoding and dot products of those we run.
//!
//! A format is one folder: `mod.rs` pictures the block and holds its definition (decode, scalar dot),
//! `avx2.rs` says how that instruction set reads its codes and scales. The loops around a block are
//! written once, in the drivers beside the formats.

mod bf16;
mod f16;
mod f32;
mod geometry;
pub(crate) mod grid;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
pub mod layout;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_0s;
mod q4_0s_psy;
mod q4_1;
mod q4_k;
mod q4_vvc;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod scaled;
mod tq1_0;
mod tq2_0;

pub mod drive;

pub use geometry::{Geometry, GgmlType};
pub(crate) use iq4_nl::VALUES as IQ4_STEPS;
pub use layout::Layout;

use crate::kernel::isa::Isa;
use crate::kernel::op::quantize::{Q8, Q8Row};
use crate::kernel::par::Cols;
use drive::panel::{Arrangement, Panel};
use layout::GROUP;
use std::ops::Range;

/// A format we can compute with.
#[derive(Debug)]
pub struct Format {
    /// Its code in files.
    pub ty: GgmlType,
    /// Decodes whole blocks into as many floats as they hold. This is the format's definition.
    pub decode: fn(&[u8], &mut [f32]),
    /// How a row is multiplied by an activation vector.
    pub dot: Dot,
}

/// How rows of a format are multiplied.
#[derive(Debug)]
pub enum Dot {
    /// By f32 activations: rows are decoded and multiplied in f32.
    F32 {
        /// The same bits without the decoded row in between.
        #[cfg(target_arch = "x86_64")]
        x86: drive::FloatKernels,
    },
    /// By activations quantised to int8.
    Q8(Q8Dot),
}

/// The int8 product of a format.
pub struct Q8Dot {
    /// Elements that share one activation scale.
    pub block: ActBlock,
    /// The definition: one row by one vector.
    pub scalar: fn(&[u8], Q8Row<'_>) -> f32,
    /// The same bits, faster.
    #[cfg(target_arch = "x86_64")]
    pub x86: Option<drive::Kernels>,
}

impl std::fmt::Debug for Q8Dot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Q8Dot").field("block", &self.block).finish_non_exhaustive()
    }
}

/// Elements of an activation vector that share one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActBlock {
    /// 32, for the 32-element formats.
    B32,
    /// 256, for the K-quants and other 256-element formats.
    B256,
}

impl ActBlock {
    /// The number of elements.
    pub const fn elements(self) -> usize {
        match self {
            Self::B32 => 32,
            Self::B256 => 256,
        }
    }

    /// The number of whole blocks in `n` elements.
    pub const fn count(self, n: usize) -> usize {
        match self {
            Self::B32 => n / 32,
            Self::B256 => n / 256,
        }
    }
}

/// Every format that runs.
static FORMATS: &[&Format] = &[
    &f32::FORMAT,
    &f16::FORMAT,
    &q4_0::FORMAT,
    &q4_1::FORMAT,
    &q5_0::FORMAT,
    &q5_1::FORMAT,
    &q8_0::FORMAT,
    &q2_k::FORMAT,
    &q3_k::FORMAT,
    &q4_k::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
    &iq2_xxs::FORMAT,
    &iq2_xs::FORMAT,
    &iq3_xxs::FORMAT,
    &iq1_s::FORMAT,
    &iq4_nl::FORMAT,
    &iq3_s::FORMAT,
    &iq2_s::FORMAT,
    &iq4_xs::FORMAT,
    &iq1_m::FORMAT,
    &bf16::FORMAT,
    &tq1_0::FORMAT,
    &tq2_0::FORMAT,
    &mxfp4::FORMAT,
    &q4_0s::FORMAT,
    &q4_0s_psy::FORMAT,
    &q4_vvc::FORMAT,
];

/// Every format that runs, in the order of the codes.
pub fn all() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().copied()
}

/// The format of a type code, or `None` if it cannot be computed with (yet).
pub fn of(ty: GgmlType) -> Option<&'static Format> {
    all().find(|f| f.ty == ty)
}

impl Format {
    /// The block geometry.
    pub fn geometry(&self) -> Geometry {
        self.ty.geometry().unwrap_or(Geometry { name: "?", block: 1, bytes: 1 })
    }

    /// The form of the activations that the default path multiplies this format by.
    pub fn act(&self) -> Option<ActBlock> {
        match &self.dot {
            Dot::F32 { .. } => None,
            Dot::Q8(q8) => Some(q8.block),
        }
    }
}

/// A weight matrix: `rows` rows of `cols` elements, each row whole blocks of `format`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    format: &'static Format,
    /// Of the rows, or in groups of whole groups.
    bytes: &'a [u8],
    /// Rows of the first group that come before the first row.
    skip: usize,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    layout: Layout,
}

/// Why bytes are no matrix of the given shape.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MatrixError {
    /// The row length is no multiple of the block.
    #[error("rows of {cols} elements are not whole blocks of {ty} ({block} elements)")]
    Block {
        /// Row length in elements.
        cols: usize,
        /// The format.
        ty: GgmlType,
        /// Its block length.
        block: usize,
    },
    /// The number of bytes is wrong.
    #[error("a {rows} x {cols} matrix of {ty} takes {want} bytes, not {have}")]
    Size {
        /// Rows.
        rows: usize,
        /// Elements in a row.
        cols: usize,
        /// The format.
        ty: GgmlType,
        /// Bytes needed.
        want: usize,
        /// Bytes given.
        have: usize,
    },
    /// Blocks of one element are not interleaved.
    #[error("{ty} has no blocks that could lie side by side")]
    Layout {
        /// The format.
        ty: GgmlType,
    },
}

impl<'a> Matrix<'a> {
    /// Views `bytes` as a matrix, row after row.
    pub fn new(
        format: &'static Format,
        bytes: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<Self, MatrixError> {
        let (ty, block) = (format.ty, format.geometry().block);
        let row_bytes = format.geometry().row_bytes(cols).ok_or(MatrixError::Block { cols, ty, block })?;
        let want = row_bytes.saturating_mul(rows);
        if want != bytes.len() {
            return Err(MatrixError::Size { rows, cols, ty, want, have: bytes.len() });
        }
        Ok(Self { format, bytes, skip: 0, rows, cols, row_bytes, layout: Layout::Rows })
    }

    /// The same bytes seen in another layout.
    ///
    /// # Errors
    /// If the format has no blocks of several elements.
    pub fn with_layout(self, layout: Layout) -> Result<Self, MatrixError> {
        if layout == Layout::Rows8 && self.format.geometry().block == 1 {
            return Err(MatrixError::Layout { ty: self.format.ty });
        }
        Ok(Self { layout, ..self })
    }

    /// The format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// How its blocks follow each other.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All bytes that hold its rows.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements in a row (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Some of the rows, as a matrix of their own.
    ///
    /// # Panics
    /// If there are not that many rows, or they lie in groups and begin within one but do not end there.
    pub fn part(&self, rows: std::ops::Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let (mut cut, mut skip) = (rows.clone(), 0);
        if self.layout == Layout::Rows8 {
            // Whole groups. (If `self` begins within a group, all of it is in that one.)
            skip = (self.skip + rows.start) % GROUP;
            assert!(skip == 0 || skip + rows.len() <= GROUP, "rows {rows:?} are of several groups");
            let all = self.bytes.len() / self.row_bytes.max(1);
            cut = self.skip + rows.start - skip..(self.skip + rows.end).next_multiple_of(GROUP).min(all);
        }
        let bytes = &self.bytes[cut.start * self.row_bytes..cut.end * self.row_bytes];
        Self { bytes, skip, rows: rows.len(), ..*self }
    }

    /// Where row `r` begins: the bytes from its first block on, and how many blocks further the next one is. The bytes go on to
    /// the end of the row or of its group.
    #[inline]
    pub fn blocks(&self, r: usize) -> (&'a [u8], usize) {
        match self.layout {
            Layout::Rows => (&self.bytes[r * self.row_bytes..][..self.row_bytes], 1),
            Layout::Rows8 => {
                let r = self.skip + r;
                let group = &self.bytes[r / GROUP * GROUP * self.row_bytes..];
                let group = &group[..group.len().min(GROUP * self.row_bytes)];
                let height =
                    if group.len() == GROUP * self.row_bytes { GROUP } else { group.len() / self.row_bytes };
                (&group[r % GROUP * self.format.geometry().bytes..], height)
            }
        }
    }

    /// The bytes of row `r`, put together in `scratch` if they do not lie together.
    pub fn row<'s>(&self, r: usize, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        let (bytes, stride) = self.blocks(r);
        if self.layout == Layout::Rows {
            return bytes;
        }
        let block = self.format.geometry().bytes;
        scratch.clear();
        scratch.extend(bytes.chunks(block).step_by(stride).flatten());
        scratch
    }

    /// Decodes row `r` into `out` (`cols` floats).
    pub fn decode_row(&self, r: usize, out: &mut [f32]) {
        let (bytes, stride) = self.blocks(r);
        if stride == 1 {
            return (self.format.decode)(bytes, out);
        }
        let geometry = self.format.geometry();
        let blocks = bytes.chunks(geometry.bytes).step_by(stride);
        for (block, out) in blocks.zip(out.chunks_exact_mut(geometry.block)) {
            (self.format.decode)(block, out);
        }
    }
}

impl Q8Dot {
    /// How so many vectors are to be arranged for [`run`](Self::run), if at all.
    pub(super) fn arrangement(&self, isa: Isa, vectors: usize) -> Option<Arrangement> {
        if vectors < drive::TILE_FROM {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(fast) = &self.x86 {
            let arrangement = match isa {
                Isa::Scalar => None,
                Isa::Avx2(_) => fast.avx2.arrangement,
                Isa::AvxVnni(_) => fast.avxvnni.arrangement,
                Isa::Avx512(_) => fast.avx512.arrangement,
            };
            return arrangement.map(|(most, needs)| Arrangement { block: self.block, most, needs });
        }
        None
    }

    /// `out[t][r] = W[r] . x[t]` for the rows in `out.range()` and every token, the sum of its terms. The vectors must also come
    /// [arranged](Self::arrangement) if that is wanted; the rows of `then` are probably multiplied next.
    pub(super) fn run(
        &self,
        isa: Isa,
        w: Matrix<'_>,
        (x, panel): (&Q8<'_>, Option<Panel<'_>>),
        out: &mut Cols<'_, f32>,
        tile: &mut drive::Tile,
        then: Range<usize>,
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(fast) = &self.x86 {
            match isa {
                Isa::Scalar => {}
                Isa::Avx2(token) => return (fast.avx2.multiply)(token, w, (x, panel), out, tile, then),
                Isa::AvxVnni(token) => return (fast.avxvnni.multiply)(token, w, (x, panel), out, tile, then),
                Isa::Avx512(token) => return (fast.avx512.multiply)(token, w, (x, panel), out, tile, then),
            }
        }
        drive::scalar(self.scalar, w, x, out, tile);
    }
}

/// The f16 at the start of `bytes`, exactly, subnormals included.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// One contract step: `acc + f32(isum) * (weight_scale * activation_scale)`, each operation rounded.
#[inline(always)]
pub(crate) fn step(acc: f32, isum: i32, w_scale: f32, x_scale: f32) -> f32 {
    acc + isum as f32 * (w_scale * x_scale)
}

/// The blocks of a row of a 32-element format, each with the activation codes and the scale it meets.
fn blocks32<'a, const BYTES: usize>(
    row: &'a [u8],
    x: Q8Row<'a>,
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a [i8; 32], f32)> {
    let blocks = row.as_chunks().0.iter().zip(x.codes.as_chunks().0).zip(x.scales);
    blocks.map(|((block, xs), &x_scale)| (block, xs, x_scale))
}

/// The same for a 256-element format, with the sums of 16 activation codes before the scale.
fn blocks256<'a, const BYTES: usize>(
    row: &'a [u8],
    x: Q8Row<'a>,
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a [i8; 256], &'a [i16; 16], f32)> {
    let blocks = row.as_chunks().0.iter().zip(x.codes.as_chunks().0).zip(x.sums.as_chunks().0).zip(x.scales);
    blocks.map(|(((block, xs), sums), &x_scale)| (block, xs, sums, x_scale))
}

/// The exact dot product of a block's codes and as many activation codes.
#[inline(always)]
fn isum(codes: &[i8], x: &[i8]) -> i32 {
    codes.iter().zip(x).map(|(&q, &x)| i32::from(q) * i32::from(x)).sum()
}

/// The sum of a block's activation codes, which its minimum is multiplied by.
#[inline(always)]
fn xsum(x: &[i8]) -> i32 {
    x.iter().map(|&x| i32::from(x)).sum()
}
