//! Encoders whose bytes are those of ggml's reference quantisers: one look for the largest (or smallest and largest)
//! element, codes by the unrounded scale, which is stored as an f16.

use super::{put_f16, put_nibbles};
use half::{bf16, f16 as F16};

pub(super) fn f32(x: &[f32], out: &mut [u8]) -> Option<()> {
    out.copy_from_slice(&x[0].to_le_bytes());
    Some(())
}

pub(super) fn f16(x: &[f32], out: &mut [u8]) -> Option<()> {
    put_f16(F16::from_f32(x[0]), out)
}

pub(super) fn bf16(x: &[f32], out: &mut [u8]) -> Option<()> {
    let x = bf16::from_f32(x[0]);
    out.copy_from_slice(&x.to_le_bytes());
    x.is_finite().then_some(())
}

/// `1 / d`, or 0 if there is nothing to scale.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The first of the elements of largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, &x| if x.abs() > m.abs() { x } else { m })
}

/// Codes of a scale alone: the extreme gets code 0, and `half` stands for 0. (`as` cuts off, and clamps at the types' ends.)
fn centred(x: &[f32], half: u8) -> (f32, [u8; 32]) {
    let d = extreme(x) / -f32::from(half);
    let inverse = inverse(d);
    let code = |x: f32| (x * inverse + (f32::from(half) + 0.5)) as u8;
    (d, std::array::from_fn(|i| code(x[i]).min(2 * half - 1)))
}

/// Codes of a scale and a minimum: the smallest element gets code 0, the largest `top`.
fn ranged(x: &[f32], top: u8) -> (f32, f32, [u8; 32]) {
    let min = x.iter().fold(f32::MAX, |m, &x| if x < m { x } else { m });
    let max = x.iter().fold(f32::MIN, |m, &x| if x > m { x } else { m });
    let d = (max - min) / f32::from(top);
    let inverse = inverse(d);
    (d, min, std::array::from_fn(|i| (((x[i] - min) * inverse + 0.5) as u8).min(top)))
}

/// Fifth bits in element order, then nibbles.
fn put_fives(codes: &[u8; 32], out: &mut [u8]) {
    let fifths = codes.iter().enumerate().fold(0u32, |bits, (i, &code)| bits | u32::from(code >> 4) << i);
    out[..4].copy_from_slice(&fifths.to_le_bytes());
    put_nibbles(&codes.map(|code| code & 15), &mut out[4..]);
}

pub(super) fn q4_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, codes) = centred(x, 8);
    put_nibbles(&codes, &mut out[2..]);
    put_f16(F16::from_f32(d), &mut out[..2])
}

pub(super) fn q4_1(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, min, codes) = ranged(x, 15);
    put_nibbles(&codes, &mut out[4..]);
    put_f16(F16::from_f32(d), &mut out[..2])?;
    put_f16(F16::from_f32(min), &mut out[2..4])
}

pub(super) fn q5_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, codes) = centred(x, 16);
    put_fives(&codes, &mut out[2..]);
    put_f16(F16::from_f32(d), &mut out[..2])
}

pub(super) fn q5_1(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, min, codes) = ranged(x, 31);
    put_fives(&codes, &mut out[4..]);
    put_f16(F16::from_f32(d), &mut out[..2])?;
    put_f16(F16::from_f32(min), &mut out[2..4])
}

pub(super) fn q8_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let d = extreme(x).abs() / 127.0;
    let inverse = inverse(d);
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = (x * inverse).round() as i8 as u8;
    }
    put_f16(F16::from_f32(d), &mut out[..2])
}
