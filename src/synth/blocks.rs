//! Random blocks of every format: codes are random bits, scales are set so that the elements have a wanted spread.

use half::{bf16, f16};

use crate::kernel::format::GgmlType;
use crate::sample::Rng;

/// Scales differ from block to block by this much to either side, as they do in real models.
const JITTER: f32 = 0.25;

/// How random bits become a block whose elements have mean 0.
struct Recipe {
    /// Where the f16 scale is.
    scale_at: usize,
    /// Root mean square of the elements at scale 1.
    rms: f32,
    /// Where the f16 minimum (or its scale) is, and what the scale is multiplied by to give it.
    minimum: Option<(usize, f32)>,
    /// What else a block has.
    rest: Rest,
}

/// How the rest of a block is completed. Where sub-blocks have minimums, each becomes equal to its scale, so that no
/// sub-block has a mean.
enum Rest {
    None,
    /// 16 bytes at the start: scale in the low nibble, minimum in the high one.
    Nibbles,
    /// 12 bytes from the fourth on, 6 bits each: see Q4_K.
    SixBits,
    /// The other half has a scale of its own, which lies behind the first.
    Halves,
    /// The scale's nibbles are the top ones of the last four u16: see IQ1_M.
    Scattered,
}

fn recipe(ty: GgmlType) -> Option<Recipe> {
    use GgmlType as T;
    let (scale_at, rms, minimum, rest) = match ty {
        T::Q4_0 | T::Q4_0S => (0, 4.637, None, Rest::None),
        T::Q4_0S_PSY => (0, 4.637, None, Rest::Halves),
        T::Q4_VVC => (0, 2.345, None, Rest::None),
        T::Q4_1 => (0, 4.61, Some((2, -7.5)), Rest::None),
        T::Q5_0 => (0, 9.247, None, Rest::None),
        T::Q5_1 => (0, 9.233, Some((2, -15.5)), Rest::None),
        T::Q8_0 => (0, 73.90, None, Rest::None),
        T::Q2_K => (80, 9.843, Some((82, 1.5)), Rest::Nibbles),
        T::Q3_K => (108, 43.35, None, Rest::None),
        T::Q4_K => (0, 168.3, Some((2, 7.5)), Rest::SixBits),
        T::Q5_K => (0, 337.2, Some((2, 15.5)), Rest::SixBits),
        T::Q6_K => (208, 1365.6, None, Rest::None),
        T::IQ1_S => (0, 7.19, None, Rest::None),
        T::IQ1_M => (0, 7.20, None, Rest::Scattered),
        T::IQ2_XXS => (0, 53.4, None, Rest::None),
        T::IQ2_XS => (0, 55.9, None, Rest::None),
        T::IQ2_S => (0, 56.4, None, Rest::None),
        T::IQ3_XXS => (0, 142.5, None, Rest::None),
        T::IQ3_S => (0, 140.2, None, Rest::None),
        T::IQ4_NL => (0, 69.6, None, Rest::None),
        T::IQ4_XS => (0, 1286.0, None, Rest::None),
        T::TQ1_0 => (52, 0.817, None, Rest::None),
        T::TQ2_0 => (64, 1.2247, None, Rest::None),
        _ => return None,
    };
    Some(Recipe { scale_at, rms, minimum, rest })
}

/// Whether [`fill`] knows the type.
pub fn can_fill(ty: GgmlType) -> bool {
    recipe(ty).is_some() || matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::MXFP4)
}

/// Fills whole blocks of `ty` with random elements of mean 0 and standard deviation `std`. MXFP4 has only powers of two
/// for scales: there `std` is met to a factor of 1.5.
///
/// # Panics
/// If the type is none that [can be filled](can_fill).
pub fn fill(ty: GgmlType, std: f32, rng: &mut Rng, out: &mut [u8]) {
    // A uniform number from -1 to 1 has a standard deviation of 1 over the root of 3.
    let uniform = |bits: u32| std * 3f32.sqrt() * (bits as f32 / (1u32 << 31) as f32 - 1.0);
    match ty {
        GgmlType::F32 => {
            for x in out.as_chunks_mut::<4>().0 {
                *x = uniform((rng.bits() >> 32) as u32).to_le_bytes();
            }
        }
        GgmlType::F16 => {
            for x in out.as_chunks_mut::<2>().0 {
                *x = f16::from_f32(uniform((rng.bits() >> 32) as u32)).to_le_bytes();
            }
        }
        GgmlType::BF16 => {
            for x in out.as_chunks_mut::<2>().0 {
                *x = bf16::from_f32(uniform((rng.bits() >> 32) as u32)).to_le_bytes();
            }
        }
        GgmlType::MXFP4 => {
            bits(rng, out);
            // 2.93 is the root mean square of the sixteen values.
            let exponent = (127.0 + (std / 2.93).log2().round()).clamp(1.0, 254.0) as u8;
            out.chunks_exact_mut(17).for_each(|block| block[0] = exponent);
        }
        _ => {
            let recipe = recipe(ty).unwrap_or_else(|| panic!("no recipe for {ty}"));
            let bytes = ty.geometry().map_or(1, |g| g.bytes);
            bits(rng, out);
            out.chunks_exact_mut(bytes).for_each(|block| finish(&recipe, std, block));
        }
    }
}

fn bits(rng: &mut Rng, out: &mut [u8]) {
    let (words, rest) = out.as_chunks_mut::<8>();
    words.iter_mut().for_each(|word| *word = rng.bits().to_le_bytes());
    let last = rng.bits().to_le_bytes();
    rest.iter_mut().zip(last).for_each(|(byte, bits)| *byte = bits);
}

/// Puts scale and minimum into a block of random bits. Half of the scales are negative: codes are not symmetric around
/// 0, and a mean that all rows share would grow from layer to layer.
fn finish(recipe: &Recipe, std: f32, block: &mut [u8]) {
    let at = recipe.scale_at;
    let sign = if block[at] & 1 == 0 { 1.0 } else { -1.0 };
    let jitter = 1.0 - JITTER + 2.0 * JITTER * f32::from(block[at + 1]) / 255.0;
    let scale = sign * jitter * std / (recipe.rms * (1.0 + JITTER * JITTER / 3.0).sqrt());
    let scale_bits = f16::from_f32(scale).to_bits();
    if !matches!(recipe.rest, Rest::Scattered) {
        block[at..at + 2].copy_from_slice(&scale_bits.to_le_bytes());
    }
    if let Some((at, factor)) = recipe.minimum {
        block[at..at + 2].copy_from_slice(&f16::from_f32(factor * scale).to_le_bytes());
    }
    match recipe.rest {
        Rest::None => {}
        Rest::Halves => block.copy_within(at..at + 2, at + 2),
        Rest::Scattered => {
            let places = block.len() - 8;
            for (k, byte) in block[places..].iter_mut().skip(1).step_by(2).enumerate() {
                *byte = (*byte & 15) | ((scale_bits >> (4 * k) & 15) << 4) as u8;
            }
        }
        Rest::Nibbles => block[..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17),
        Rest::SixBits => {
            block.copy_within(4..8, 8);
            block[12..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format::{self, Matrix};

    /// Against the formats' own decoders, which golden values of another implementation hold.
    #[test]
    fn elements_have_the_wanted_spread_and_no_mean() {
        for format in format::all() {
            assert!(can_fill(format.ty), "{}", format.ty);
            let (rows, cols) = (256, 2048);
            let mut bytes = vec![0; rows * format.geometry().row_bytes(cols).expect("whole blocks")];
            fill(format.ty, 0.02, &mut Rng::new(7), &mut bytes);
            let matrix = Matrix::new(format, &bytes, rows, cols).expect("the shape it was made for");
            let (mut x, mut sum, mut squares, mut largest) = (vec![0.0; cols], 0.0, 0.0, 0f32);
            for r in 0..rows {
                matrix.decode_row(r, &mut x);
                sum += x.iter().map(|&x| f64::from(x)).sum::<f64>();
                squares += x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
                largest = x.iter().fold(largest, |m, x| m.max(x.abs()));
            }
            let n = (rows * cols) as f64;
            let (mean, std) = (sum / n, (squares / n).sqrt());
            let slack = if format.ty == GgmlType::MXFP4 { 1.5 } else { 1.03 };
            assert!((0.02 / slack..0.02 * slack).contains(&std), "{}: {std}", format.ty);
            // Codes that are not symmetric around 0 leave blocks a mean, of random sign: 4 errors of what is left.
            assert!(mean.abs() < 0.02 * 0.02, "{}: mean {mean}", format.ty);
            assert!(largest < 0.02 * 8.0, "{}: {largest}", format.ty);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let fill = |seed| {
            let mut bytes = vec![0; 144 * 3];
            fill(GgmlType::Q4_K, 1.0, &mut Rng::new(seed), &mut bytes);
            bytes
        };
        assert_eq!(fill(1), fill(1));
        assert_ne!(fill(1), fill(2));
    }
}
