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

mod column;
mod cursor;
mod error;
mod header;
mod map;
mod meta;
pub mod part_file;
mod split;
mod tensor;
mod value;
pub mod write;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(crate) use column::{Numbers, Texts};
pub(crate) use cursor::Cursor;
pub use error::{Error, Fault, MetaError, SplitFault, printable};
pub(crate) use header::Header;
pub(crate) use map::Map;
pub use meta::Meta;
pub use tensor::TensorInfo;
pub use value::{Array, Elements, F32s, I64s, Strings, Value, ValueType};

use split::{Part, Parts};

/// In which kind of file a model lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// GGUF.
    Gguf,
    /// Our own, see `crate::g2bx`: other bytes around the same metadata and tensors.
    G2bx,
}

impl Container {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "GGUF",
            Self::G2bx => "G2BX",
        }
    }
}

/// An open model file, or a whole split set.
pub struct File {
    parts: Vec<Part>,
    missing: Vec<PathBuf>,
    /// All parts' tensors, in part and file order.
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<u32>,
    header_only: bool,
    /// Made of its data, see [`File::keep`].
    kept: OnceLock<Vec<u8>>,
}

impl File {
    /// Opens a file, or from any of its parts a split set. All tensor data must be present.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_map(Map::open(path)?, false)
    }

    /// As [`File::open`], but tensor data need not be present and is not served: for looking at a download that is
    /// not complete. The header itself must be whole. Parts of a split set may be [missing](File::missing).
    pub fn open_header(path: &Path) -> Result<Self, Error> {
        Self::from_map(Map::open(path)?, true)
    }

    /// [`File::open`] or [`File::open_header`] of a file that is already mapped.
    pub(crate) fn from_map(map: Map, header_only: bool) -> Result<Self, Error> {
        Self::assemble(split::complete(Part::from_map(map, 0, header_only)?, header_only)?, header_only)
    }

    /// A model in another container, whose header was read elsewhere and whose tensors lie in `map`.
    pub(crate) fn from_header(map: Arc<Map>, header: Header, header_only: bool) -> Result<Self, Error> {
        let size = (!header_only).then_some(map.len() as u64);
        let checked = tensor::check_ranges(&header.tensors, size);
        checked.map_err(|fault| Error::Fault { path: map.path().to_owned(), fault })?;
        Self::assemble(Parts { found: vec![Part { map, header }], missing: Vec::new() }, header_only)
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
        Ok(Self { parts, missing, tensors, by_name, header_only, kept: OnceLock::new() })
    }

    fn first(&self) -> &Part {
        // There is always the part that was opened.
        &self.parts[0]
    }

    /// The kind of file.
    pub fn container(&self) -> Container {
        self.first().header.container
    }

    /// The version of the format, of GGUF 2 or 3.
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

    /// Exactly the bytes of one of this file's tensors, in the order that [`TensorInfo::layout`] says.
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

    /// The open file that holds a tensor, to be handed to another process; `None` if the bytes never were a file.
    /// [`TensorInfo::offset`] counts from its start. It shares its reading position with others: read at offsets.
    pub fn part_file(&self, tensor: &TensorInfo) -> Option<std::fs::File> {
        self.parts.get(tensor.part)?.map.file()
    }

    /// The open files of all parts, once more: read at offsets.
    pub fn files(&self) -> Vec<std::fs::File> {
        self.parts.iter().filter_map(|part| part.map.file()).collect()
    }

    /// Gives up the memory of the pages that hold `bytes`, which are some that [`File::data`] gave: what is used again is
    /// read again. With `from_cache` they need not stay in the system's cache either.
    pub fn release(&self, bytes: &[u8], from_cache: bool) {
        let _ = self.parts.iter().any(|part| part.map.release(bytes, from_cache));
    }

    /// Gives up the memory of the header's pages, which the system's cache keeps.
    pub fn release_header(&self) {
        let map = &self.first().map;
        let end = usize::try_from(self.header_size()).map_or(map.len(), |end| end.min(map.len()));
        map.release(&map[..end], false);
    }

    /// Gives up the memory of all pages of the file.
    pub fn release_all(&self, from_cache: bool) {
        for part in &self.parts {
            part.map.release(&part.map, from_cache);
        }
    }

    /// Bytes that are to last as long as the file: those that `make` gives, of the first call that makes any.
    pub(crate) fn keep<E>(&self, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<&[u8], E> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let made = make()?;
        Ok(self.kept.get_or_init(|| made))
    }

    /// Reads the whole file and keeps it in memory.
    ///
    /// # Errors
    /// If the system refuses, mostly for the limit on locked memory; then nothing is locked.
    pub fn lock(&self) -> std::io::Result<()> {
        let locked = self.parts.iter().try_for_each(|part| part.map.lock());
        if locked.is_err() {
            self.parts.iter().for_each(|part| part.map.unlock());
        }
        locked
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format::GgmlType;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    /// Written by the gguf package of PyPI (tests/data/gguf/make.py), so these values come from outside.
    const EVERY: &[u8] = include_bytes!("../../tests/data/gguf/every.gguf");

    #[test]
    fn metadata_of_every_type() -> Outcome {
        let file = File::from_bytes(EVERY.to_vec())?;
        let meta = file.meta();
        assert_eq!((file.version(), meta.len(), file.tensors().len()), (3, 18, 15));
        let scalars = [
            ("general.architecture", Value::Str(b"every")),
            ("t.u8", Value::U8(200)),
            ("t.i8", Value::I8(-100)),
            ("t.u16", Value::U16(60000)),
            ("t.i16", Value::I16(-30000)),
            ("t.u32", Value::U32(4_000_000_000)),
            ("t.i32", Value::I32(-2_000_000_000)),
            ("t.f32", Value::F32(1.5e-7)),
            ("t.bool", Value::Bool(true)),
            ("t.str", Value::Str("grüße, 世界".as_bytes())),
            ("t.u64", Value::U64((1 << 63) + 11)),
            ("t.i64", Value::I64(-(1 << 62) - 7)),
            ("t.f64", Value::F64(-2.5e300)),
        ];
        assert!(meta.iter().take(scalars.len()).eq(scalars));
        assert!(scalars.iter().all(|&(key, value)| meta.get(key) == Some(value)));
        assert!(
            meta.strings("t.strs")?
                .is_some_and(|s| { s.eq([&b"a"[..], b"", b"long enough", "\u{2581}x".as_bytes()]) })
        );
        assert!(meta.i64s("t.ints")?.is_some_and(|v| v.eq([1, -2, 3])));
        assert!(meta.f32s("t.floats")?.is_some_and(|v| v.eq([0.5, -0.25, 1e10])));
        let bools = meta.get("t.bools");
        let Some(Value::Array(bools)) = bools else { return Err("no array".into()) };
        assert!(bools.iter().eq([true, false, true].map(Value::Bool)));
        assert!(meta.i64s("t.bytes")?.is_some_and(|v| v.eq([0, 1, 255])));
        Ok(())
    }

    #[test]
    fn tensors_of_many_types() -> Outcome {
        let file = File::from_bytes(EVERY.to_vec())?;
        // Name, code, dimensions, offset and bytes as the package's own reader gives them.
        let expected: [(&str, u32, &[u64], u64, u64); 15] = [
            ("f32", 0, &[4, 3], 1248, 48),
            ("f16", 1, &[5], 1312, 10),
            ("i32", 26, &[3, 2, 1], 1344, 24),
            ("f64", 28, &[3], 1376, 24),
            ("bf16", 30, &[256, 2], 1408, 1024),
            ("q4_0", 2, &[256, 2], 2432, 288),
            ("q8_0", 8, &[256, 2], 2720, 544),
            ("q5_1", 7, &[256, 2], 3264, 384),
            ("q4_k", 12, &[256, 2], 3648, 288),
            ("q6_k", 14, &[256, 2], 3936, 420),
            ("q8_k", 15, &[256, 2], 4384, 584),
            ("iq4_nl", 20, &[256, 2], 4992, 288),
            ("iq2_xxs", 16, &[256, 2], 5280, 132),
            ("tq1_0", 34, &[256, 2], 5440, 108),
            ("mxfp4", 39, &[256, 2], 5568, 272),
        ];
        for (tensor, (name, code, dims, offset, bytes)) in file.tensors().iter().zip(expected) {
            assert_eq!((tensor.name.as_str(), tensor.ty), (name, GgmlType(code)));
            assert_eq!(&tensor.dims[..tensor.n_dims], dims);
            assert_eq!((tensor.offset(), tensor.bytes()), (offset, Some(bytes)), "{name}");
            assert_eq!(file.tensor(name), Some(tensor));
            if dims.first() == Some(&256) {
                let data = file.data(tensor)?;
                assert!(data.iter().enumerate().all(|(i, &b)| b == (i as u32 * 7 + code) as u8), "{name}");
            }
        }
        let f32s = file.data(&file.tensors()[0])?;
        assert!(f32s.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).eq((0..12u8).map(f32::from)));
        assert_eq!(file.tensor("f3"), None);
        Ok(())
    }

    #[test]
    fn version_2_reads_the_same() -> Outcome {
        let mut bytes = EVERY.to_vec();
        bytes[4] = 2;
        let file = File::from_bytes(bytes)?;
        assert_eq!((file.version(), file.tensors().len()), (2, 15));
        Ok(())
    }

    #[test]
    fn the_file_of_a_tensor_holds_it_at_its_offset() -> Outcome {
        let mut path = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut path, EVERY)?;
        let file = File::open(path.path())?;
        let tensor = file.tensor("q6_k").ok_or("no q6_k")?;
        let part = file.part_file(tensor).ok_or("no file")?;
        let mut bytes = vec![0; file.data(tensor)?.len()];
        std::os::unix::fs::FileExt::read_exact_at(&part, &mut bytes, tensor.offset())?;
        assert_eq!(bytes, file.data(tensor)?);
        let memory = File::from_bytes(EVERY.to_vec())?;
        assert!(memory.part_file(tensor).is_none());
        Ok(())
    }

    #[test]
    fn a_header_alone_lists_but_serves_no_data() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("part.gguf");
        std::fs::write(&path, &EVERY[..1300])?;
        let error = File::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
        let expected =
            "truncated: tensor mxfp4 ends at byte 5840 but the file has only 1300; an incomplete download?";
        assert!(error.contains(expected), "{error}");

        let file = File::open_header(&path)?;
        assert_eq!((file.tensors().len(), file.size(), file.expected_size()), (15, 1300, 5840));
        assert_eq!(file.header_size(), 1248);
        let first = &file.tensors()[0];
        assert!(matches!(file.data(first), Err(Error::HeaderOnly { .. })));
        Ok(())
    }

    #[test]
    fn an_unknown_type_is_refused_at_use_only() -> Outcome {
        let name = b"q5_1";
        let at = EVERY.windows(4).position(|w| w == name).ok_or("no q5_1")? + 4 + 4 + 2 * 8;
        for (code, expected) in
            [(200, "type 200 (code 200)"), (4, "Q4_2 (withdrawn)"), (5, "Q4_3"), (31, "Q4_0_4_4")]
        {
            let mut bytes = EVERY.to_vec();
            bytes[at] = code;
            let file = File::from_bytes(bytes)?;
            let odd = file.tensor("q5_1").ok_or("not listed")?;
            assert_eq!(odd.bytes(), None);
            let error = file.data(odd).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("tensor q5_1") && error.contains(expected), "{error}");
            // Those after it are where they were.
            let next = file.tensor("q4_k").ok_or("not listed")?;
            assert_eq!((next.offset(), file.data(next)?.len(), file.data(next)?[0]), (3648, 288, 12));
        }
        Ok(())
    }
}
