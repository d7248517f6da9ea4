//! What can be wrong with a G2BX file, one variant a condition.

use std::path::PathBuf;

use thiserror::Error as ThisError;

use crate::gguf;
use crate::kernel::format::GgmlType;

/// A file that cannot be opened or is not what was written.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The file itself, or a GGUF file.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// A G2BX file breaks a rule of the format.
    #[error("{}: {fault}", path.display())]
    Fault {
        /// The file.
        path: PathBuf,
        /// The broken rule.
        fault: Fault,
    },
    /// Whoever asked wants no answer any more.
    #[error("stopped")]
    Stopped,
}

/// A rule of the format that a file breaks. Names are already made printable.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the fields are the numbers and names of the message above them")]
pub enum Fault {
    /// A rule that GGUF has too.
    #[error(transparent)]
    Common(#[from] gguf::Fault),
    /// A version we do not read.
    #[error("G2BX version {version} is not supported: versions 1 to 4 are")]
    Version { version: u16 },
    /// Bytes that are not those that were written.
    #[error(
        "{what} (bytes {from} to {to}) is damaged: its checksum is {computed:08x}, should be {stored:08x}; fetch or pack \
         the file again"
    )]
    Checksum { what: String, from: u64, to: u64, computed: u32, stored: u32 },
    /// The file is shorter than its header says.
    #[error(
        "truncated: it ends at byte {size} but should have {need}; an incomplete download? Fetch the file again"
    )]
    Truncated { need: u64, size: u64 },
    /// The file is longer than its header says.
    #[error("it should end at byte {need} but has {size} bytes: damaged, or something was appended")]
    Longer { need: u64, size: u64 },
    /// A number that cannot be.
    #[error("{what} at byte {at} is {value}: must be {expected}")]
    Field { what: &'static str, at: u64, value: String, expected: String },
    /// A tensor of a type without a known size.
    #[error("tensor {tensor} has {ty} (code {}), which is not known here", ty.0)]
    Type { tensor: String, ty: GgmlType },
    /// A tensor of a layout we do not read.
    #[error(
        "tensor {tensor} has layout {layout}, which is not known here: 0 (rows) and 1 (groups of 8 rows) are"
    )]
    Layout { tensor: String, layout: u32 },
    /// A layout that the type cannot have.
    #[error("tensor {tensor}: {ty} has no blocks that could lie in groups of rows (layout 1)")]
    LayoutOfType { tensor: String, ty: GgmlType },
    /// Bytes between tensors that are not zero.
    #[error("byte {at} is {value}, in padding that is all zeros: the file is damaged")]
    Padding { at: u64, value: u8 },
    /// An architecture that files of before version 4 have and we cannot run.
    #[error(
        "architecture {name} (code {code}) of this old G2BX file is not supported: llama, qwen2 and qwen3 are"
    )]
    Architecture { code: u8, name: &'static str },
    /// An entry of the directory of an old file.
    #[error("slot {index} at byte {at} (role {role}, layer {layer}): {what}")]
    Slot { index: usize, at: u64, role: u8, layer: u16, what: String },
    /// An old file without a tensor that cannot be done without.
    #[error("it has neither an output matrix nor the mark of a model whose embedding serves as one")]
    NoOutput,
    /// The last bytes are not those that end a file.
    #[error("truncated: its last four bytes are not the end mark of version 3; fetch the file again")]
    Trailer,
}
