//! Buffers whose vectors do not lie across two lines of the CPU's cache.
#![allow(unsafe_code, reason = "pairs of elements are seen as a slice of elements")]

use crate::kernel::isa::Aligned;
use std::ops::{Deref, DerefMut};

/// The length of a cache line, and of the longest vectors.
const LINE: usize = 64;

/// A vector of half lines that begins at the start of a line. An allocator gives memory at multiples of 16 bytes, where every
/// load of 64 bytes would take two lines, and now and then two pages.
pub struct Lines<T> {
    pairs: Vec<Aligned<[T; 2]>>,
    len: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { pairs: Vec::new(), len: 0 }
    }
}

impl<T: Copy> Lines<T> {
    /// Makes it `len` long; elements that were not there before have any value that was there once, or `value`.
    pub fn resize(&mut self, len: usize, value: T) {
        self.pairs.resize(len.div_ceil(2), Aligned([value; 2]));
        self.len = len;
    }
}

impl<T> Deref for Lines<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        const { assert!(size_of::<T>() == LINE / 2 && size_of::<Aligned<[T; 2]>>() == LINE) };
        // SAFETY: pairs have no padding, and there are at least `len / 2` of them.
        unsafe { std::slice::from_raw_parts(self.pairs.as_ptr().cast(), self.len) }
    }
}

impl<T> DerefMut for Lines<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        const { assert!(size_of::<T>() == LINE / 2 && size_of::<Aligned<[T; 2]>>() == LINE) };
        // SAFETY: as above, and they are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pairs.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_begins_at_a_line() {
        let mut lines = Lines::default();
        for len in [1, 2, 7, 40, 3, 0, 5000] {
            lines.resize(len, [7u8; 32]);
            assert_eq!(lines.len(), len);
            assert_eq!(lines.as_ptr().align_offset(LINE), 0);
            for (i, x) in lines.iter_mut().enumerate() {
                *x = [i as u8; 32];
            }
            assert!(lines.iter().enumerate().all(|(i, x)| *x == [i as u8; 32]));
        }
    }
}
