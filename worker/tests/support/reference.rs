//! The numeric contract written down once more, as plainly as can be: what every product must give, to the bit.

use half::f16;
use twinband_protocol::shm::{Activations, Part, Shared};

/// A format under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q8_0 = 8,
    Q4K = 12,
    Q6K = 14,
    Q4_0S = 0x80,
}

pub const ALL: [Format; 7] =
    [Format::Q4_0, Format::F16, Format::Q4_1, Format::Q8_0, Format::Q4K, Format::Q6K, Format::Q4_0S];

impl Format {
    /// Elements and bytes of a block.
    pub fn geometry(self) -> (usize, usize) {
        match self {
            Self::F16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q8_0 => (32, 34),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
            Self::Q4_0S => (256, 130),
        }
    }

    pub fn activations(self) -> Activations {
        match self.geometry().0 {
            1 => Activations::F32,
            block => Activations::Q8 { block: block as u32 },
        }
    }

    /// Where a block's f16 scales are.
    fn scales(self) -> &'static [usize] {
        match self {
            Self::Q4_1 | Self::Q4K => &[0, 2],
            Self::Q6K => &[208],
            _ => &[0],
        }
    }
}

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From -1 up to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A matrix of random codes. Scales of row r are ordinary, subnormal, zero, huge, or a mixture of all, by r.
pub fn matrix(format: Format, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let (block, bytes) = format.geometry();
    let mut data: Vec<u8> = (0..rows * (cols / block) * bytes).map(|_| random.next() as u8).collect();
    let row_bytes = (cols / block * bytes).max(1);
    for (r, row) in data.chunks_exact_mut(row_bytes).enumerate() {
        for b in row.chunks_exact_mut(bytes) {
            let kind = match r % 6 {
                5 => random.next() % 5,
                kind => kind as u64,
            };
            for at in format.scales() {
                let sign = (random.next() as u16 & 1) << 15;
                let scale = match kind {
                    0 | 4 => f16::from_f32(random.unit() * 0.1).to_bits(),
                    1 => sign | (1 + random.next() as u16 % 0x3ff),
                    2 => sign,
                    _ => sign | (0x7bff - random.next() as u16 % 16),
                };
                b[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
    data
}

/// A vector of activations in its form for a format.
pub struct Vector {
    pub codes: Vec<i8>,
    pub scales: Vec<f32>,
    pub floats: Vec<f32>,
}

/// Number `kind` of the vectors that a test goes through: random, all the same, extreme, zero scales, mixed.
pub fn vector(format: Format, cols: usize, kind: usize, random: &mut Random) -> Vector {
    let code = |i: usize, random: &mut Random| match kind % 5 {
        1 => 127,
        2 => [127, -127][i % 2],
        _ => (random.next() % 255) as i8,
    };
    let codes = (0..cols).map(|i| code(i, random).max(-127)).collect();
    let scale = |random: &mut Random| match kind % 5 {
        1 => 2f32.powi(60),
        2 => 2f32.powi(-60),
        3 => 0.0,
        4 => 2f32.powi((random.next() % 121) as i32 - 60),
        _ => random.unit().abs() + 1e-3,
    };
    let scales = (0..cols / format.geometry().0.max(32)).map(|_| scale(random)).collect();
    let floats = (0..cols).map(|_| random.unit() * 2f32.powi((random.next() % 20) as i32 - 10)).collect();
    Vector { codes, scales, floats }
}

impl Vector {
    /// Puts it in a slot of the shared buffer.
    pub fn put(&self, shared: &Shared, slot: u32) {
        if shared.layout().activations == Activations::F32 {
            let bytes: Vec<u8> = self.floats.iter().flat_map(|x| x.to_le_bytes()).collect();
            return shared.write(slot, Part::Codes, &bytes);
        }
        let codes: Vec<u8> = self.codes.iter().map(|c| *c as u8).collect();
        let scales: Vec<u8> = self.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        let sum = |c: &[i8]| c.iter().map(|c| i16::from(*c)).sum::<i16>().to_le_bytes();
        let sums: Vec<u8> = self.codes.chunks_exact(16).flat_map(sum).collect();
        shared.write(slot, Part::Codes, &codes);
        shared.write(slot, Part::Scales, &scales);
        shared.write(slot, Part::Sums, &sums);
    }
}

/// One row by one vector.
pub fn dot(format: Format, row: &[u8], x: &Vector) -> f32 {
    let (block, bytes) = format.geometry();
    if format == Format::F16 {
        let mut lane = [0f32; 8];
        for (i, (w, x)) in row.chunks_exact(2).zip(&x.floats).enumerate() {
            lane[i % 8] += f16::from_le_bytes([w[0], w[1]]).to_f32() * x;
        }
        let four = [0, 1, 2, 3].map(|i: usize| lane[i] + lane[i + 4]);
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
    let mut acc = 0f32;
    for (n, b) in row.chunks_exact(bytes).enumerate() {
        let xs = &x.codes[n * block..][..block];
        let f = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32() * x.scales[n];
        let sum = |weight: &dyn Fn(usize) -> i32| {
            (0..block).map(|i| weight(i) * i32::from(xs[i])).sum::<i32>() as f32
        };
        // Element i of 32s whose low nibbles come first.
        let nibble = |from: usize, i: usize| i32::from(b[from + i % 16] >> (i / 16 * 4) & 15);
        match format {
            Format::Q4_0 => acc += sum(&|i| nibble(2, i) - 8) * f(0),
            Format::Q4_0S => acc += sum(&|i| nibble(2 + i / 32 * 16, i % 32) - 8) * f(0),
            Format::Q8_0 => acc += sum(&|i| i32::from(b[2 + i] as i8)) * f(0),
            Format::Q4_1 => {
                acc += sum(&|i| nibble(4, i)) * f(0);
                acc += sum(&|_| 1) * f(2);
            }
            Format::Q4K => {
                // 16 numbers of six bits: scales, then minimums.
                let p = |i: usize| i32::from(b[4 + i]);
                let scale = |j: usize| if j < 4 { p(j) & 63 } else { p(j + 4) & 15 | p(j - 4) >> 6 << 4 };
                let minimum = |j: usize| if j < 4 { p(j + 4) & 63 } else { p(j + 4) >> 4 | p(j) >> 6 << 4 };
                let code = |i: usize| i32::from(b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
                acc += sum(&|i| scale(i / 32) * code(i)) * f(0);
                acc -= sum(&|i| minimum(i / 32)) * f(2);
            }
            Format::Q6K => {
                let code = |i: usize| {
                    let (half, k, l) = (i / 128, i / 32 % 4, i % 32);
                    let low = b[half * 64 + k % 2 * 32 + l] >> (k / 2 * 4) & 15;
                    let high = b[128 + half * 32 + l] >> (2 * k) & 3;
                    i32::from(low | high << 4) - 32
                };
                acc += sum(&|i| i32::from(b[192 + i / 16] as i8) * code(i)) * f(208);
            }
            Format::F16 => {}
        }
    }
    acc
}
