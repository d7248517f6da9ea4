//! Puts every format against its golden values, and every fast table against the scalar definition.
//!
//! A format that joins the list is picked up by these tests as it is.

use super::format::layout::convert;
use super::format::{ActBlock, Dot, Format, Layout, Matrix, all};
use super::isa::Isa;
use super::op::matmul::{Input, Scratch, matmul};
use super::op::quantize::{Q8, Quantised};
use super::par::Cols;
use std::path::PathBuf;

/// A file of `tests/data`.
pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn golden(format: &Format, ext: &str) -> Vec<u8> {
    data(&format!("dequant/{}.{ext}", format.geometry().name.to_lowercase()))
}

/// Numbers of such a file.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// Bytes of blocks: ggml's for the formats that have golden files, floats of its own for F32.
fn blocks(format: &Format) -> Vec<u8> {
    if format.geometry().name == "F32" {
        return (0..16_384).flat_map(|i| ((i * 7919 % 2001) as f32 * 1e-3 - 1.0).to_le_bytes()).collect();
    }
    golden(format, "bytes")
}

/// The same bits, or both NaN (a NaN's payload is not part of the contract).
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn decoding_equals_the_reference_bit_for_bit() {
    for format in all().filter(|f| f.geometry().name != "F32") {
        let (bytes, want) = (golden(format, "bytes"), floats(&golden(format, "f32")));
        let mut got = vec![0.0; want.len()];
        assert_eq!(format.geometry().row_bytes(want.len()), Some(bytes.len()));
        (format.decode)(&bytes, &mut got);
        for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
            assert!(same(g, w), "{} element {i}: {g:?} is not {w:?}", format.ty);
        }
    }
}

/// Activations with blocks of zeros, outliers and ordinary values.
fn activations(n: usize, tokens: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..n * tokens)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let x = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            match (i / 32) % 7 {
                0 => 0.0,
                1 => x * 1e4,
                2 => x.signum() * 3.0,
                3 if i % 32 == 5 => 900.0,
                _ => x,
            }
        })
        .collect()
}

struct Acts {
    f32: Vec<f32>,
    n: usize,
    /// Terms of each token; the last ones are of other numbers than `f32`.
    terms: usize,
    q: Vec<Quantised>,
}

impl Acts {
    fn new(n: usize, tokens: usize, terms: usize) -> Self {
        let all = activations(n, tokens * terms);
        let blocks =
            [ActBlock::B32, ActBlock::B256].into_iter().filter(|block| n.is_multiple_of(block.elements()));
        let q = blocks.map(|block| Quantised::new(Isa::Scalar, block, n, &all)).collect();
        let f32 = all[..n * tokens].to_vec();
        Self { f32, n, terms, q }
    }

    fn input(&self) -> Input<'_> {
        let form = |want: ActBlock| {
            let form = self.q.iter().find(|q| q.block == want)?;
            Some(Q8 { stored: self.terms, terms: self.terms, ..form.q8() })
        };
        Input { f32: &self.f32, n: self.n, b32: form(ActBlock::B32), b256: form(ActBlock::B256) }
    }
}

fn product(isa: Isa, exact: bool, w: Matrix<'_>, acts: &Acts) -> Vec<f32> {
    let mut out = vec![f32::NAN; acts.f32.len() / acts.n * w.rows()];
    matmul(isa, exact, w, &acts.input(), &mut Cols::whole(&mut out, w.rows()), &mut Scratch::default());
    out
}

#[test]
fn fast_products_equal_the_definition_for_every_shape() {
    for format in all() {
        let bytes = blocks(format);
        let block = format.geometry().block.max(32);
        let per_row = |blocks: usize| format.geometry().row_bytes(block * blocks).expect("whole blocks");
        for (rows, n_blocks) in [(1, 1), (3, 2), (8, 1), (9, 3), (17, 5), (40, 2)] {
            let n = block * n_blocks;
            let len = per_row(n_blocks) * rows;
            for start in [0, bytes.len().saturating_sub(len) / per_row(1) * per_row(1)] {
                let Some(part) = bytes.get(start..start + len) else { continue };
                let w = Matrix::new(format, part, rows, n).expect("a matrix");
                for (tokens, terms) in
                    [1, 2, 3, 4, 5, 7, 8, 9, 13, 31].into_iter().flat_map(|t| [(t, 1), (t, 2)])
                {
                    let acts = Acts::new(n, tokens, terms);
                    for exact in [false, true] {
                        let want = product(Isa::Scalar, exact, w, &acts);
                        for isa in Isa::all() {
                            let got = product(isa, exact, w, &acts);
                            let wrong = want.iter().zip(&got).position(|(&w, &g)| !same(w, g));
                            assert_eq!(
                                wrong,
                                None,
                                "{} {rows}x{n} by {tokens} of {terms}, {isa:?}, exact {exact}: {:?} {:?}",
                                format.ty,
                                wrong.map(|i| want[i]),
                                wrong.map(|i| got[i])
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Blocks of eight rows side by side: the same products, of all rows and of some.
/// The largest sums there are: fast code that adds them up in something narrower than they need would show here.
#[test]
fn the_largest_codes_and_scales_lose_nothing() {
    for (name, scales) in [
        ("Q2_K", &[80, 82][..]),
        ("Q3_K", &[108]),
        ("Q4_K", &[0, 2]),
        ("Q5_K", &[0, 2]),
        ("Q6_K", &[208]),
        ("Q4_0", &[0]),
        ("Q5_1", &[0, 2]),
        ("Q8_0", &[0]),
    ] {
        let format = all().find(|format| format.ty.to_string() == name).expect("a format");
        let g = format.geometry();
        let (rows, n) = (40, 256);
        for fill in [0xff, 0x7f, 0x80, 0x00] {
            let mut bytes = vec![fill; g.row_bytes(n).expect("whole blocks") * rows];
            for block in bytes.chunks_exact_mut(g.bytes) {
                // An f16 of 1: the sums come out as they are.
                scales.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&0x3c00_u16.to_le_bytes()));
            }
            let w = Matrix::new(format, &bytes, rows, n).expect("a matrix");
            // Codes of 127 and, here and there, 126, so that no sum is a multiple of a power of two. Every third token is
            // negative.
            let x: Vec<f32> = (0..20 * n)
                .map(|i| {
                    let (t, i) = (i / n, i % n);
                    let code = if i > 0 && (i * (t + 3)).is_multiple_of(7) { 126.0 } else { 127.0 };
                    if t % 3 == 2 { -code } else { code }
                })
                .collect();
            let q = [ActBlock::B32, ActBlock::B256].map(|block| Quantised::new(Isa::Scalar, block, n, &x));
            let acts = Acts { f32: x, n, terms: 1, q: q.into() };
            let want = product(Isa::Scalar, false, w, &acts);
            assert!(want.iter().all(|y| y.is_finite()), "{name} {fill:#x}");
            for isa in Isa::all() {
                assert!(product(isa, false, w, &acts) == want, "{name} {fill:#x} {isa:?}");
            }
        }
    }
}

#[test]
fn interleaved_rows_have_the_bits_of_rows() {
    for format in all().filter(|f| f.geometry().block > 1) {
        let bytes = blocks(format);
        let geometry = format.geometry();
        for (rows, n) in
            [(1, 2), (8, 1), (19, 3), (32, 2)].map(|(rows, blocks)| (rows, blocks * geometry.block.max(32)))
        {
            let row_bytes = geometry.row_bytes(n).expect("whole blocks");
            let apart = &bytes[..rows * row_bytes];
            let mut together = vec![0; apart.len()];
            convert([Layout::Rows, Layout::Rows8], geometry.bytes, row_bytes, apart, &mut together);
            let w = Matrix::new(format, apart, rows, n).expect("a matrix");
            let w8 = Matrix::new(format, &together, rows, n).and_then(|w| w.with_layout(Layout::Rows8));
            let w8 = w8.expect("blocks of several elements");
            let same_products = |w: Matrix<'_>, w8: Matrix<'_>, what: &str| {
                for (tokens, exact) in [(1, false), (2, false), (9, false), (1, true)] {
                    let acts = Acts::new(n, tokens, 1);
                    let want = product(Isa::Scalar, exact, w, &acts);
                    for isa in Isa::all() {
                        let got = product(isa, exact, w8, &acts);
                        let equal = want.iter().zip(&got).all(|(&w, &g)| same(w, g));
                        assert!(equal, "{} {rows}x{n} {what} by {tokens}, {isa:?}", format.ty);
                    }
                }
            };
            same_products(w, w8, "whole");
            for r in 0..rows {
                same_products(w.part(r..r + 1), w8.part(r..r + 1), "one row");
                assert_eq!(w.row(r, &mut Vec::new()), w8.row(r, &mut Vec::new()), "{} row {r}", format.ty);
            }
            for from in (0..rows).step_by(8) {
                same_products(w.part(from..rows), w8.part(from..rows), "rows to the end");
                same_products(w.part(0..rows - from), w8.part(0..rows - from), "rows from the start");
                let inner = w8.part(from..rows).part(0..rows - from).part(0..1);
                same_products(w.part(from..from + 1), inner, "a part of a part");
            }
        }
    }
}

/// Rows of float formats need not be whole vectors, whether few tokens meet them or so many that they are widened first.
#[test]
fn float_rows_may_have_any_length() {
    for format in all().filter(|f| f.geometry().block == 1) {
        let bytes = blocks(format);
        for n in 1..40 {
            for (rows, tokens) in [(6, 3), (6, 27), (19, 25)] {
                let part = &bytes[..rows * format.geometry().row_bytes(n).expect("any length")];
                let w = Matrix::new(format, part, rows, n).expect("a matrix");
                let acts = Acts::new(n, tokens, 1);
                let want = product(Isa::Scalar, false, w, &acts);
                for isa in Isa::all() {
                    let got = product(isa, false, w, &acts);
                    let equal = want.iter().zip(&got).all(|(&w, &g)| same(w, g));
                    assert!(equal, "{} {rows}x{n} by {tokens} {isa:?}", format.ty);
                }
            }
        }
    }
}

#[test]
fn one_token_of_many_has_the_bits_it_has_alone() {
    for format in all() {
        let bytes = blocks(format);
        let block = format.geometry().block.max(32);
        let (rows, n) = (11, block * 3);
        let len = format.geometry().row_bytes(n).expect("whole blocks") * rows;
        let w = Matrix::new(format, &bytes[..len], rows, n).expect("a matrix");
        let tokens = 6;
        let acts = Acts::new(n, tokens, 1);
        for isa in Isa::all() {
            let many = product(isa, false, w, &acts);
            for t in 0..tokens {
                let f32 = acts.f32[t * n..][..n].to_vec();
                let q = acts.q.iter().map(|q| Quantised::new(Isa::Scalar, q.block, n, &f32)).collect();
                let alone = product(isa, false, w, &Acts { f32, n, terms: 1, q });
                assert!(
                    alone.iter().zip(&many[t * rows..]).all(|(&a, &m)| same(a, m)),
                    "{} {isa:?}",
                    format.ty
                );
            }
        }
    }
}

/// The integer definition against decoded weights in f64: they must mean the same weights.
#[test]
fn the_scalar_product_means_the_decoded_weights() {
    for format in all() {
        let Dot::Q8(q8) = &format.dot else { continue };
        let bytes = blocks(format);
        let block = format.geometry().block;
        let n = q8.block.elements().max(block);
        let row_bytes = format.geometry().row_bytes(n).expect("whole blocks");
        let acts = Acts::new(n, 1, 1);
        let input = acts.input();
        let x =
            if q8.block == ActBlock::B32 { input.b32 } else { input.b256 }.expect("activations").vector(0);
        for row in bytes.chunks_exact(row_bytes) {
            let mut w = vec![0.0; n];
            (format.decode)(row, &mut w);
            if w.iter().any(|w| !w.is_finite()) {
                continue;
            }
            let xs = x
                .codes
                .iter()
                .enumerate()
                .map(|(i, &c)| f64::from(c) * f64::from(x.scales[i / q8.block.elements()]));
            let products: Vec<f64> = xs.zip(&w).map(|(x, &w)| x * f64::from(w)).collect();
            let (want, size) = (products.iter().sum::<f64>(), products.iter().map(|p| p.abs()).sum::<f64>());
            if size > f64::from(f32::MAX) {
                continue; // Overflows, as the contract's f32 sums must.
            }
            let got = f64::from((q8.scalar)(row, x));
            // Formats with minimums cancel two large sums; f32 rounding of each is all that may differ.
            assert!(
                (got - want).abs() <= 1e-5 * size + 1e-30,
                "{}: {got} is not {want} (of {size})",
                format.ty
            );
        }
    }
}
