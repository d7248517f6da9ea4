//! Mistral 3: the Llama decoder, with YaRN in longer ones.

use super::Arch;
use crate::kernel::op::rope::Style;

pub(super) static ARCH: Arch = Arch {
    name: "mistral3",
    understood: &[],
    switches: |_, config| {
        config.rope_style = Style::Pairs;
        Ok(())
    },
};
