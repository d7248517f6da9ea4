//! Encoding numbers in block formats. Decoding is the formats' own business ([`crate::kernel::format`]).
//!
//! Formats of ggml's get the bytes that ggml's reference quantisers write without importance data (`plain`). Our own have
//! one scale for many elements, so theirs is searched for the least squared error (`search`).

mod plain;
mod search;

use crate::kernel::format::GgmlType;

/// Why numbers could not be encoded.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum QuantizeError {
    /// There is no encoder.
    #[error("weights cannot be written as {ty}; choose one of {}", names())]
    Type {
        /// The type.
        ty: GgmlType,
    },
    /// The numbers are no whole blocks, or the bytes are not as many as these take.
    #[error("{n} elements of {ty} do not fill {bytes} bytes in whole blocks")]
    Size {
        /// The type.
        ty: GgmlType,
        /// Elements given.
        n: usize,
        /// Bytes to fill.
        bytes: usize,
    },
    /// A number is not finite.
    #[error("element {at} is {x}, which has no place in a block of {ty}")]
    NotFinite {
        /// The type.
        ty: GgmlType,
        /// Which element.
        at: usize,
        /// Its value.
        x: f32,
    },
    /// Numbers are too large for a scale or an element of 16 bits.
    #[error("elements {at} to {} reach {x}, too much for the 16 bits that {ty} has for it", at + n - 1)]
    TooLarge {
        /// The type.
        ty: GgmlType,
        /// The first element of the block.
        at: usize,
        /// Elements of the block.
        n: usize,
        /// The largest magnitude.
        x: f32,
    },
}

/// Encodes as many elements as a block has; `None` if they are too large. The slices have a block's lengths.
type Encode = fn(&[f32], &mut [u8]) -> Option<()>;

/// The types that can be written, in the order of their codes.
static ENCODERS: &[(GgmlType, Encode)] = &[
    (GgmlType::F32, plain::f32),
    (GgmlType::F16, plain::f16),
    (GgmlType::Q4_0, plain::q4_0),
    (GgmlType::Q4_1, plain::q4_1),
    (GgmlType::Q5_0, plain::q5_0),
    (GgmlType::Q5_1, plain::q5_1),
    (GgmlType::Q8_0, plain::q8_0),
    (GgmlType::BF16, plain::bf16),
    (GgmlType::TQ1_0, plain::tq1_0),
    (GgmlType::TQ2_0, plain::tq2_0),
    (GgmlType::MXFP4, plain::mxfp4),
    (GgmlType::Q4_0S, search::q4_0s),
    (GgmlType::Q4_0S_PSY, search::q4_0s_psy),
    (GgmlType::Q4_VVC, search::q4_vvc),
];

/// The types that [`quantize`] writes, in the order of their codes.
pub fn types() -> impl Iterator<Item = GgmlType> {
    ENCODERS.iter().map(|&(ty, _)| ty)
}

fn names() -> String {
    types().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ")
}

/// Encodes `x` as whole blocks of `ty`, which fill `out`. On an error `out` holds anything.
pub fn quantize(ty: GgmlType, x: &[f32], out: &mut [u8]) -> Result<(), QuantizeError> {
    let known = ENCODERS.iter().find(|(of, _)| *of == ty).zip(ty.geometry());
    let ((_, encode), geometry) = known.ok_or(QuantizeError::Type { ty })?;
    if geometry.row_bytes(x.len()) != Some(out.len()) {
        return Err(QuantizeError::Size { ty, n: x.len(), bytes: out.len() });
    }
    if let Some(at) = x.iter().position(|x| !x.is_finite()) {
        return Err(QuantizeError::NotFinite { ty, at, x: x[at] });
    }
    let blocks = x.chunks_exact(geometry.block).zip(out.chunks_exact_mut(geometry.bytes));
    for (b, (x, out)) in blocks.enumerate() {
        encode(x, out).ok_or_else(|| QuantizeError::TooLarge {
            ty,
            at: b * geometry.block,
            n: geometry.block,
            x: x.iter().fold(0.0, |m, x| m.max(x.abs())),
        })?;
    }
    Ok(())
}

/// `1 / d`, or 0 if there is nothing to scale.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Writes codes below 16 as nibbles: those of the first 16 elements low, those of the last 16 high.
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (l, out) in out.iter_mut().enumerate() {
        *out = codes[l] | codes[l + 16] << 4;
    }
}

/// Writes an f16; `None` if it is infinite.
fn put_f16(x: half::f16, out: &mut [u8]) -> Option<()> {
    out.copy_from_slice(&x.to_le_bytes());
    x.is_finite().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format;
    use std::path::PathBuf;

    fn golden(name: &str) -> Vec<u8> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantize").join(name);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn input() -> Vec<f32> {
        golden("input.f32").as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    fn encoded(ty: GgmlType, x: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; ty.geometry().and_then(|g| g.row_bytes(x.len())).expect("whole blocks")];
        quantize(ty, x, &mut bytes).expect("ordinary numbers");
        bytes
    }

    fn decoded(ty: GgmlType, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        (format::of(ty).expect("a format").decode)(&encoded(ty, x), &mut out);
        out
    }

    fn error(x: &[f32], y: &[f32]) -> f64 {
        x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
    }

    #[test]
    fn bytes_are_those_of_ggml() {
        let x = input();
        for ty in types().filter(|ty| ty.0 != 0 && ty.0 < 128) {
            let (got, want) = (encoded(ty, &x), golden(&format!("{}.bytes", ty.to_string().to_lowercase())));
            assert_eq!(got.len(), want.len(), "{ty}");
            let wrong = got.iter().zip(&want).position(|(g, w)| g != w);
            assert_eq!(wrong, None, "{ty}, of {} bytes", want.len());
        }
    }

    /// Elements a scale has, the smallest code and the largest.
    const SEARCHED: [(GgmlType, usize, f64, f64); 3] = [
        (GgmlType::Q4_0S, 256, -8.0, 7.0),
        (GgmlType::Q4_0S_PSY, 128, -8.0, 7.0),
        (GgmlType::Q4_VVC, 256, -3.0, 4.0),
    ];

    /// The least squared error that any f16 scale leaves.
    fn least(x: &[f32], low: f64, high: f64) -> f64 {
        let all = (0..0x7c00).flat_map(|bits| [bits, bits | 0x8000]).map(half::f16::from_bits);
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        // Scales much below and above the largest element's leave more than those between.
        let near = all.filter(|d| {
            let range = f64::from(d.to_f32().abs()) * high.max(-low);
            *d == half::f16::ZERO || (0.1..4.0).contains(&(range / f64::from(largest)))
        });
        let of = |d: half::f16| {
            let d = f64::from(d.to_f32());
            let rest = |x: f64| if d == 0.0 { x } else { x - d * (x / d).round().clamp(low, high) };
            x.iter().map(|&x| rest(f64::from(x)).powi(2)).sum::<f64>()
        };
        near.map(of).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn searched_scales_are_as_good_as_the_best() {
        let x = input();
        for (ty, n, low, high) in SEARCHED {
            let y = decoded(ty, &x);
            let (mut sum, mut sum_least) = (0.0, 0.0);
            // Every row's first and last blocks: each row is of another kind.
            for (x, y) in x.chunks(1024).zip(y.chunks(1024)) {
                for at in [0, 1024 - n] {
                    let (x, y) = (&x[at..at + n], &y[at..at + n]);
                    let (got, least) = (error(x, y), least(x, low, high));
                    let power = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().max(1e-30);
                    assert!(got <= least * 1.02 + power * 1e-6, "{ty}: {got} of {least} at {at}");
                    sum += got / power;
                    sum_least += least / power;
                }
            }
            assert!(sum <= sum_least * 1.001, "{ty}: {sum} of {sum_least}");
        }
    }

    #[test]
    fn numbers_that_have_no_place_are_named() {
        // Any f32 has a place among f32 numbers, and any magnitude one among MXFP4's powers of two.
        for ty in types().filter(|&ty| ty != GgmlType::F32 && ty != GgmlType::MXFP4) {
            let geometry = ty.geometry().expect("a known type");
            let mut x = vec![0.5f32; geometry.block * 3];
            let mut out = vec![0; geometry.bytes * 3];
            assert_eq!(quantize(ty, &x, &mut out), Ok(()));
            let (n, bytes) = (x.len(), out.len() - 1);
            assert_eq!(quantize(ty, &x, &mut out[1..]), Err(QuantizeError::Size { ty, n, bytes }));
            let at = geometry.block + geometry.block / 2;
            x[at] = f32::NEG_INFINITY;
            let want = Err(QuantizeError::NotFinite { ty, at, x: x[at] });
            assert_eq!(quantize(ty, &x, &mut out), want);
            x[at] = f32::MAX;
            let (at, n) = (geometry.block, geometry.block);
            let want = Err(QuantizeError::TooLarge { ty, at, n, x: f32::MAX });
            assert_eq!(quantize(ty, &x, &mut out), want);
        }
        let none = quantize(GgmlType(31), &[], &mut []).expect_err("withdrawn").to_string();
        assert!(
            none.contains("Q4_0_4_4") && none.contains("Q4_0, Q4_1") && none.contains("Q4_VVC"),
            "{none}"
        );
        let none = quantize(GgmlType::IQ1_S, &[], &mut []).expect_err("no encoder").to_string();
        assert!(none.contains("IQ1_S"), "{none}");
    }

    /// The smallest and the largest numbers there are must not upset any arithmetic.
    #[test]
    fn every_magnitude_is_encoded_or_refused() {
        for ty in types() {
            let geometry = ty.geometry().expect("a known type");
            let mut out = vec![0; geometry.bytes];
            for exponent in -149..128 {
                let size = 2f64.powi(exponent) as f32;
                let x: Vec<f32> =
                    (0..geometry.block).map(|i| ((i + 50) as f32 / 97.0).sin() * size).collect();
                let done = quantize(ty, &x, &mut out);
                let mut y = vec![f32::NAN; geometry.block];
                (format::of(ty).expect("a format").decode)(&out, &mut y);
                match done {
                    Ok(()) => {
                        assert!(
                            y.iter().all(|y| y.is_finite() && y.abs() <= 1.2 * size + 4e-6),
                            "{ty} {size}"
                        )
                    }
                    Err(QuantizeError::TooLarge { .. }) => assert!(size >= 65504.0, "{ty} {size}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}
