//! Which memory type a buffer should lie in. Arithmetic only; `heap.rs` allocates.

use ash::vk::MemoryPropertyFlags as Flags;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Written once by a copy, read by every job.
    Weights,
    /// Written by the CPU for every job, read by the shaders.
    Input,
    /// Written by the CPU, copied from.
    Staging,
    /// Written by the shaders, read by the CPU.
    Output,
}

/// The types that a buffer may lie in, best first. `flags` are the device's types in order, `allowed` has bit i set if
/// type i may hold the buffer.
pub(super) fn order(flags: &[Flags], allowed: u32, usage: Use) -> Vec<u32> {
    let mut types: Vec<(u32, u32)> = flags
        .iter()
        .take(32)
        .enumerate()
        .map(|(i, f)| (i as u32, *f))
        .filter(|(i, _)| allowed >> i & 1 == 1)
        .filter_map(|(i, f)| Some((i, score(f, usage)?)))
        .collect();
    // Stable: among equals the driver's own order decides, as the specification wants it.
    types.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
    types.into_iter().map(|(i, _)| i).collect()
}

fn score(flags: Flags, usage: Use) -> Option<u32> {
    // Types that need a feature to be used at all, or are not memory in the ordinary sense.
    let special = Flags::PROTECTED
        | Flags::LAZILY_ALLOCATED
        | Flags::DEVICE_COHERENT_AMD
        | Flags::DEVICE_UNCACHED_AMD
        | Flags::RDMA_CAPABLE_NV;
    if flags.intersects(special) {
        return None;
    }
    let has = |f: Flags, points: u32| if flags.contains(f) { points } else { 0 };
    let lacks = |f: Flags, points: u32| points - has(f, points);
    let (local, visible) = (Flags::DEVICE_LOCAL, Flags::HOST_VISIBLE);
    let (coherent, cached) = (Flags::HOST_COHERENT, Flags::HOST_CACHED);
    if usage != Use::Weights && !flags.contains(visible) {
        return None;
    }
    Some(match usage {
        // The part of the device's memory that the CPU reaches may be small: leave it to others.
        Use::Weights => has(local, 2) + lacks(visible, 1),
        Use::Input => has(local, 2) + has(coherent, 1),
        Use::Staging => lacks(local, 2) + has(coherent, 1),
        // The CPU reads uncached memory a hundred times slower; that outweighs an explicit invalidation.
        Use::Output => has(cached, 4) + lacks(local, 2) + has(coherent, 1),
    })
}

/// Rounds a range of mapped memory out to whole atoms, for flushing and invalidating; never beyond `end`.
pub(super) fn whole_atoms(offset: u64, size: u64, atom: u64, end: u64) -> (u64, u64) {
    let atom = atom.max(1);
    let from = offset / atom * atom;
    let to = (offset.saturating_add(size)).div_ceil(atom).saturating_mul(atom).min(end);
    (from, to.saturating_sub(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types of real devices: bits 1 device-local, 2 host-visible, 4 coherent, 8 cached.
    fn table(bits: &[u32]) -> Vec<Flags> {
        bits.iter().map(|b| Flags::from_raw(*b)).collect()
    }

    #[test]
    fn choices_on_known_devices() {
        // name, types, first choice for weights, input, staging, output
        let devices: [(&str, &[u32], [u32; 4]); 8] = [
            ("NVIDIA", &[0x0, 0x1, 0x6, 0xe, 0x7], [1, 4, 2, 3]),
            ("NVIDIA before resizable BAR", &[0x0, 0x1, 0x6, 0xe], [1, 2, 2, 3]),
            ("RADV", &[0x1, 0x1, 0x6, 0x7, 0x7, 0xe, 0xe, 0xc7, 0xce], [0, 3, 2, 5]),
            ("RADV without BAR", &[0x1, 0x6, 0xe, 0xc1, 0xc6, 0xce], [0, 1, 1, 2]),
            ("Intel integrated", &[0x1, 0x7, 0xf], [0, 1, 1, 2]),
            ("ARM, cached memory not coherent", &[0x7, 0xb, 0xf], [0, 0, 0, 2]),
            ("V3D", &[0x7], [0, 0, 0, 0]),
            ("lavapipe", &[0xf], [0, 0, 0, 0]),
        ];
        for (name, bits, want) in devices {
            let first = |usage| order(&table(bits), u32::MAX, usage).first().copied();
            let got = [Use::Weights, Use::Input, Use::Staging, Use::Output].map(first);
            assert_eq!(got, want.map(Some), "{name}");
        }
    }

    #[test]
    fn only_allowed_and_usable_types_are_offered() {
        let types = table(&[0x1, 0x6, 0xe, 0x21, 0xc7]);
        assert_eq!(order(&types, 0b00110, Use::Weights), [1, 2]);
        assert_eq!(order(&types, 0b00001, Use::Output), Vec::<u32>::new());
        assert_eq!(order(&types, u32::MAX, Use::Weights), [0, 1, 2]);
        assert_eq!(order(&types, 0, Use::Weights), Vec::<u32>::new());
        assert_eq!(order(&table(&[0xf; 40]), u32::MAX, Use::Input).len(), 32);
        // Not cached, not coherent: still usable.
        assert_eq!(order(&table(&[0x2]), 1, Use::Output), [0]);
    }

    #[test]
    fn flushed_ranges_are_whole_atoms() {
        assert_eq!(whole_atoms(0, 10, 64, 1000), (0, 64));
        assert_eq!(whole_atoms(100, 100, 64, 1000), (64, 192));
        assert_eq!(whole_atoms(990, 10, 64, 1000), (960, 40));
        assert_eq!(whole_atoms(5, 5, 0, 10), (5, 5));
        assert_eq!(whole_atoms(0, u64::MAX, 64, 1000), (0, 1000));
    }
}
