//! One file's header, from the magic number to the end of the tensor directory.

use std::sync::Arc;

use super::Container;
use super::cursor::Cursor;
use super::error::{Fault, printable};
use super::map::Map;
use super::meta::Meta;
use super::tensor::{self, TensorInfo};

/// The smallest file: magic, version and two counts.
const MIN_BYTES: usize = 24;
/// More metadata keys or tensors than any model has.
pub(super) const COUNT_LIMIT: u64 = 100_000;
pub(super) const MAGIC: &[u8; 4] = b"GGUF";
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// Whether `alignment` may be used: a power of two from 8 to 2^20.
///
/// The format asks for a multiple of 8, other readers for a power of two. Taking both (so 24 is refused, as it is
/// elsewhere) means that tensor data always lies on a multiple of 8 in the file. The upper bound keeps a damaged
/// number from passing as padding.
pub(super) fn alignment_is_valid(alignment: u64) -> bool {
    alignment.is_power_of_two() && (8..=1 << 20).contains(&alignment)
}

/// What a header says; other containers say it in these terms too.
pub(crate) struct Header {
    pub container: Container,
    pub version: u32,
    pub alignment: u64,
    pub meta: Meta,
    /// In file order; offsets count from the start of the file.
    pub tensors: Vec<TensorInfo>,
    /// Where the tensor data starts.
    pub data_start: u64,
}

impl Header {
    /// Reads the header of part number `part`. With `header_only` the file may end before its tensor data does.
    pub fn parse(map: &Arc<Map>, part: usize, header_only: bool) -> Result<Self, Fault> {
        if !map.starts_with(MAGIC) {
            return Err(Fault::NotGguf { what: describe(map) });
        }
        if map.len() < MIN_BYTES {
            let (need, size) = (MIN_BYTES as u64, map.len() as u64);
            return Err(Fault::Ends { what: "the file header", at: 0, need, size });
        }
        let mut cursor = Cursor::new(map);
        cursor.take(MAGIC.len() as u64, "the magic number")?;
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            v if v != 0 && v & 0xffff == 0 => return Err(Fault::BigEndian),
            version => return Err(Fault::Version { version }),
        }
        let n_tensors = TensorInfo::count(&mut cursor)?;
        let n_kv = Meta::count(&mut cursor)?;

        let meta = Meta::parse(map, &mut cursor, n_kv)?;
        let alignment = meta
            .unsigned("general.alignment", u64::MAX, "a power of two from 8 to 1048576")?
            .unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment_is_valid(alignment) {
            return Err(Fault::Alignment { value: alignment });
        }

        let mut tensors = Vec::with_capacity(n_tensors);
        for _ in 0..n_tensors {
            tensors.push(TensorInfo::parse(&mut cursor, part)?);
        }
        // The header lies in memory, so this cannot overflow.
        let data_start = (cursor.at() as u64).next_multiple_of(alignment);
        for tensor in &mut tensors {
            tensor.place(data_start, alignment)?;
        }
        tensor::check_ranges(&tensors, (!header_only).then_some(map.len() as u64))?;
        Ok(Self { container: Container::Gguf, version, alignment, meta, tensors, data_start })
    }
}

pub(super) fn limited(count: usize, what: &'static str) -> Result<usize, Fault> {
    if count as u64 > COUNT_LIMIT {
        return Err(Fault::TooMany { what, count: count as u64, limit: COUNT_LIMIT });
    }
    Ok(count)
}

/// Says what a file is that is no GGUF file, so that the user sees the mistake at once.
fn describe(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(256)];
    let text = head.trim_ascii_start().to_ascii_lowercase();
    let starts = |prefixes: &[&[u8]]| prefixes.iter().any(|p| head.starts_with(p));
    let what = if head.is_empty() {
        "it is empty; an interrupted download?"
    } else if head.iter().all(|&b| b == 0) {
        "it begins with zeros only; an interrupted download?"
    } else if head.starts_with(b"version https://git-lfs") {
        "it is a Git-LFS pointer, a note of where the model is: fetch the file itself with `git lfs pull`"
    } else if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") {
        "it is an HTML page: the download saved a web page in place of the model"
    } else if starts(&[b"PK\x03\x04", b"PK\x05\x06"]) {
        "it is a zip archive (PyTorch checkpoints are too): unpack or convert it"
    } else if starts(&[b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf"]) {
        "it is a compressed file: unpack it"
    } else if is_safetensors(bytes) {
        "it is a safetensors file: convert it to GGUF"
    } else if starts(&[b"G2BX"]) {
        "it is a G2BX file where a GGUF file was asked for: `twinband unpack` makes one of it"
    } else if starts(&[b"tjgg", b"lmgg", b"fmgg", b"algg"]) {
        "it is a GGML file from before GGUF: convert the model again"
    } else if starts(&[b"FUGG"]) {
        "its magic number is reversed"
    } else if MAGIC.starts_with(head) {
        "it is cut off within the magic number; an interrupted download?"
    } else {
        return format!("it begins with \"{}\"", printable(&head[..head.len().min(24)]));
    };
    what.to_owned()
}

/// A safetensors file begins with the length of a JSON object (u64) and the object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((len, json)) = bytes.split_first_chunk::<8>() else { return false };
    u64::from_le_bytes(*len) < 1 << 32 && json.first() == Some(&b'{')
}
