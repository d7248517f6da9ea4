//! Qwen 2 and 2.5: the plain decoder with biases on query, key and value.

use super::Arch;

pub(super) static ARCH: Arch = Arch {
    name: "qwen2",
    understood: &[],
    switches: |_, config| {
        config.ffn_scales = false;
        Ok(())
    },
};
