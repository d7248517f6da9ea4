//! A block's numbers as a search takes them: in a unit of their own, and with what an error of each counts.

/// Numbers as multiples of a power of two, such that the largest is near 1 and no square under- or overflows; and scales
/// as f16 numbers hold them.
#[derive(Clone, Copy)]
pub(super) struct Unit(f32);

impl Unit {
    /// The unit of these numbers; `None` if all are 0, or too small for an f32 of full precision.
    pub fn of(x: &[f32]) -> Option<Self> {
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let unit = f32::from_bits(largest.to_bits() & f32::INFINITY.to_bits());
        (unit > 0.0).then_some(Self(unit))
    }

    /// A number as a multiple of the unit. An f16 is divided exactly.
    pub fn value(self, x: f32) -> f32 {
        x / self.0
    }

    /// The nearest f16 to a scale.
    pub fn rounded(self, d: f32) -> half::f16 {
        half::f16::from_f32(d * self.0)
    }

    /// The nearest f16 to a scale, but not 0, which would leave no choice; `None` if it is infinite.
    pub fn f16(self, d: f32) -> Option<half::f16> {
        let rounded = self.rounded(d);
        let least = half::f16::from_bits(1 | rounded.to_bits() & 0x8000);
        let rounded = if rounded.to_bits() & 0x7fff == 0 { least } else { rounded };
        rounded.is_finite().then_some(rounded)
    }
}

/// How much an element's error counts beside its size: the mean square of its block times this, plus its own square. Large
/// weights carry more of what a model has learnt than their number says: on SmolLM2-135M, against errors that all count
/// alike, the divergence from the parent fell by 30 % (Q4_0S, with 1 and with 3 here), 7 % (Q3_K, the same) and 2 % (IQ4_NL,
/// with 2). With less than 1, errors of ordinary elements grow faster than those of large ones fall.
const EVEN: f32 = 2.0;

/// Numbers and weights of a block in `B` sub-blocks of `N`.
pub(super) struct Block<const N: usize, const B: usize> {
    pub unit: Unit,
    /// In the unit.
    pub x: [[f32; N]; B],
    /// What an error counts.
    pub w: [[f32; N]; B],
}

impl<const N: usize, const B: usize> Block<N, B> {
    /// `None` if all numbers are 0, or as good as that.
    pub fn new(x: &[f32], importance: Option<&[f32]>) -> Option<Self> {
        let unit = Unit::of(x)?;
        let mut block = Self { unit, x: [[0.0; N]; B], w: [[0.0; N]; B] };
        let mut power = 0.0;
        for (to, from) in block.x.as_flattened_mut().iter_mut().zip(x) {
            *to = unit.value(*from);
            power += *to * *to;
        }
        let even = EVEN * power / x.len() as f32;
        for (w, x) in block.w.as_flattened_mut().iter_mut().zip(block.x.as_flattened()) {
            *w = even + x * x;
        }
        if let Some(importance) = importance {
            // How much a weight matters is known now, so its size says less: with the root the divergence from the parent was
            // 1 to 10 % lower (IQ4_NL, and the mixture Q2_K, on SmolLM2-135M and Gemma 3 270M).
            for (w, i) in block.w.as_flattened_mut().iter_mut().zip(importance) {
                *w = w.sqrt() * i;
            }
        }
        Some(block)
    }
}
