//! Encoders of the K-quants and of IQ4_XS: what is searched, and where it is put.

use super::block::{Block, Unit};
use super::codes::{self, Codes, Uneven, Whole};
use super::ranged::{self, Ranged};
use super::scaled::{self, Scaled};
use super::{put_f16, put_nibbles};
use crate::kernel::isa::{Isa, Simd};
use crate::simd;
use half::f16;

const FOUR: Ranged = Ranged {
    most: 63,
    ends: &[-1.0, -0.4, 0.0, 0.4, 0.9, 1.5],
    factors: &[0.985, 0.995, 1.0, 1.008, 1.016, 1.024, 1.032, 1.05],
    refined: 3,
};

/// Scales and minimums of 6 bits, as Q4_K and Q5_K have them.
fn put_scales(scales: &[i32; 8], minimums: &[i32; 8], out: &mut [u8]) {
    for j in 0..4 {
        let (low, high) = (scales[j] as u8, scales[j + 4] as u8);
        let (low_min, high_min) = (minimums[j] as u8, minimums[j + 4] as u8);
        out[j] = low | high >> 4 << 6;
        out[j + 4] = low_min | high_min >> 4 << 6;
        out[j + 8] = (high & 15) | (high_min & 15) << 4;
    }
}

/// Nibbles of two sub-blocks, the first's low.
fn put_pairs(codes: &[[u8; 32]; 8], out: &mut [u8]) {
    for (pair, out) in codes.as_chunks::<2>().0.iter().zip(out.chunks_exact_mut(32)) {
        for (l, out) in out.iter_mut().enumerate() {
            *out = (pair[0][l] & 15) | (pair[1][l] & 15) << 4;
        }
    }
}

/// Pairs of bits: 32 bytes for each 128 elements, bits 2k and 2k + 1 of byte l = element 32k + l.
fn put_quarters(codes: &[u8; 256], out: &mut [u8]) {
    for (codes, out) in codes.as_chunks::<128>().0.iter().zip(out.chunks_exact_mut(32)) {
        for (l, out) in out.iter_mut().enumerate() {
            *out = (0..4).fold(0, |byte, k| byte | (codes[32 * k + l] & 3) << (2 * k));
        }
    }
}

/// One bit an element: bit k of byte l = element 32k + l.
fn put_bits(bit: impl Fn(usize) -> u8, out: &mut [u8]) {
    for (l, out) in out[..32].iter_mut().enumerate() {
        *out = (0..8).fold(0, |byte, k| byte | bit(32 * k + l) << k);
    }
}

/// A block's factors, whole scales and minimums, and codes.
struct Chosen<const N: usize, const S: usize> {
    d: f16,
    m: f16,
    scales: [i32; S],
    minimums: [i32; S],
    codes: [[u8; N]; S],
}

#[inline(always)]
fn ranged_codes<I: Simd, const TOP: u8, const N: usize, const S: usize>(
    s: I,
    format: &Ranged,
    x: &[[f32; N]; S],
    w: &[[f32; N]; S],
    unit: Unit,
) -> Option<(ranged::Found<S>, [[u8; N]; S])> {
    let found = format.search::<I, TOP, N, S>(s, x, w, unit)?;
    let (d, m) = (unit.value(found.d.to_f32()), unit.value(found.m.to_f32()));
    let mut codes = [[0; N]; S];
    for j in 0..S {
        let (scale, minimum) = (found.scales[j] as f32, found.minimums[j] as f32);
        codes[j] = ranged::codes::<I, TOP, N>(s, &x[j], d * scale, m * minimum);
    }
    Some((found, codes))
}

#[inline(always)]
fn scaled_codes<I: Simd, C: Codes, const N: usize, const S: usize>(
    s: I,
    format: &Scaled,
    x: &[[f32; N]; S],
    w: &[[f32; N]; S],
    unit: Unit,
) -> Option<(scaled::Found<S>, [[u8; N]; S])> {
    let found = format.search::<I, C, N, S>(s, x, w, unit)?;
    let d = unit.value(found.d.to_f32());
    let mut codes = [[0; N]; S];
    for j in 0..S {
        codes[j] = codes::choose::<I, C, N>(s, &x[j], d * found.scales[j] as f32);
    }
    Some((found, codes))
}

fn choose<const TOP: u8, const N: usize, const S: usize>(
    format: &Ranged,
    x: &[f32],
    importance: Option<&[f32]>,
) -> Option<Chosen<N, S>> {
    let Some(Block { unit, x, w }) = Block::<N, S>::new(x, importance) else {
        let (scales, minimums, codes) = ([0; S], [0; S], [[0; N]; S]);
        return Some(Chosen { d: f16::ZERO, m: f16::ZERO, scales, minimums, codes });
    };
    let search = simd!(Isa::detect(), s => ranged_codes::<_, TOP, N, S>(s, format, &x, &w, unit));
    let (found, codes) = search?;
    let used = |factor: f16, whole: &[i32; S]| if whole.iter().all(|&s| s == 0) { f16::ZERO } else { factor };
    Some(Chosen {
        d: used(found.d, &found.scales),
        m: used(found.m, &found.minimums),
        scales: found.scales,
        minimums: found.minimums,
        codes,
    })
}

pub(super) fn q2_k(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    const TWO: Ranged = Ranged {
        most: 15,
        ends: &[-0.1, 0.0, 0.1, 0.2, 0.3, 0.45],
        factors: &[0.9, 0.95, 1.0, 1.03, 1.07, 1.12, 1.18, 1.25, 1.35, 1.5],
        refined: 6,
    };
    let chosen = choose::<3, 16, 16>(&TWO, x, importance)?;
    for j in 0..16 {
        out[j] = chosen.scales[j] as u8 | (chosen.minimums[j] as u8) << 4;
    }
    put_quarters(chosen.codes.as_flattened().first_chunk()?, &mut out[16..80]);
    put_f16(chosen.d, &mut out[80..82])?;
    put_f16(chosen.m, &mut out[82..])
}

pub(super) fn q4_k(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let chosen = choose::<15, 32, 8>(&FOUR, x, importance)?;
    put_f16(chosen.d, &mut out[..2])?;
    put_f16(chosen.m, &mut out[2..4])?;
    put_scales(&chosen.scales, &chosen.minimums, &mut out[4..16]);
    put_pairs(&chosen.codes, &mut out[16..]);
    Some(())
}

pub(super) fn q5_k(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    let chosen = choose::<31, 32, 8>(&FOUR, x, importance)?;
    put_f16(chosen.d, &mut out[..2])?;
    put_f16(chosen.m, &mut out[2..4])?;
    put_scales(&chosen.scales, &chosen.minimums, &mut out[4..16]);
    put_bits(|i| chosen.codes.as_flattened()[i] >> 4, &mut out[16..48]);
    put_pairs(&chosen.codes, &mut out[48..]);
    Some(())
}

/// The factor, whole scales and codes of a format without minimums.
fn choose_scaled<C: Codes, const N: usize, const S: usize>(
    format: &Scaled,
    x: &[f32],
    importance: Option<&[f32]>,
) -> Option<(f16, [i32; S], [[u8; N]; S])> {
    let Some(Block { unit, x, w }) = Block::<N, S>::new(x, importance) else {
        return Some((f16::ZERO, [0; S], [[C::stored(0.0); N]; S]));
    };
    let search = simd!(Isa::detect(), s => scaled_codes::<_, C, N, S>(s, format, &x, &w, unit));
    let (found, codes) = search?;
    Some((found.d, found.scales, codes))
}

pub(super) fn q3_k(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    const THREE: Scaled = Scaled { low: -32, high: 31, first: 1.5, ratio: 1.06, steps: 16, factors: 14 };
    let (d, scales, codes) = choose_scaled::<Whole<-4, 3>, 16, 16>(&THREE, x, importance)?;
    let codes: &[u8; 256] = codes.as_flattened().first_chunk()?;
    put_bits(|i| codes[i] >> 2, &mut out[..32]);
    put_quarters(codes, &mut out[32..96]);
    let scales = scales.map(|s| (s + 32) as u8);
    for j in 0..8 {
        out[96 + j] = (scales[j] & 15) | (scales[j + 8] & 15) << 4;
    }
    for j in 0..4 {
        out[104 + j] = (0..4).fold(0, |byte, k| byte | scales[4 * k + j] >> 4 << (2 * k));
    }
    put_f16(d, &mut out[108..])
}

pub(super) fn q6_k(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    const SIX: Scaled = Scaled { low: -128, high: 127, first: 1.04, ratio: 1.01, steps: 12, factors: 6 };
    let (d, scales, codes) = choose_scaled::<Whole<-32, 31>, 16, 16>(&SIX, x, importance)?;
    let codes: &[u8; 256] = codes.as_flattened().first_chunk()?;
    for (codes, out) in codes.as_chunks::<128>().0.iter().zip(out.chunks_exact_mut(64)) {
        for l in 0..64 {
            out[l] = (codes[l] & 15) | (codes[l + 64] & 15) << 4;
        }
    }
    put_quarters(&codes.map(|code| code >> 4), &mut out[128..192]);
    for j in 0..16 {
        out[192 + j] = scales[j] as i8 as u8;
    }
    put_f16(d, &mut out[208..])
}

pub(super) fn iq4_xs(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Option<()> {
    const MANY: Scaled = Scaled { low: -32, high: 31, first: 1.3, ratio: 1.03, steps: 20, factors: 10 };
    let (d, scales, codes) = choose_scaled::<Uneven, 32, 8>(&MANY, x, importance)?;
    put_f16(d, &mut out[..2])?;
    let scales = scales.map(|s| (s + 32) as u8);
    let high = scales.iter().enumerate().fold(0u16, |bits, (j, s)| bits | u16::from(s >> 4) << (2 * j));
    out[2..4].copy_from_slice(&high.to_le_bytes());
    for k in 0..4 {
        out[4 + k] = (scales[2 * k] & 15) | (scales[2 * k + 1] & 15) << 4;
    }
    for (codes, out) in codes.iter().zip(out[8..].chunks_exact_mut(16)) {
        put_nibbles(codes, out);
    }
    Some(())
}
