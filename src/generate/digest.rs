//! A fingerprint of the arithmetic: equal digests mean that every logit had equal bits.

use std::fmt;

/// 64-bit FNV-1a over the little-endian bits of logits vectors, one after the other. Displays as 16 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    /// The digest of nothing.
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a vector.
    pub fn add(&mut self, logits: &[f32]) {
        for byte in logits.iter().flat_map(|logit| logit.to_bits().to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        // The published values for the empty string and for "foob".
        assert_eq!(Digest::default().to_string(), "cbf29ce484222325");
        let mut digest = Digest::default();
        digest.add(&[f32::from_le_bytes(*b"foob")]);
        assert_eq!(digest.to_string(), "dd120e790c2512af");
    }

    #[test]
    fn the_order_and_every_bit_count() {
        let of = |parts: &[&[f32]]| {
            let mut digest = Digest::default();
            parts.iter().for_each(|part| digest.add(part));
            digest
        };
        assert_eq!(of(&[&[1.0, 2.0], &[3.0]]), of(&[&[1.0], &[2.0, 3.0]]));
        assert_ne!(of(&[&[1.0, 2.0]]), of(&[&[2.0, 1.0]]));
        assert_ne!(of(&[&[0.0]]), of(&[&[-0.0]]));
        assert_ne!(of(&[&[1.0]]), of(&[&[f32::from_bits(1.0f32.to_bits() + 1)]]));
    }
}
