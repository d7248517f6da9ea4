//! Qwen 3 without experts: query and key heads are normalised.

use super::Arch;

pub(super) static ARCH: Arch = Arch {
    name: "qwen3",
    understood: &[],
    switches: |_, config| {
        config.qk_norm = true;
        Ok(())
    },
};
