//! Encoders whose bytes are those of ggml's reference quantisers: one look for the largest (or smallest and largest)
//! element, codes by the unrounded scale, which is stored as an f16.

use super::{inverse, put_f16, put_nibbles};
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
pub(super) fn put_fives(codes: &[u8; 32], out: &mut [u8]) {
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

/// The largest magnitude, and digits 0, 1 and 2 for what is nearest to minus that, 0 and that. (Clamped since the inverse
/// of a subnormal magnitude may be infinite.)
fn ternary(x: &[f32]) -> (f32, [u8; 256]) {
    let d = extreme(x).abs();
    let inverse = inverse(d);
    (d, std::array::from_fn(|i| ((x[i] * inverse).round().clamp(-1.0, 1.0) as i8 + 1) as u8))
}

/// Up to five digits as a fraction in base 3 (see the format), the first right behind the point; in 256ths, rounded up.
fn fraction(digits: impl Iterator<Item = u8>) -> u8 {
    let places = [81, 27, 9, 3, 1];
    let sum: u16 = digits.zip(places).map(|(digit, place)| u16::from(digit) * place).sum();
    (sum * 256).div_ceil(243) as u8
}

pub(super) fn tq1_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, digits) = ternary(x);
    for (l, out) in out[..52].iter_mut().enumerate() {
        let (first, step, end) = match l {
            0..32 => (l, 32, 160),
            32..48 => (160 + l - 32, 16, 240),
            _ => (240 + l - 48, 4, 256),
        };
        *out = fraction((first..end).step_by(step).map(|i| digits[i]));
    }
    put_f16(F16::from_f32(d), &mut out[52..])
}

pub(super) fn tq2_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let (d, digits) = ternary(x);
    for (l, out) in out[..64].iter_mut().enumerate() {
        let first = l / 32 * 128 + l % 32;
        *out = (0..4).fold(0, |byte, k| byte | digits[first + 32 * k] << (2 * k));
    }
    put_f16(F16::from_f32(d), &mut out[64..])
}

pub(super) fn mxfp4(x: &[f32], out: &mut [u8]) -> Option<()> {
    /// Twice the values that codes stand for.
    const VALUES: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];
    let largest = extreme(x).abs();
    // The largest element gets a code from 4 up; 127 is what the exponent is stored plus. (`as` clamps at 0.)
    let exponent = if largest > 0.0 { (libm::log2f(largest).floor() - 2.0 + 127.0) as u8 } else { 0 };
    // Half the scale, 2^(exponent - 128), goes with twice the values. The smallest two are subnormal.
    let half = f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    });
    let nearest = |x: f32| {
        let errors = VALUES.map(|v| (v * half - x).abs());
        (1..16).fold(0, |best, i| if errors[i] < errors[best] { i } else { best }) as u8
    };
    out[0] = exponent;
    put_nibbles(&std::array::from_fn(|i| nearest(x[i])), &mut out[1..]);
    Some(())
}
