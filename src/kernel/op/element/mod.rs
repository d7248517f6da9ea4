//! The ways in which numbers of the KV cache are stored.

mod block;
mod plain;

pub use block::{BLOCK, Q4_0, Q8_0};
pub use plain::{F16, F32};

use crate::kernel::isa::Simd;

/// A way to store numbers: one by one, or in blocks that share a scale.
pub trait Element: Copy + Send + Sync + 'static {
    /// What memory is made of; all zeros are zeros.
    type Raw: Copy + Default + Send + Sync + 'static;
    /// Numbers that are stored together, so many eights of them.
    type Unit: Copy;
    /// Eights in a unit.
    const EIGHTS: usize;

    /// The memory that `n` numbers take, in `Raw`; `n` is a whole number of blocks.
    fn raw(n: usize) -> usize;
    /// The whole units of a row.
    fn units(row: &[Self::Raw]) -> &[Self::Unit];
    /// Fewer than sixteen numbers as two units, with zeros after them. Blocks leave no such rest.
    fn rest(row: &[Self::Raw]) -> [Self::Unit; 2];
    /// Two eights, each as a unit and its number there, read as f32: exactly what is stored.
    fn load2<S: Simd>(s: S, eights: [(&Self::Unit, usize); 2]) -> S::W;
    /// Stores numbers, which `to` has room for. A number that is not finite does not become one that is.
    fn store<S: Simd>(s: S, x: &[f32], to: &mut [Self::Raw]);
}

/// Reads the numbers of a row back.
#[cfg(test)]
pub fn read<S: Simd, E: Element>(s: S, row: &[E::Raw], n: usize) -> Vec<f32> {
    let eight = |unit: &E::Unit, i: usize| {
        let mut lanes = [0.0; 8];
        s.store(s.halves(E::load2(s, [(unit, i), (unit, i)]))[0], &mut lanes);
        lanes
    };
    let units = E::units(row);
    let mut all: Vec<f32> =
        units.iter().flat_map(|unit| (0..E::EIGHTS).flat_map(move |i| eight(unit, i))).collect();
    if all.len() < n {
        all.extend(E::rest(&row[all.len()..]).iter().flat_map(|unit| eight(unit, 0)));
    }
    all.truncate(n);
    all
}
