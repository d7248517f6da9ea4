//! Block geometry of every tensor type a GGUF file can name, whether or not we can compute with it, and of our own.

use std::fmt;

/// The type code of a tensor, as the file stores it (`enum ggml_type`). Any value can occur in a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(pub u32);

/// How a type packs its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The name in ggml's spelling, for example `Q4_K`.
    pub name: &'static str,
    /// Elements in one block.
    pub block: usize,
    /// Bytes in one block.
    pub bytes: usize,
}

impl Geometry {
    /// Bytes of a row of `n` elements, or `None` if `n` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(&self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block) {
            return None;
        }
        (n / self.block).checked_mul(self.bytes)
    }
}

#[expect(
    missing_docs,
    reason = "the constants are the names of the codes: ggml's, but for those from 128 on"
)]
impl GgmlType {
    pub const F32: Self = Self(0);
    pub const F16: Self = Self(1);
    pub const Q4_0: Self = Self(2);
    pub const Q4_1: Self = Self(3);
    pub const Q5_0: Self = Self(6);
    pub const Q5_1: Self = Self(7);
    pub const Q8_0: Self = Self(8);
    pub const Q2_K: Self = Self(10);
    pub const Q3_K: Self = Self(11);
    pub const Q4_K: Self = Self(12);
    pub const Q5_K: Self = Self(13);
    pub const Q6_K: Self = Self(14);
    pub const IQ2_XXS: Self = Self(16);
    pub const IQ2_XS: Self = Self(17);
    pub const IQ3_XXS: Self = Self(18);
    pub const IQ1_S: Self = Self(19);
    pub const IQ4_NL: Self = Self(20);
    pub const IQ3_S: Self = Self(21);
    pub const IQ2_S: Self = Self(22);
    pub const IQ4_XS: Self = Self(23);
    pub const IQ1_M: Self = Self(29);
    pub const BF16: Self = Self(30);
    pub const TQ1_0: Self = Self(34);
    pub const TQ2_0: Self = Self(35);
    pub const MXFP4: Self = Self(39);
    pub const Q4_0S: Self = Self(128);
    pub const Q4_0S_PSY: Self = Self(129);
    pub const Q4_VVC: Self = Self(130);

    /// The geometry, or `None` for a code that names no type (never assigned, or withdrawn).
    pub fn geometry(self) -> Option<Geometry> {
        let (name, block, bytes) = match self.0 {
            0 => ("F32", 1, 4),
            1 => ("F16", 1, 2),
            2 => ("Q4_0", 32, 18),
            3 => ("Q4_1", 32, 20),
            6 => ("Q5_0", 32, 22),
            7 => ("Q5_1", 32, 24),
            8 => ("Q8_0", 32, 34),
            9 => ("Q8_1", 32, 36),
            10 => ("Q2_K", 256, 84),
            11 => ("Q3_K", 256, 110),
            12 => ("Q4_K", 256, 144),
            13 => ("Q5_K", 256, 176),
            14 => ("Q6_K", 256, 210),
            15 => ("Q8_K", 256, 292),
            16 => ("IQ2_XXS", 256, 66),
            17 => ("IQ2_XS", 256, 74),
            18 => ("IQ3_XXS", 256, 98),
            19 => ("IQ1_S", 256, 50),
            20 => ("IQ4_NL", 32, 18),
            21 => ("IQ3_S", 256, 110),
            22 => ("IQ2_S", 256, 82),
            23 => ("IQ4_XS", 256, 136),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            29 => ("IQ1_M", 256, 56),
            30 => ("BF16", 1, 2),
            34 => ("TQ1_0", 256, 54),
            35 => ("TQ2_0", 256, 66),
            39 => ("MXFP4", 32, 17),
            // Ours: far above what ggml assigns.
            128 => ("Q4_0S", 256, 130),
            129 => ("Q4_0S_PSY", 256, 132),
            130 => ("Q4_VVC", 256, 98),
            _ => return None,
        };
        Some(Geometry { name, block, bytes })
    }

    /// Where in a block the f16 lies that scales its minimums (or is its minimum), for the types that have them and run.
    pub fn minimum_at(self) -> Option<usize> {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => Some(2),
            Self::Q2_K => Some(82),
            _ => None,
        }
    }

    /// The name of a code, also for withdrawn types whose geometry is gone.
    pub fn name(self) -> Option<&'static str> {
        self.geometry().map(|g| g.name).or(match self.0 {
            4 => Some("Q4_2 (withdrawn)"),
            5 => Some("Q4_3 (withdrawn)"),
            31 => Some("Q4_0_4_4 (withdrawn)"),
            32 => Some("Q4_0_4_8 (withdrawn)"),
            33 => Some("Q4_0_8_8 (withdrawn)"),
            36 => Some("IQ4_NL_4_4 (withdrawn)"),
            37 => Some("IQ4_NL_4_8 (withdrawn)"),
            38 => Some("IQ4_NL_8_8 (withdrawn)"),
            40 => Some("NVFP4"),
            _ => None,
        })
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "type {}", self.0),
        }
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
