//! GGUF files: everything checked when opened, nothing copied.
//!
//! ```text
//! magic "GGUF" | version u32 | n_tensors u64 | n_kv u64
//! n_kv x      ( key string | type u32 | value )                                 -> Meta
//! n_tensors x ( name string | n_dims u32 | dims u64.. | type u32 | offset u64 ) -> TensorInfo
//! padding to general.alignment | tensor data                                    -> File::data
//! ```
//!
//! Versions 2 and 3, little-endian, whole or split into parts. Opening costs as much as the header is long: no byte
//! of tensor data is read. Whatever the bytes are, opening ends in a [`File`] or an [`Error`] that says what is wrong;
//! no count is believed before it is held against the bytes that are left.

mod cursor;
mod error;
mod header;
mod map;
mod meta;
mod split;
mod tensor;
pub mod write;

use std::path::{Path, PathBuf};

pub use error::{Error, Fault, MetaError, SplitFault, printable};
pub use meta::{Array, Elements, F32s, I64s, Meta, Strings, Value, ValueType};
pub use tensor::TensorInfo;

use map::Map;
use split::{Part, Parts};

/// An open model file, or a whole split set.
pub struct File {
    parts: Vec<Part>,
    missing: Vec<PathBuf>,
    /// All parts' tensors, in part and file order.
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<u32>,
    header_only: bool,
}

impl File {
    /// Opens a file, or from any of its parts a split set. All tensor data must be present.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::assemble(split::complete(Part::open(path, 0, false)?, false)?, false)
    }

    /// As [`File::open`], but tensor data need not be present and is not served: for looking at a download that is
    /// not complete. The header itself must be whole. Parts of a split set may be [missing](File::missing).
    pub fn open_header(path: &Path) -> Result<Self, Error> {
        Self::assemble(split::complete(Part::open(path, 0, true)?, true)?, true)
    }

    /// Reads a file that is already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let part = Part::from_map(Map::from_bytes(bytes), 0, false)?;
        Self::assemble(Parts { found: vec![part], missing: Vec::new() }, false)
    }

    fn assemble(Parts { found: mut parts, missing }: Parts, header_only: bool) -> Result<Self, Error> {
        let mut tensors = Vec::with_capacity(parts.iter().map(|p| p.header.tensors.len()).sum());
        for part in &mut parts {
            tensors.append(&mut part.header.tensors);
        }
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by_key(|&i| tensors[i as usize].name.as_str());
        for pair in by_name.windows(2) {
            let [a, b] = pair else { continue };
            let (a, b) = (&tensors[*a as usize], &tensors[*b as usize]);
            if a.name == b.name {
                let path = parts[a.part.max(b.part)].map.path().to_owned();
                let fault = Fault::DuplicateTensor { tensor: printable(a.name.as_bytes()) };
                return Err(Error::Fault { path, fault });
            }
        }
        Ok(Self { parts, missing, tensors, by_name, header_only })
    }

    fn first(&self) -> &Part {
        // There is always the part that was opened.
        &self.parts[0]
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.first().header.version
    }

    /// The file, of a split set the first part.
    pub fn path(&self) -> &Path {
        self.first().map.path()
    }

    /// The files that make up the model, in order; [`TensorInfo::part`] counts in this list.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.iter().map(|p| p.map.path())
    }

    /// Parts of the split set that were not found; never any after [`File::open`].
    pub fn missing(&self) -> &[PathBuf] {
        &self.missing
    }

    /// Bytes of all parts, as they are.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|p| p.map.len() as u64).sum()
    }

    /// Bytes that all parts found must have for every tensor of a known type to be there. Larger than
    /// [`File::size`] only after [`File::open_header`] of a file that is cut short.
    pub fn expected_size(&self) -> u64 {
        let mut ends: Vec<u64> = self.parts.iter().map(|p| p.map.len() as u64).collect();
        for tensor in &self.tensors {
            ends[tensor.part] = ends[tensor.part].max(tensor.end());
        }
        ends.iter().fold(0, |sum, &end| sum.saturating_add(end))
    }

    /// Bytes from the start of the first part to its tensor data.
    pub fn header_size(&self) -> u64 {
        self.first().header.data_start
    }

    /// What tensor offsets are multiples of.
    pub fn alignment(&self) -> u64 {
        self.first().header.alignment
    }

    /// The metadata, of a split set that of the first part.
    pub fn meta(&self) -> &Meta {
        &self.first().header.meta
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at =
            self.by_name.binary_search_by_key(&name, |&i| self.tensors[i as usize].name.as_str()).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }

    /// Exactly the bytes of one of this file's tensors.
    ///
    /// They lie in the map on a multiple of 8, but of a file that had to be read into memory anywhere: do not count on
    /// alignment.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8], Error> {
        let name = || printable(tensor.name.as_bytes());
        let Some(bytes) = tensor.bytes else {
            return Err(Error::UnknownType { tensor: name(), ty: tensor.ty });
        };
        if self.header_only {
            return Err(Error::HeaderOnly { tensor: name(), ty: tensor.ty });
        }
        let range = usize::try_from(tensor.start).ok().zip(usize::try_from(bytes).ok());
        range
            .and_then(|(start, len)| self.parts.get(tensor.part)?.map.get(start..start.checked_add(len)?))
            .ok_or_else(|| Error::ForeignTensor { tensor: name() })
    }

    /// An error if a file's size is no longer what it was when it was opened. Reading tensor data of a file that was
    /// made shorter ends the process; ask before a piece of work to get a message in its place.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(|p| p.map.check_unchanged())
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("parts", &self.parts().collect::<Vec<_>>())
            .field("keys", &self.meta().len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}
