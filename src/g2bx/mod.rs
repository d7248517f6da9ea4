//! Our own container: a model packed once, in the order in which the kernels read it.
//!
//! [`open`] takes either kind of file and gives the same view of it, a [`gguf::File`](crate::gguf::File): metadata and
//! tensors in GGUF's terms, each tensor with the [layout](crate::kernel::format::Layout) of its blocks. Version 4, specified byte by byte in
//! `docs/G2BX.md`, is read and [written](mod@write); the versions 1 to 3 of an earlier program are read.
//!
//! Opening costs as much as the header is long, and proves by its checksum that the header is what was written. The data
//! have a checksum for each tensor, which only [`verify()`] looks at.

mod error;
pub mod layout;
mod legacy;
mod read;
pub mod verify;
pub mod write;

use std::path::Path;
use std::sync::Arc;

pub use error::{Error, Fault};
pub use verify::verify;

use crate::gguf::{File, Map};

const MAGIC: &[u8; 4] = b"G2BX";
/// The version that is written.
const VERSION: u16 = 4;
/// Bytes before the metadata.
const HEAD: usize = 64;
/// Where in them the checksum lies, up to their end.
const CHECKSUM_AT: usize = 60;
/// What the start of the data is a multiple of.
const PAGE: u64 = 4096;
/// What the start of a tensor is a multiple of.
const ALIGN: u64 = 64;

/// Opens a model file of either kind, told apart by their first bytes. All tensor data must be present.
pub fn open(path: &Path) -> Result<File, Error> {
    from_map(Map::open(path)?, false)
}

/// As [`open`], but tensor data need not be present and is not served. The header itself must be whole.
pub fn open_header(path: &Path) -> Result<File, Error> {
    from_map(Map::open(path)?, true)
}

/// Reads a file that is already in memory.
pub fn from_bytes(bytes: Vec<u8>) -> Result<File, Error> {
    from_map(Map::from_bytes(bytes), false)
}

fn from_map(map: Map, header_only: bool) -> Result<File, Error> {
    if !map.starts_with(MAGIC) {
        return Ok(File::from_map(map, header_only)?);
    }
    let map = Arc::new(map);
    let header = match version(&map).map_err(|fault| fault_in(&map, fault))? {
        VERSION => read::parse(&map, header_only).map(|packed| packed.header),
        _ => legacy::parse(&map),
    };
    let header = header.map_err(|fault| fault_in(&map, fault))?;
    Ok(File::from_header(map, header, header_only)?)
}

/// The version of a file that begins with the magic number.
fn version(bytes: &[u8]) -> Result<u16, Fault> {
    let mut cursor = crate::gguf::Cursor::new(bytes);
    cursor.take(MAGIC.len() as u64, "the magic number")?;
    match u16::from_le_bytes(cursor.array("the version")?) {
        version @ 1..=VERSION => Ok(version),
        version => Err(Fault::Version { version }),
    }
}

fn fault_in(map: &Map, fault: Fault) -> Error {
    Error::Fault { path: map.path().to_owned(), fault }
}
