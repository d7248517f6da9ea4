//! Llama 1 to 3, SmolLM2, Mistral and the many that share their decoder.

use super::Arch;
use crate::kernel::op::rope::Style;

pub(super) static ARCH: Arch = Arch {
    name: "llama",
    understood: &[],
    switches: |_, config| {
        // Converters permute the query and key rows of these models.
        config.rope_style = Style::Pairs;
        Ok(())
    },
};
