//! What can be wrong with a model file, one variant a condition.

use std::io;
use std::path::PathBuf;

use thiserror::Error as ThisError;

use super::value::ValueType;
use crate::kernel::format::{self, GgmlType};

/// A file that cannot be opened, or a use of it that cannot be served.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The path does not exist or may not be read.
    #[error("{}: cannot open: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path names something that is no regular file.
    #[error("{}: is {what}, not a model file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// What it is, with its article.
        what: &'static str,
    },
    /// The file is neither mappable nor readable.
    #[error("{}: cannot be mapped or read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file's header breaks a rule of the format.
    #[error("{}: {fault}", path.display())]
    Fault {
        /// The file, of a split set the part.
        path: PathBuf,
        /// The broken rule.
        fault: Fault,
    },
    /// The parts of a split set do not belong together.
    #[error("{}: {fault}", path.display())]
    Split {
        /// The part in which it was noticed.
        path: PathBuf,
        /// What does not fit.
        fault: SplitFault,
    },
    /// The tensor's type code has no known layout.
    #[error(
        "tensor {tensor}: its type is {ty} (code {}), unknown here or withdrawn from the format; convert or quantise the \
         model again, to one of {}",
        ty.0,
        supported()
    )]
    UnknownType {
        /// The tensor's name.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// The file was opened for its header alone.
    #[error("tensor {tensor} ({ty}): only the file's header was opened, its data is not available")]
    HeaderOnly {
        /// The tensor's name.
        tensor: String,
        /// Its type.
        ty: GgmlType,
    },
    /// A tensor description was used with a file it does not come from.
    #[error("tensor {tensor} does not belong to this file")]
    ForeignTensor {
        /// The tensor's name.
        tensor: String,
    },
    /// The file's size changed after it was opened.
    #[error(
        "{}: changed while in use: {now} bytes now, {opened} when it was opened; to update a model write a new file \
         and rename it into place",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Bytes when opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// A metadata value is not what its reader needs.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// A metadata value that is present but not usable.
#[derive(Debug, ThisError)]
pub enum MetaError {
    /// The value has another type.
    #[error("metadata key {key}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
    /// The number does not fit.
    #[error("metadata key {key}: expected {expected}, found {value}")]
    OutOfRange {
        /// The key.
        key: String,
        /// What the reader needs.
        expected: &'static str,
        /// The number in the file.
        value: String,
    },
    /// The string is no text.
    #[error("metadata key {key}: the string is not UTF-8")]
    NotUtf8 {
        /// The key.
        key: String,
    },
}

/// A rule of the format that the header breaks. Names are already made printable.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the fields are the numbers and names of the message above them")]
pub enum Fault {
    /// The first bytes are not those of a GGUF file.
    #[error("not a GGUF file: {what}")]
    NotGguf { what: String },
    /// A big-endian file.
    #[error(
        "a big-endian GGUF file: only little-endian files are supported; convert it with gguf_convert_endian.py"
    )]
    BigEndian,
    /// A version we do not read.
    #[error("GGUF version {version} is not supported: versions 2 and 3 are{}", if *version == 1 { "; convert the model again" } else { "" })]
    Version { version: u32 },
    /// The header runs over the end of the file.
    #[error(
        "the header is cut short: {what} at byte {at} needs {need} bytes but the file has only {size}; an incomplete \
         download, or a damaged file?"
    )]
    Ends { what: &'static str, at: u64, need: u64, size: u64 },
    /// A count cannot be true, given the bytes that are left.
    #[error(
        "{count} {what} declared at byte {at}, which cannot fit in the {left} bytes left; an incomplete download, or a \
         damaged file?"
    )]
    Count { what: &'static str, count: u64, at: u64, left: u64 },
    /// A count is beyond what any model has.
    #[error("{count} {what} declared, at most {limit} are supported")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    /// A name or key of unusable length.
    #[error("{what} of {len} bytes at byte {at}: must be 1 to {limit}")]
    NameLength { what: &'static str, len: u64, at: u64, limit: u64 },
    /// A name, key or string value holds a NUL byte.
    #[error("{what} {name} holds a NUL byte")]
    Nul { what: &'static str, name: String },
    /// A name or key is not UTF-8.
    #[error("{what} {name} is not UTF-8")]
    NotUtf8 { what: &'static str, name: String },
    /// A value type that does not exist.
    #[error("metadata key {key}: unknown value type {code}")]
    ValueType { key: String, code: u32 },
    /// An array of arrays.
    #[error("metadata key {key}: an array of arrays, which is not supported")]
    Nested { key: String },
    /// A truth value other than 0 and 1.
    #[error("metadata key {key}: a bool must be 0 or 1, found {value}")]
    Bool { key: String, value: u8 },
    /// The same key twice.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey { key: String },
    /// A key that the reader itself needs has an unusable value.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// An alignment that is no power of two in range.
    #[error("general.alignment is {value}: must be a power of two from 8 to 1048576")]
    Alignment { value: u64 },
    /// The same tensor twice.
    #[error("tensor {tensor} occurs twice")]
    DuplicateTensor { tensor: String },
    /// A number of dimensions other than 1 to 4.
    #[error("tensor {tensor}: has {n} dimensions, must be 1 to 4")]
    Dimensions { tensor: String, n: u32 },
    /// A dimension of zero, or one above 2^31 - 1.
    #[error("tensor {tensor}: dimension {index} is {dim}, must be 1 to 2147483647")]
    Dimension { tensor: String, index: usize, dim: u64 },
    /// More elements or bytes than a number can hold.
    #[error("tensor {tensor}: dimensions {dims:?} are too large")]
    Overflow { tensor: String, dims: [u64; 4] },
    /// The row length is no multiple of the type's block.
    #[error("tensor {tensor}: rows of {row} elements are no whole number of {ty} blocks of {block}")]
    Row { tensor: String, row: u64, ty: GgmlType, block: usize },
    /// An offset that is no multiple of the alignment.
    #[error("tensor {tensor}: offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned { tensor: String, offset: u64, alignment: u64 },
    /// An offset no file can hold.
    #[error("tensor {tensor}: offset {offset} and size {bytes} are too large for any file")]
    Offset { tensor: String, offset: u64, bytes: u64 },
    /// The tensor data runs over the end of the file.
    #[error(
        "truncated: tensor {tensor} ends at byte {need} but the file has only {size}; an incomplete download? \
         Fetch the file again"
    )]
    Truncated { tensor: String, need: u64, size: u64 },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap { first: String, second: String },
}

/// Parts of a split set that do not make one model.
#[derive(Debug, ThisError)]
#[expect(missing_docs, reason = "the fields are the numbers and names of the message above them")]
pub enum SplitFault {
    /// The name does not tell where the other parts are.
    #[error(
        "split GGUF filename does not follow <prefix>-00001-of-000NN.gguf (this is part {no} of {count}): give the \
         parts their original names; parts joined with cat do not make a model"
    )]
    Name { no: u64, count: u64 },
    /// Parts are not there.
    #[error("{}", list_missing(.count, .missing))]
    Missing { count: u64, missing: Vec<(u64, PathBuf)> },
    /// A part does not say what it must.
    #[error("{key} is {found}, expected {expected}: not a part of the same split set")]
    Differs { key: &'static str, found: String, expected: String },
    /// Numbers that cannot be those of a split set.
    #[error("{key} is {value}, which is not possible for a split set (at most {limit})")]
    Count { key: &'static str, value: u64, limit: u64 },
    /// A key that every part of a split set has.
    #[error("a part of a split set without {key}")]
    NoKey { key: &'static str },
}

fn list_missing(count: &u64, missing: &[(u64, PathBuf)]) -> String {
    const SHOWN: usize = 8;
    let mut text = String::new();
    for (no, path) in missing.iter().take(SHOWN) {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text += &format!("missing or unreadable split GGUF part {}/{count}: {}", no + 1, path.display());
    }
    if missing.len() > SHOWN {
        text += &format!("; and {} more", missing.len() - SHOWN);
    }
    text
}

impl MetaError {
    pub(super) fn wrong_type(
        key: &str,
        expected: &'static str,
        found: ValueType,
        elem: Option<ValueType>,
    ) -> Self {
        let found = match elem {
            Some(elem) => format!("an array of {}", elem.name()),
            None => found.name().to_owned(),
        };
        Self::WrongType { key: printable(key.as_bytes()), expected, found }
    }
}

/// The names of the types that we compute with.
fn supported() -> String {
    format::all().map(|f| f.ty.to_string()).collect::<Vec<_>>().join(", ")
}

/// Bytes of a file as text fit for a terminal: control characters escaped, invalid UTF-8 replaced.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        if c.is_control() || is_direction_mark(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Characters that reorder the text around them: in a terminal they can disguise a name.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_disguise_itself_is_escaped() {
        assert_eq!(printable("blk.0 größe 世界".as_bytes()), "blk.0 größe 世界");
        assert_eq!(printable(b"a\x1b[2J\n\0"), "a\\u{1b}[2J\\n\\u{0}");
        assert_eq!(printable("x\u{202e}y\u{9b}z".as_bytes()), "x\\u{202e}y\\u{9b}z");
        assert_eq!(printable(b"\xff!"), "\u{fffd}!");
    }

    #[test]
    fn an_unknown_type_names_what_is_supported() {
        let error = Error::UnknownType { tensor: "t".to_owned(), ty: GgmlType(4) }.to_string();
        assert!(error.starts_with("tensor t: its type is Q4_2 (withdrawn) (code 4)"), "{error}");
        assert!(error.contains("Q4_0") && error.contains("Q6_K"), "{error}");
    }
}
