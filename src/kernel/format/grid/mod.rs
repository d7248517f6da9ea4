//! What the grid formats (IQ1, IQ2, IQ3) share: their grids, and the signs of four or eight elements.
//!
//! A grid format does not store elements but the number of a point: of all the groups of eight (IQ1, IQ2) or four (IQ3)
//! elements that could be, a few hundred were chosen. They are written down here as small numbers, a bit field an
//! element, and spread to bytes when the program is built.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
mod iq1;
mod iq2;
mod iq3;

/// How many points the grid of IQ1 has.
pub(crate) const IQ1_POINTS: usize = 2048;
/// Groups of eight bytes, the first lowest: eight times -1, 0 or 1, and 8 more, so that none is negative. What IQ1 adds to
/// them is an eighth.
pub(super) static IQ1: [u64; IQ1_POINTS] = eights(&iq1::IQ1, [0, 8, 16, 0]);
pub(crate) static IQ2_XXS: [u64; 256] = eights(&iq2::IQ2_XXS, [8, 25, 43, 0]);
pub(crate) static IQ2_XS: [u64; 512] = eights(&iq2::IQ2_XS, [8, 25, 43, 0]);
pub(crate) static IQ2_S: [u64; 1024] = eights(&iq2::IQ2_S, [8, 25, 43, 0]);
/// Groups of four bytes, the first lowest.
pub(crate) static IQ3_XXS: [u32; 256] = fours(&iq3::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
pub(crate) static IQ3_S: [u32; 512] = fours(&iq3::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// The elements of a point of IQ1, eight times as large.
pub(crate) fn iq1(point: usize) -> [i8; 8] {
    IQ1[point].to_le_bytes().map(|e| e as i8 - 8)
}

/// Where only seven signs are stored, the eighth makes the number of minuses even.
pub(crate) static SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut i = 0;
    while i < 128 {
        signs[i] = i as u8 | ((i as u8).count_ones() as u8 & 1) << 7;
        i += 1;
    }
    signs
};

/// The signs of 32 elements from four numbers of 7 bits, the first lowest.
#[inline(always)]
pub(super) fn signs_of_sevens(numbers: u32) -> u32 {
    let of = |i: u32| SIGNS[(numbers >> (7 * i)) as usize & 127];
    u32::from_le_bytes([of(0), of(1), of(2), of(3)])
}

/// Negates those of up to 32 elements whose bit is set.
pub(super) fn negate(elements: &mut [i8], signs: u32) {
    for (i, e) in elements.iter_mut().enumerate() {
        if signs >> i & 1 == 1 {
            *e = -*e;
        }
    }
}

/// Spreads points of 2 bits an element.
const fn eights<const N: usize>(points: &[u16; N], values: [i8; 4]) -> [u64; N] {
    let mut spread = [0; N];
    let mut i = 0;
    while i < N * 8 {
        let value = values[(points[i / 8] >> (2 * (i % 8))) as usize & 3];
        spread[i / 8] |= (value as u8 as u64) << (8 * (i % 8));
        i += 1;
    }
    spread
}

/// Spreads points of 4 bits an element.
const fn fours<const N: usize>(points: &[u16; N], values: [u8; 8]) -> [u32; N] {
    let mut spread = [0; N];
    let mut i = 0;
    while i < N * 4 {
        let value = values[(points[i / 4] >> (4 * (i % 4))) as usize & 7];
        spread[i / 4] |= (value as u32) << (8 * (i % 4));
        i += 1;
    }
    spread
}
