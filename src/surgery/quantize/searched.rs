//! Encoders that search a block's only scale: of our own formats, of IQ4_NL, and of the plain formats with importance data.

use super::block::Block;
use super::codes::{Codes, Uneven, Whole};
use super::plain::put_fives;
use super::single::{range, search};
use super::{put_f16, put_nibbles};
use crate::kernel::isa::Isa;
use crate::simd;
use half::f16;

/// Scale and codes of `N` elements.
fn scale<C: Codes, const N: usize>(x: &[f32], importance: Option<&[f32]>) -> Option<(f16, [u8; N])> {
    let Some(Block { unit, x: [x], w: [w] }) = Block::<N, 1>::new(x, importance) else {
        return Some((f16::ZERO, [C::stored(0.0); N]));
    };
    simd!(Isa::detect(), s => search::<_, C, N>(s, &x, &w, unit))
}

/// Scale, value of code 0, and codes up to `TOP`.
fn scale_and_minimum<const TOP: u8>(x: &[f32], importance: Option<&[f32]>) -> Option<(f16, f16, [u8; 32])> {
    let Some(Block { unit, x: [x], w: [w] }) = Block::<32, 1>::new(x, importance) else {
        return Some((f16::ZERO, f16::ZERO, [0; 32]));
    };
    simd!(Isa::detect(), s => range::<_, TOP, 32>(s, &x, &w, unit))
}

pub(super) fn iq4_nl(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, codes) = scale::<Uneven, 32>(x, importance)?;
    put_nibbles(&codes, &mut out[2..]);
    put_f16(d, &mut out[..2])
}

pub(super) fn q4_0(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, codes) = scale::<Whole<-8, 7>, 32>(x, importance)?;
    put_nibbles(&codes, &mut out[2..]);
    put_f16(d, &mut out[..2])
}

pub(super) fn q5_0(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, codes) = scale::<Whole<-16, 15>, 32>(x, importance)?;
    put_fives(&codes, &mut out[2..]);
    put_f16(d, &mut out[..2])
}

pub(super) fn q4_1(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, min, codes) = scale_and_minimum::<15>(x, importance)?;
    put_nibbles(&codes, &mut out[4..]);
    put_f16(d, &mut out[..2])?;
    put_f16(min, &mut out[2..4])
}

pub(super) fn q5_1(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, min, codes) = scale_and_minimum::<31>(x, importance)?;
    put_fives(&codes, &mut out[4..]);
    put_f16(d, &mut out[..2])?;
    put_f16(min, &mut out[2..4])
}

/// One scale for `N` elements of 4 bits, whose nibbles are in 32s.
fn fours<const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    scale_out: &mut [u8],
    out: &mut [u8],
) -> Option<()> {
    let (d, codes) = scale::<Whole<-8, 7>, N>(x, importance)?;
    for (codes, out) in codes.as_chunks::<32>().0.iter().zip(out.chunks_exact_mut(16)) {
        put_nibbles(codes, out);
    }
    put_f16(d, scale_out)
}

pub(super) fn q4_0s(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (scale, codes) = out.split_at_mut(2);
    fours::<256>(x, importance, scale, codes)
}

pub(super) fn q4_0s_psy(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (scales, codes) = out.split_at_mut(4);
    let halves = scales.chunks_exact_mut(2).zip(codes.chunks_exact_mut(64));
    for (h, (scale, codes)) in halves.enumerate() {
        let part = h * 128..(h + 1) * 128;
        fours::<128>(&x[part.clone()], importance.map(|w| &w[part]), scale, codes)?;
    }
    Some(())
}

pub(super) fn q4_vvc(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let (d, codes) = scale::<Whole<-3, 4>, 256>(x, importance)?;
    // Eight codes are three bytes.
    for (codes, out) in codes.as_chunks::<8>().0.iter().zip(out[2..].as_chunks_mut::<3>().0) {
        let bits = codes.iter().rev().fold(0u32, |bits, &code| bits << 3 | u32::from(code));
        let [a, b, c, _] = bits.to_le_bytes();
        *out = [a, b, c];
    }
    put_f16(d, &mut out[..2])
}
