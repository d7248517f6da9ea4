//! The weight formats that have a shader.

use twinband_protocol::shm::Activations;

/// A format and how its shader wants things.
#[derive(Debug)]
pub(super) struct Format {
    /// ggml's code, or ours.
    pub code: u32,
    pub name: &'static str,
    /// Elements in a block.
    pub block: u32,
    /// Bytes in a block.
    pub bytes: u32,
    /// The activations it multiplies.
    pub activations: Activations,
    /// The form of the activation codes.
    pub codes: Codes,
    /// Codes in each sum that follows a block's scale; 0 for no sums.
    pub sum: u32,
    /// Elements that the shader takes in one step.
    pub step: u32,
    pub spirv: &'static [u8],
}

/// Forms of activation codes, see `pack.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    /// Two int8 codes in a word, half a word each.
    Pairs,
    /// One int8 code in a word.
    Ints,
    /// f32.
    Floats,
}

/// Rows longer than this are left to the CPU: it bounds the steps of one invocation.
pub(super) const MAX_COLS: u32 = 131_072;

const B32: Activations = Activations::Q8 { block: 32 };
const B256: Activations = Activations::Q8 { block: 256 };

#[cfg(feature = "compile-shaders")]
macro_rules! spirv {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".spv"))
    };
}
#[cfg(not(feature = "compile-shaders"))]
macro_rules! spirv {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../shaders/spv/", $name, ".spv"))
    };
}

#[rustfmt::skip]
static FORMATS: [Format; 7] = [
    Format { code: 1, name: "F16", block: 1, bytes: 2, activations: Activations::F32, codes: Codes::Floats, sum: 0, step: 8, spirv: spirv!("f16") },
    Format { code: 2, name: "Q4_0", block: 32, bytes: 18, activations: B32, codes: Codes::Pairs, sum: 32, step: 32, spirv: spirv!("q4_0") },
    Format { code: 3, name: "Q4_1", block: 32, bytes: 20, activations: B32, codes: Codes::Pairs, sum: 32, step: 32, spirv: spirv!("q4_1") },
    Format { code: 8, name: "Q8_0", block: 32, bytes: 34, activations: B32, codes: Codes::Ints, sum: 0, step: 32, spirv: spirv!("q8_0") },
    Format { code: 12, name: "Q4_K", block: 256, bytes: 144, activations: B256, codes: Codes::Pairs, sum: 32, step: 256, spirv: spirv!("q4_k") },
    Format { code: 14, name: "Q6_K", block: 256, bytes: 210, activations: B256, codes: Codes::Ints, sum: 16, step: 256, spirv: spirv!("q6_k") },
    Format { code: 0x80, name: "Q4_0S", block: 256, bytes: 130, activations: B256, codes: Codes::Pairs, sum: 256, step: 256, spirv: spirv!("q4_0s") },
];

/// The format of a code.
pub(super) fn of(code: u32) -> Option<&'static Format> {
    FORMATS.iter().find(|f| f.code == code)
}

/// Codes of all formats.
pub(super) fn codes() -> Vec<u32> {
    FORMATS.iter().map(|f| f.code).collect()
}

impl Format {
    /// Bytes in a row of `cols` elements, if that is whole blocks.
    pub fn row_bytes(&self, cols: u32) -> Option<u32> {
        cols.is_multiple_of(self.block).then_some(cols / self.block)?.checked_mul(self.bytes)
    }

    /// Steps of the shader's loop.
    pub fn steps(&self, cols: u32) -> u32 {
        cols.div_ceil(self.step)
    }

    /// Bytes of the activation codes on the device.
    pub fn codes_bytes(&self, cols: u32) -> u64 {
        let each = match self.codes {
            Codes::Pairs => 2,
            Codes::Ints | Codes::Floats => 4,
        };
        u64::from(self.steps(cols)) * u64::from(self.step) * each
    }

    /// Words of scale and sums for each block.
    pub fn meta_words(&self) -> u32 {
        match self.activations {
            Activations::F32 => 0,
            Activations::Q8 { .. } => 1 + self.block.checked_div(self.sum).unwrap_or(0),
        }
    }

    /// Bytes of scales and sums on the device.
    pub fn meta_bytes(&self, cols: u32) -> u64 {
        u64::from(cols / self.block) * u64::from(self.meta_words()) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_shader_and_the_sizes_it_expects() {
        for f in &FORMATS {
            // The first word of SPIR-V, in the byte order of this machine or not.
            assert_eq!(f.spirv.first_chunk::<4>(), Some(&0x0723_0203u32.to_le_bytes()), "{}", f.name);
            assert!(f.spirv.len().is_multiple_of(4), "{}", f.name);
            assert!(f.steps(MAX_COLS) <= 30_000, "{}: drivers cut long loops", f.name);
        }
        let of = |code| of(code).expect("a format");
        assert_eq!(of(2).row_bytes(576), Some(324));
        assert_eq!(of(2).row_bytes(570), None);
        assert_eq!(of(14).row_bytes(2048), Some(1680));
        assert_eq!((of(14).codes_bytes(512), of(14).meta_bytes(512)), (2048, 2 * 17 * 4));
        assert_eq!((of(12).codes_bytes(256), of(12).meta_bytes(256)), (512, 36));
        assert_eq!((of(1).codes_bytes(9), of(1).meta_bytes(9)), (64, 0));
        assert_eq!((of(8).meta_words(), of(2).meta_words()), (1, 2));
    }
}
