//! Encoding numbers in block formats. Decoding is the formats' own business ([`crate::kernel::format`]).
//!
//! The simple formats of ggml's get the bytes that ggml's reference quantisers write without importance data (`plain`). For
//! all others, and with importance data, the least weighted squared error is searched: of one scale (`single`), of whole
//! scales of sub-blocks (`scaled`), of whole scales and minimums (`ranged`). What an error counts is in `block`.

mod block;
mod codes;
mod iq;
mod k;
mod plain;
mod points;
mod ranged;
mod scaled;
mod searched;
mod single;

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

/// Encodes as many elements as a block has, the second what an error of each counts; `None` if they are too large. The
/// slices have a block's lengths.
type Encode = fn(&[f32], Option<&[f32]>, &mut [u8]) -> Option<()>;

/// The types that can be written, in the order of their codes, and whether their encoders take notice of importance data.
/// Those that do not have nothing to choose, or take what ggml takes.
static ENCODERS: &[(GgmlType, bool, Encode)] = &[
    (GgmlType::F32, false, |x, _, out| plain::f32(x, out)),
    (GgmlType::F16, false, |x, _, out| plain::f16(x, out)),
    (
        GgmlType::Q4_0,
        true,
        |x, w, out| if w.is_none() { plain::q4_0(x, out) } else { searched::q4_0(x, w, out) },
    ),
    (
        GgmlType::Q4_1,
        true,
        |x, w, out| if w.is_none() { plain::q4_1(x, out) } else { searched::q4_1(x, w, out) },
    ),
    (
        GgmlType::Q5_0,
        true,
        |x, w, out| if w.is_none() { plain::q5_0(x, out) } else { searched::q5_0(x, w, out) },
    ),
    (
        GgmlType::Q5_1,
        true,
        |x, w, out| if w.is_none() { plain::q5_1(x, out) } else { searched::q5_1(x, w, out) },
    ),
    (GgmlType::Q8_0, false, |x, _, out| plain::q8_0(x, out)),
    (GgmlType::Q2_K, true, k::q2_k),
    (GgmlType::Q3_K, true, k::q3_k),
    (GgmlType::Q4_K, true, k::q4_k),
    (GgmlType::Q5_K, true, k::q5_k),
    (GgmlType::Q6_K, true, k::q6_k),
    (GgmlType::IQ2_XXS, true, iq::iq2_xxs),
    (GgmlType::IQ2_XS, true, iq::iq2_xs),
    (GgmlType::IQ3_XXS, true, iq::iq3_xxs),
    (GgmlType::IQ1_S, true, iq::iq1_s),
    (GgmlType::IQ4_NL, true, searched::iq4_nl),
    (GgmlType::IQ3_S, true, iq::iq3_s),
    (GgmlType::IQ2_S, true, iq::iq2_s),
    (GgmlType::IQ4_XS, true, k::iq4_xs),
    (GgmlType::IQ1_M, true, iq::iq1_m),
    (GgmlType::BF16, false, |x, _, out| plain::bf16(x, out)),
    (GgmlType::TQ1_0, false, |x, _, out| plain::tq1_0(x, out)),
    (GgmlType::TQ2_0, false, |x, _, out| plain::tq2_0(x, out)),
    (GgmlType::MXFP4, false, |x, _, out| plain::mxfp4(x, out)),
    (GgmlType::Q4_0S, true, searched::q4_0s),
    (GgmlType::Q4_0S_PSY, true, searched::q4_0s_psy),
    (GgmlType::Q4_VVC, true, searched::q4_vvc),
];

/// The types that [`quantize`] writes, in the order of their codes.
pub fn types() -> impl Iterator<Item = GgmlType> {
    ENCODERS.iter().map(|&(ty, ..)| ty)
}

/// Whether weights of this type are of little use if nothing is known of their importance; ggml refuses to write them then.
pub fn needs_importance(ty: GgmlType) -> bool {
    [GgmlType::IQ1_S, GgmlType::IQ2_XXS, GgmlType::IQ2_XS].contains(&ty)
}

/// Whether [`quantize`] takes notice of importance data for this type.
pub fn weighs_errors(ty: GgmlType) -> bool {
    ENCODERS.iter().any(|&(known, weighs, _)| known == ty && weighs)
}

fn names() -> String {
    types().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ")
}

/// Encodes `x` as whole blocks of `ty`, which fill `out`. On an error `out` holds anything.
///
/// `importance`, as many numbers as `x`, finite and above 0, is how much the squared error of each element counts, beside
/// what its size makes it count, for types that [weigh errors](weighs_errors).
pub fn quantize(
    ty: GgmlType,
    x: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantizeError> {
    let known = ENCODERS.iter().find(|(of, ..)| *of == ty).zip(ty.geometry());
    let ((.., encode), geometry) = known.ok_or(QuantizeError::Type { ty })?;
    if geometry.row_bytes(x.len()) != Some(out.len()) {
        return Err(QuantizeError::Size { ty, n: x.len(), bytes: out.len() });
    }
    if let Some(at) = x.iter().position(|x| !x.is_finite()) {
        return Err(QuantizeError::NotFinite { ty, at, x: x[at] });
    }
    let blocks = x.chunks_exact(geometry.block).zip(out.chunks_exact_mut(geometry.bytes));
    for (b, (x, out)) in blocks.enumerate() {
        let at = b * geometry.block;
        let importance = importance.and_then(|all| all.get(at..at + geometry.block));
        encode(x, importance, out).ok_or_else(|| QuantizeError::TooLarge {
            ty,
            at,
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
mod tests;
