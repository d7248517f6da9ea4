//! The largest memory this process has held.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::Host;

/// The kernel keeps a peak of the total only, so the part that was allocated is sampled: after loading, and every few
/// tokens. One number, as there is one process.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Peaks of this process's resident memory in bytes; 0 where the system does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak {
    /// What the program allocated: buffers and KV cache, not the mapped model file.
    pub anon: u64,
    /// Everything, the touched pages of mapped files included.
    pub total: u64,
}

/// Looks at the allocated memory now.
pub fn sample() {
    ALLOCATED.fetch_max(Host::new().resident().anonymous, Ordering::Relaxed);
}

/// The peaks until now.
pub fn peak() -> Peak {
    let now = Host::new().resident();
    let before = ALLOCATED.fetch_max(now.anonymous, Ordering::Relaxed);
    Peak { anon: before.max(now.anonymous), total: now.peak }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_given_back_was_held() {
        const SIZE: usize = 64 << 20;
        let buffer = vec![1u8; SIZE];
        sample();
        assert!(buffer.iter().step_by(4096).all(|byte| *byte == 1));
        drop(buffer);
        let peak = peak();
        assert!(peak.anon >= SIZE as u64 && peak.total >= SIZE as u64, "{peak:?}");
    }
}
