//! Activations in the form that the shaders read.
//!
//! Codes are widened here, once a job, so that a shader finds in a single word what it multiplies with: see the head of
//! each shader and `low8` in `shaders/common.glsl`.

use super::format::{Codes, Format};

/// Codes of a row to words; `out` holds nothing else afterwards.
pub(super) fn codes(form: Codes, codes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    match form {
        Codes::Floats => out.extend(codes),
        Codes::Ints => out.extend(codes.iter().flat_map(|&c| i32::from(c as i8).to_le_bytes())),
        Codes::Pairs => {
            for c in codes.as_chunks::<4>().0 {
                let [a, b, c, d] = c.map(|c| i32::from(c as i8));
                // Below 2^16 in size, so the addition cannot overflow.
                out.extend(((a << 16) + c).to_le_bytes());
                out.extend(((b << 16) + d).to_le_bytes());
            }
        }
    }
}

/// Scales (f32) and sums of 16 codes (i16) to words at the end of `out`: for each block its scale and the sums its
/// shader wants.
pub(super) fn meta(format: &Format, scales: &[u8], sums: &[u8], out: &mut Vec<u8>) {
    let per_block = (format.block / 16) as usize;
    let per_sum = (format.sum / 16) as usize;
    for (b, scale) in scales.as_chunks::<4>().0.iter().enumerate() {
        out.extend(scale);
        if per_sum > 0 {
            let sums = &sums[b * per_block * 2..][..per_block * 2];
            for sums in sums.chunks_exact(per_sum * 2) {
                let sum: i32 =
                    sums.as_chunks::<2>().0.iter().map(|s| i32::from(i16::from_le_bytes(*s))).sum();
                out.extend(sum.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::format;
    use super::*;

    fn words(bytes: &[u8]) -> Vec<i32> {
        bytes.as_chunks::<4>().0.iter().map(|w| i32::from_le_bytes(*w)).collect()
    }

    #[test]
    fn pairs_hold_two_codes_each() {
        let bytes = [1i8, -2, -3, 4, -127, 127, 127, -127].map(|c| c as u8);
        let mut out = vec![9; 3];
        codes(Codes::Pairs, &bytes, &mut out);
        assert_eq!(words(&out), [65536 - 3, -2 * 65536 + 4, -127 * 65536 + 127, 127 * 65536 - 127]);
        codes(Codes::Ints, &bytes[..3], &mut out);
        assert_eq!(words(&out), [1, -2, -3]);
        codes(Codes::Floats, &[1, 2, 3, 4], &mut out);
        assert_eq!(out, [1, 2, 3, 4]);
    }

    #[test]
    fn sums_are_joined_as_the_format_wants() {
        let scales = [7i32, 8].map(i32::to_le_bytes);
        let sums: Vec<u8> = (1..=32i16).flat_map(i16::to_le_bytes).collect();
        let run = |code: u32, sums: &[u8]| {
            let mut out = Vec::new();
            meta(format::of(code).expect("a format"), scales.as_flattened(), sums, &mut out);
            words(&out)
        };
        assert_eq!(run(2, &sums[..8]), [7, 3, 8, 7]);
        assert_eq!(run(8, &sums[..8]), [7, 8]);
        assert_eq!(run(0x80, &sums), [7, 136, 8, 392]);
        assert_eq!(run(12, &sums)[..4], [7, 3, 7, 11]);
        assert_eq!(run(14, &sums)[..3], [7, 1, 2]);
        assert_eq!(run(14, &sums).len(), 34);
    }
}
