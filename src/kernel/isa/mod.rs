//! Instruction sets: which one runs is chosen when the program starts, never when it is compiled.
//!
//! A token type such as [`Avx2`] can only be obtained from a check of the running CPU, so holding one
//! proves that the instructions exist. Arithmetic that is written once for all instruction sets goes
//! through [`Simd`]: eight f32 lanes with separately rounded operations, the same bits everywhere.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod dots;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use dots::Dots;
pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use vnni::{Avx512, AvxVnni, Vnni};

/// Every name `--isa` takes besides `auto`, whether or not this CPU can run it.
const NAMES: [&str; 4] = ["scalar", "avx2", "avxvnni", "avx512"];

/// What begins at a multiple of 64 bytes: the length of a line of the cache and of the longest vectors.
///
/// A local variable of this type has a second use. Vectors for which a function lacks registers are kept in its frame, and
/// the compiler aligns those only where some variable needs it. Otherwise one of them may lie across two pages, and then every
/// time that it is written takes a hundred cycles: in prefill that was a third of the time.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Aligned<T>(pub T);

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: the definition, and the path for CPUs without AVX2.
    Scalar,
    /// AVX2, FMA and F16C, proven present.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// The same and AVX-VNNI: dot products of bytes in 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// The same and AVX-512 with VNNI: dot products of bytes in 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// What [`simd!`](crate::simd) chooses from.
#[derive(Clone, Copy, Debug)]
pub enum Lanes {
    /// Plain Rust.
    Scalar,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512, for what takes two times eight lanes at once.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The fastest set this CPU has.
    pub fn detect() -> Self {
        Self::all().pop().unwrap_or(Self::Scalar)
    }

    /// The set of that name (`scalar`, `avx2`, ...), or an error if it is unknown or this CPU lacks it.
    pub fn by_name(name: &str) -> Result<Self, IsaError> {
        if name == "auto" {
            return Ok(Self::detect());
        }
        match Self::all().into_iter().find(|isa| isa.name() == name) {
            Some(isa) => Ok(isa),
            None if NAMES.contains(&name) => Err(IsaError::Missing { name: name.to_owned() }),
            None => Err(IsaError::Unknown { name: name.to_owned() }),
        }
    }

    /// The name, as `--isa` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }

    /// The implementation of eight f32 lanes that goes with it.
    pub fn lanes(self) -> Lanes {
        match self {
            Self::Scalar => Lanes::Scalar,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => Lanes::Avx2(token),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(token) => Lanes::Avx2(token.avx2()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => Lanes::Avx512(token),
        }
    }

    /// Every set this CPU can run, the definition first and the fastest last.
    pub fn all() -> Vec<Self> {
        #[allow(unused_mut, reason = "stays as it is on CPUs for which we have nothing faster")]
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::detect().map(Self::Avx2));
            all.extend(AvxVnni::detect().map(Self::AvxVnni));
            all.extend(Avx512::detect().map(Self::Avx512));
        }
        all
    }
}

/// Why an instruction set cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsaError {
    /// The name is none of ours.
    #[error("unknown instruction set '{name}': use auto, {}", NAMES.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// The CPU lacks it.
    #[error(
        "this CPU does not have the instruction set '{name}': use --isa auto, which takes the best it has"
    )]
    Missing {
        /// The name that was asked for.
        name: String,
    },
}

/// Eight f32 lanes. Each operation rounds once, to nearest even; nothing is fused or reordered, so an
/// algorithm written with it has the same bits on every instruction set.
pub trait Simd: Copy + Send + Sync {
    /// Eight lanes.
    type V: Copy;

    /// Runs `f` compiled for this instruction set (the closure must be inlined into it: keep its body
    /// in `#[inline(always)]` functions).
    fn vectorize<R>(self, f: impl FnOnce() -> R) -> R;

    /// Asks for the cache line of an address that will probably be read soon; any address is allowed.
    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}

    /// The same for the second-level cache, of what has a while.
    #[inline(always)]
    fn prefetch_far(self, _address: *const u8) {}

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Lanes from memory.
    fn load(self, from: &[f32; 8]) -> Self::V;
    /// Lanes to memory.
    fn store(self, v: Self::V, to: &mut [f32; 8]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: `b` where a lane is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: `b` where a lane is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `|a|`.
    fn abs(self, a: Self::V) -> Self::V;
    /// To the nearest integer, ties to even, as f32.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for lanes that hold integers in [-126, 127].
    fn exp2i(self, n: Self::V) -> Self::V;
    /// `if x is NaN { x } else { v }`, lane by lane: carries a NaN past a clamp.
    fn keep_nan(self, x: Self::V, v: Self::V) -> Self::V;
    /// Exact widening of eight f16 bit patterns, subnormals included.
    fn widen(self, from: &[u16; 8]) -> Self::V;
    /// To f16 bit patterns, nearest even, overflow to infinity.
    fn narrow(self, v: Self::V, to: &mut [u16; 8]);

    /// Vectors to multiply by one that was widened, which leave registers for all sums of theirs that are under way.
    const QUERIES: usize;
    /// Two vectors side by side.
    type W: Copy;
    /// Two vectors.
    fn pair(self, a: Self::V, b: Self::V) -> Self::W;
    /// Two vectors that lie side by side in memory.
    fn load2(self, from: &[[f32; 8]; 2]) -> Self::W;
    /// What [`pair`](Self::pair) put together.
    fn halves(self, w: Self::W) -> [Self::V; 2];
    /// `[v, v]` with `v` from memory.
    fn load_both(self, from: &[f32; 8]) -> Self::W;
    /// All lanes `x`.
    fn splat2(self, x: f32) -> Self::W;
    /// Both halves of `a + b`.
    fn add2(self, a: Self::W, b: Self::W) -> Self::W;
    /// Both halves of `a * b`.
    fn mul2(self, a: Self::W, b: Self::W) -> Self::W;
    /// Eight f16 bit patterns in each half, widened exactly.
    fn widen2(self, low: &[u16; 8], high: &[u16; 8]) -> Self::W;
    /// Eight small integers in each half, as f32.
    fn widen2_i8(self, low: &[i8; 8], high: &[i8; 8]) -> Self::W;

    /// The sum of the lanes in the contract's tree: `s4[i] = v[i] + v[i+4]`, `s2[i] = s4[i] + s4[i+2]`,
    /// `s2[0] + s2[1]`.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut a = [0.0f32; 8];
        self.store(v, &mut a);
        let s = [a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]];
        (s[0] + s[2]) + (s[1] + s[3])
    }

    /// The [sums](Self::sum) of four vectors.
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        [self.sum(v[0]), self.sum(v[1]), self.sum(v[2]), self.sum(v[3])]
    }

    /// The sums of the halves of two vectors.
    #[inline(always)]
    fn sum_halves(self, [ab, cd]: [Self::W; 2]) -> [f32; 4] {
        let ([a, b], [c, d]) = (self.halves(ab), self.halves(cd));
        self.sum4([a, b, c, d])
    }

    /// The same of two vectors each.
    #[inline(always)]
    fn sums<const N: usize>(self, v: [[Self::W; 2]; N]) -> [[f32; 4]; N] {
        let mut sums = [[0.0; 4]; N];
        for (sums, v) in sums.iter_mut().zip(v) {
            *sums = self.sum_halves(v);
        }
        sums
    }

    /// Sixteen lanes that hold integers in [-127, 127] as bytes. Returns their sum.
    #[inline(always)]
    fn codes(self, v: [Self::V; 2], to: &mut [i8; 16]) -> i16 {
        let mut lanes = [[0.0; 8]; 2];
        self.store(v[0], &mut lanes[0]);
        self.store(v[1], &mut lanes[1]);
        let mut sum = 0;
        for (to, x) in to.iter_mut().zip(lanes.as_flattened()) {
            *to = *x as i8;
            sum += i16::from(*to);
        }
        sum
    }
}

/// In an implementation of [`Simd`] without wider vectors: two vectors side by side are two vectors.
macro_rules! two_vectors {
    () => {
        const QUERIES: usize = 3;
        type W = [Self::V; 2];

        #[inline(always)]
        fn pair(self, a: Self::V, b: Self::V) -> Self::W {
            [a, b]
        }
        #[inline(always)]
        fn load2(self, from: &[[f32; 8]; 2]) -> Self::W {
            [self.load(&from[0]), self.load(&from[1])]
        }
        #[inline(always)]
        fn halves(self, w: Self::W) -> [Self::V; 2] {
            w
        }
        #[inline(always)]
        fn load_both(self, from: &[f32; 8]) -> Self::W {
            [self.load(from); 2]
        }
        #[inline(always)]
        fn splat2(self, x: f32) -> Self::W {
            [self.splat(x); 2]
        }
        #[inline(always)]
        fn add2(self, a: Self::W, b: Self::W) -> Self::W {
            [self.add(a[0], b[0]), self.add(a[1], b[1])]
        }
        #[inline(always)]
        fn mul2(self, a: Self::W, b: Self::W) -> Self::W {
            [self.mul(a[0], b[0]), self.mul(a[1], b[1])]
        }
        #[inline(always)]
        fn widen2(self, low: &[u16; 8], high: &[u16; 8]) -> Self::W {
            [self.widen(low), self.widen(high)]
        }
        #[inline(always)]
        fn widen2_i8(self, low: &[i8; 8], high: &[i8; 8]) -> Self::W {
            [self.widen_i8(low), self.widen_i8(high)]
        }
    };
}
use two_vectors;

/// Calls a function that is generic over [`Simd`] with the implementation of an [`Isa`], compiled for it:
/// `simd!(isa, s => rms_norm(s, x, w))`.
#[macro_export]
macro_rules! simd {
    ($isa:expr, $s:ident => $body:expr) => {
        match $isa.lanes() {
            $crate::kernel::isa::Lanes::Scalar => {
                let $s = $crate::kernel::isa::Scalar;
                $crate::kernel::isa::Simd::vectorize(
                    $s,
                    #[inline(always)]
                    || $body,
                )
            }
            #[cfg(target_arch = "x86_64")]
            $crate::kernel::isa::Lanes::Avx2(token) => {
                let $s = token;
                $crate::kernel::isa::Simd::vectorize(
                    $s,
                    #[inline(always)]
                    || $body,
                )
            }
            #[cfg(target_arch = "x86_64")]
            $crate::kernel::isa::Lanes::Avx512(token) => {
                let $s = token;
                $crate::kernel::isa::Simd::vectorize(
                    $s,
                    #[inline(always)]
                    || $body,
                )
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<S: Simd>(s: S, a: [f32; 8], b: [f32; 8]) -> Vec<[u32; 8]> {
        let out = |v: S::V| {
            let mut o = [0.0; 8];
            s.store(v, &mut o);
            o.map(f32::to_bits)
        };
        let (x, y) = (s.load(&a), s.load(&b));
        let mut h = [0u16; 8];
        s.narrow(x, &mut h);
        // Whole numbers in range of every lane.
        let mut codes = [0i8; 16];
        let whole =
            |v: [f32; 8]| s.load(&v.map(|x| if x.abs() < 127.5 { x.round_ties_even() } else { -127.0 }));
        let sum = s.codes([whole(a), whole(b)], &mut codes);
        let codes = codes.map(|c| c as u8 as u32).as_chunks::<8>().0.to_vec();
        let sums = s.sum4([x, y, s.add(x, y), s.splat(1.5)]).map(f32::to_bits);
        let (ab, cd) = (s.pair(x, y), s.pair(s.add(x, y), s.splat(1.5)));
        let wide = s.sums([[ab, cd], [cd, ab], [ab, ab], [cd, cd], [s.mul2(ab, cd), ab]]);
        let both = s.add2(s.mul2(s.pair(x, y), s.load_both(&a)), s.splat2(1.5));
        let [low, high] = s.halves(both);
        let [first, second] = s.halves(s.load2(&[a, b]));
        let [wide_low, wide_high] = s.halves(s.widen2(&h, &[0x3c00; 8]));
        let [some, others] =
            s.halves(s.widen2_i8(&codes[0].map(|c| c as i8), &[-128, 127, -1, 0, 1, 64, -64, 99]));
        let wide = wide.map(|sums| {
            let [a, b, c, d] = sums.map(f32::to_bits);
            [a, b, c, d, 0, 0, 0, 0]
        });
        let rest = vec![
            out(some),
            out(others),
            out(low),
            out(high),
            out(first),
            out(second),
            out(wide_low),
            out(wide_high),
            out(s.add(x, y)),
            out(s.sub(x, y)),
            out(s.mul(x, y)),
            out(s.div(x, y)),
            out(s.max(x, y)),
            out(s.min(x, y)),
            out(s.abs(x)),
            out(s.round(x)),
            out(s.widen(&h)),
            h.map(u32::from),
            out(s.keep_nan(x, y)),
            [s.sum(x).to_bits(); 8],
            [sums[0], sums[1], sums[2], sums[3], 0, 0, 0, sum as u32],
            codes[0],
            codes[1],
        ];
        [&wide[..], &rest].concat()
    }

    #[test]
    fn lanes_agree_on_ordinary_and_extreme_values() {
        let specials = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            2.5,
            3.5,
            -2.5,
            0.499_999_97,
            65504.0,
            65519.99,
            65520.0,
            6.0e-8,
            2.9e-8,
            1e-40,
            f32::MAX,
            f32::MIN_POSITIVE,
            f32::INFINITY,
            f32::NEG_INFINITY,
            8_388_609.0,
            -3.3e9,
        ];
        for &p in &specials {
            for &q in &specials {
                let a = [p, q, -p, -q, p, 1.25, q, 7.5];
                let b = [q, p, p, q, 3.0, -q, 0.1, p];
                let want = run(Scalar, a, b);
                for isa in Isa::all() {
                    let got = simd!(isa, s => run(s, a, b));
                    // A NaN's payload is not part of the contract; that it is NaN is.
                    for (w, g) in want.iter().flatten().zip(got.iter().flatten()) {
                        let nan = |b: u32| f32::from_bits(b).is_nan();
                        assert!(w == g || (nan(*w) && nan(*g)), "{isa:?}: {a:?} {b:?}: {w:08x} {g:08x}");
                    }
                }
            }
        }
    }

    #[test]
    fn f16_conversion_is_exact_for_every_pattern_and_rounds_to_even() {
        for isa in Isa::all() {
            for h in 0..=u16::MAX {
                let mut out = [0.0; 8];
                simd!(isa, s => s.store(s.widen(&[h; 8]), &mut out));
                // The definition of binary16: sign, 5 exponent bits, 10 fraction bits.
                let (sign, exp, frac) = (h >> 15, (h >> 10) & 31, f64::from(h & 1023));
                let magnitude = match exp {
                    0 => frac * 2f64.powi(-24),
                    31 if frac != 0.0 => f64::NAN,
                    31 => f64::INFINITY,
                    e => (1024.0 + frac) * 2f64.powi(i32::from(e) - 25),
                };
                let want = if sign == 1 { -magnitude } else { magnitude };
                assert!(
                    out[0].is_nan() && want.is_nan() || f64::from(out[0]).to_bits() == want.to_bits(),
                    "{h:04x}"
                );
            }
            let mut h = [0u16; 8];
            // Halfway cases: 1 + 2^-11 rounds down to even, 1 + 3*2^-11 up; 65520 overflows.
            let x = [
                1.0 + 2f32.powi(-11),
                1.0 + 3.0 * 2f32.powi(-11),
                65519.0,
                65520.0,
                2f32.powi(-25),
                2f32.powi(-24),
                -1.0,
                3.0e-8,
            ];
            simd!(isa, s => s.narrow(s.load(&x), &mut h));
            assert_eq!(h, [0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0000, 0x0001, 0xbc00, 0x0001], "{isa:?}");
        }
    }

    #[test]
    fn powers_of_two_are_exact() {
        for isa in Isa::all() {
            for n in -126..=127 {
                let mut out = [0.0; 8];
                simd!(isa, s => s.store(s.exp2i(s.splat(n as f32)), &mut out));
                assert_eq!(out, [2f32.powi(n); 8]);
            }
        }
    }

    #[test]
    fn names_round_trip_and_bad_ones_are_refused() {
        for isa in Isa::all() {
            assert_eq!(Isa::by_name(isa.name()), Ok(isa));
        }
        assert!(matches!(Isa::by_name("avx9"), Err(IsaError::Unknown { .. })));
    }
}
