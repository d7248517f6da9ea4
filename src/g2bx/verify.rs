//! Every byte held against what was written.

use std::path::Path;
use std::sync::Arc;

use super::{Error, Fault, MAGIC, VERSION, fault_in, legacy, read, version};
use crate::gguf::{File, Map, TensorInfo, printable};

/// Bytes between two looks at whether to go on.
const STEP: usize = 1 << 22;

/// A file that was found whole.
pub struct Verified {
    /// The file.
    pub file: File,
    /// What that means.
    pub checked: Checked,
}

/// Which bytes of a file are proven to be those that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// None: the format has no checksums. Every field of the header was checked.
    Structure,
    /// All: header, every tensor, and the zeros between them.
    All,
}

/// Reads a whole file and checks all that can be. `progress` is told the bytes read so far and says whether to go on.
pub fn verify(path: &Path, progress: impl FnMut(u64) -> bool) -> Result<Verified, Error> {
    verify_map(Map::open(path)?, progress)
}

/// The same of a file that is already in memory.
pub fn verify_bytes(bytes: Vec<u8>) -> Result<Verified, Error> {
    verify_map(Map::from_bytes(bytes), |_| true)
}

fn verify_map(map: Map, mut progress: impl FnMut(u64) -> bool) -> Result<Verified, Error> {
    if !map.starts_with(MAGIC) {
        return Ok(Verified { file: File::from_map(map, false)?, checked: Checked::Structure });
    }
    let map = Arc::new(map);
    let fault = |fault| fault_in(&map, fault);
    let (header, checked) = match version(&map).map_err(fault)? {
        VERSION => {
            let packed = read::parse(&map, false).map_err(fault)?;
            data(&map, &packed, &mut progress)?;
            (packed.header, Checked::All)
        }
        version => {
            let header = legacy::parse(&map).map_err(fault)?;
            let checked = match legacy::whole_sum(&map, version) {
                None => Checked::Structure,
                Some((end, stored)) => {
                    let computed = sum(&map[..end], 0, &mut progress)?;
                    if computed != stored {
                        let (what, to) = ("the file".to_owned(), end as u64);
                        return Err(fault(Fault::Checksum { what, from: 0, to, computed, stored }));
                    }
                    Checked::All
                }
            };
            (header, checked)
        }
    };
    Ok(Verified { file: File::from_header(map, header, false)?, checked })
}

/// Checks the data of version 4: in the order of the file the zeros before each tensor, then the tensor.
fn data(map: &Map, packed: &read::Packed, progress: &mut impl FnMut(u64) -> bool) -> Result<(), Error> {
    let mut order: Vec<(&TensorInfo, u32)> =
        packed.header.tensors.iter().zip(packed.checksums.iter().copied()).collect();
    order.sort_by_key(|(tensor, _)| tensor.offset());
    let mut at = packed.header_end;
    for (tensor, stored) in order {
        let (from, to) = (tensor.offset(), tensor.end());
        padding(map, at, from)?;
        let computed = sum(range(map, from, to), from, progress)?;
        if computed != stored {
            let what = format!("tensor {}", printable(tensor.name.as_bytes()));
            return Err(fault_in(map, Fault::Checksum { what, from, to, computed, stored }));
        }
        at = to.max(at);
    }
    padding(map, at, map.len() as u64)
}

fn padding(map: &Map, from: u64, to: u64) -> Result<(), Error> {
    let bytes = range(map, from, to);
    match bytes.iter().position(|&b| b != 0) {
        None => Ok(()),
        Some(i) => Err(fault_in(map, Fault::Padding { at: from + i as u64, value: bytes[i] })),
    }
}

/// Bytes of a map that its header was checked to have; none for a range that is none.
fn range(map: &Map, from: u64, to: u64) -> &[u8] {
    usize::try_from(from).ok().zip(usize::try_from(to).ok()).and_then(|(a, b)| map.get(a..b)).unwrap_or(&[])
}

/// The checksum of bytes that begin at `from` in the file.
fn sum(bytes: &[u8], from: u64, progress: &mut impl FnMut(u64) -> bool) -> Result<u32, Error> {
    let mut hasher = crc32fast::Hasher::new();
    let mut at = from;
    for part in bytes.chunks(STEP) {
        hasher.update(part);
        at += part.len() as u64;
        if !progress(at) {
            return Err(Error::Stopped);
        }
    }
    Ok(hasher.finalize())
}
