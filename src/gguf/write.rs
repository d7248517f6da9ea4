//! Writing GGUF version 3.
//!
//! A [`Writer`] collects metadata and the tensor directory; [`Writer::begin`] writes them and returns a
//! [`DataWriter`] that takes the tensors' bytes in the same order, whole or in parts, so that little need be in memory.

use std::collections::HashSet;
use std::io::{self, Write};

use thiserror::Error as ThisError;

use super::error::Fault;
use super::header::{DEFAULT_ALIGNMENT, MAGIC, alignment_is_valid};
use super::value::{Value, ValueType};
use crate::kernel::format::GgmlType;

/// Why a file cannot be written.
#[derive(Debug, ThisError)]
pub enum WriteError {
    /// The system refused.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
    /// The same key twice.
    #[error("metadata key {0} occurs twice")]
    DuplicateKey(String),
    /// The same tensor twice.
    #[error("tensor {0} occurs twice")]
    DuplicateTensor(String),
    /// Not a power of two from 8 to 2^20.
    #[error("general.alignment is {0}: must be a power of two from 8 to 1048576")]
    Alignment(u64),
    /// The type has no known layout, the row is no whole number of blocks, or the size overflows.
    #[error("tensor {name}: no size for type {ty} and dimensions {dims:?}")]
    Layout {
        /// The tensor.
        name: String,
        /// Its type.
        ty: GgmlType,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// The bytes given for a tensor are not as many as it has.
    #[error("tensor {name}: given {given} bytes, has {size}")]
    Size {
        /// The tensor.
        name: String,
        /// Bytes given.
        given: u64,
        /// Bytes it has.
        size: u64,
    },
    /// A key, string or name that no reader takes.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// More data than tensors, or less.
    #[error("data of {given} tensors given, the directory has {expected}")]
    Count {
        /// Tensors given.
        given: usize,
        /// Tensors declared.
        expected: usize,
    },
}

/// The key that names the type of most tensors.
pub const FILE_TYPE: &str = "general.file_type";

/// The code that llama.cpp gives in [`FILE_TYPE`] to files mostly of this type; of some types it has none.
pub fn file_type(ty: GgmlType) -> Option<u32> {
    use GgmlType as T;
    Some(match ty {
        T::F32 => 0,
        T::F16 => 1,
        T::Q4_0 => 2,
        T::Q4_1 => 3,
        T::Q8_0 => 7,
        T::Q5_0 => 8,
        T::Q5_1 => 9,
        T::Q2_K => 10,
        T::Q3_K => 11,
        T::Q4_K => 14,
        T::Q5_K => 16,
        T::Q6_K => 18,
        T::IQ4_NL => 25,
        T::IQ4_XS => 30,
        T::BF16 => 32,
        _ => return None,
    })
}

/// Metadata and directory of a file to be written.
pub struct Writer {
    alignment: u64,
    keys: HashSet<String>,
    duplicate: Option<String>,
    meta: Vec<u8>,
    tensors: Vec<Planned>,
}

/// A tensor of the directory.
pub(crate) struct Planned {
    pub name: String,
    /// The row length first.
    pub dims: Vec<u64>,
    pub ty: GgmlType,
    /// Bytes.
    pub size: u64,
}

impl Planned {
    /// Its entry in the directory, which other containers begin theirs with.
    pub fn put(&self, offset: u64, out: &mut Vec<u8>) {
        put_str(out, self.name.as_bytes());
        out.extend((self.dims.len() as u32).to_le_bytes());
        out.extend(self.dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(self.ty.0.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }

    /// It ends where no file does.
    pub fn too_large(&self) -> WriteError {
        WriteError::Layout { name: self.name.clone(), ty: self.ty, dims: self.dims.clone() }
    }

    pub fn odd_size(&self, given: u64) -> WriteError {
        WriteError::Size { name: self.name.clone(), given, size: self.size }
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// A file without keys and tensors.
    pub fn new() -> Self {
        Self {
            alignment: DEFAULT_ALIGNMENT,
            keys: HashSet::new(),
            duplicate: None,
            meta: Vec::new(),
            tensors: Vec::new(),
        }
    }

    fn key(&mut self, key: &str, ty: ValueType) -> &mut Vec<u8> {
        if !self.keys.insert(key.to_owned()) {
            self.duplicate.get_or_insert_with(|| key.to_owned());
        }
        put_str(&mut self.meta, key.as_bytes());
        self.meta.extend((ty as u32).to_le_bytes());
        &mut self.meta
    }

    fn array(&mut self, key: &str, elem: ValueType, len: usize) -> &mut Vec<u8> {
        let out = self.key(key, ValueType::Array);
        out.extend((elem as u32).to_le_bytes());
        out.extend((len as u64).to_le_bytes());
        out
    }

    /// Adds a value read from another file, bit for bit, or any scalar. The key `general.alignment` also sets the
    /// alignment of the file.
    pub fn value(&mut self, key: &str, value: Value<'_>) -> &mut Self {
        if key == "general.alignment" {
            // A value that is no alignment is refused by `begin`.
            self.alignment = value.integer().and_then(|v| u64::try_from(v).ok()).unwrap_or(0);
        }
        if let Value::Array(array) = value {
            self.array(key, array.ty(), array.len()).extend(array.bytes());
            return self;
        }
        let out = self.key(key, value.ty());
        match value {
            Value::U8(v) => out.push(v),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(v.into()),
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
            Value::Str(s) => put_str(out, s),
            Value::Array(_) => {}
        }
        self
    }

    /// Adds a u32.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.value(key, Value::U32(value))
    }

    /// Adds an f32.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.value(key, Value::F32(value))
    }

    /// Adds a bool.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, Value::Bool(value))
    }

    /// Adds a string.
    pub fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, Value::Str(value.as_bytes()))
    }

    /// Adds an array of strings.
    pub fn strings<S: AsRef<[u8]>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        let out = self.array(key, ValueType::Str, values.len());
        for value in values {
            put_str(out, value.as_ref());
        }
        self
    }

    /// Adds an array of f32.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.array(key, ValueType::F32, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Adds an array of u32.
    pub fn u32s(&mut self, key: &str, values: &[u32]) -> &mut Self {
        self.array(key, ValueType::U32, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Adds an array of i32.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.array(key, ValueType::I32, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self
    }

    /// Adds an array of bool.
    pub fn bools(&mut self, key: &str, values: &[bool]) -> &mut Self {
        self.array(key, ValueType::Bool, values.len()).extend(values.iter().map(|&v| u8::from(v)));
        self
    }

    /// Adds a tensor of `dims` elements, the row length first, to the directory.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: GgmlType) -> Result<&mut Self, WriteError> {
        let layout = || WriteError::Layout { name: name.to_owned(), ty, dims: dims.to_vec() };
        if self.tensors.iter().any(|t| t.name == name) {
            return Err(WriteError::DuplicateTensor(name.to_owned()));
        }
        let (&row, rest) = dims.split_first().filter(|_| dims.len() <= 4).ok_or_else(layout)?;
        let row_bytes = usize::try_from(row).ok().and_then(|row| ty.geometry()?.row_bytes(row));
        let size = row_bytes.and_then(|n| rest.iter().try_fold(n as u64, |n, &d| n.checked_mul(d)));
        let size = size.filter(|&size| size > 0).ok_or_else(layout)?;
        self.tensors.push(Planned { name: name.to_owned(), dims: dims.to_vec(), ty, size });
        Ok(self)
    }

    /// The entries of the metadata one after the other, and how many.
    pub(crate) fn metadata(&self) -> Result<(&[u8], usize), WriteError> {
        match &self.duplicate {
            Some(key) => Err(WriteError::DuplicateKey(key.clone())),
            None => Ok((&self.meta, self.keys.len())),
        }
    }

    /// The tensors in order.
    pub(crate) fn tensors(&self) -> &[Planned] {
        &self.tensors
    }

    /// Bytes of the header with its padding.
    fn header(&self) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::with_capacity(self.meta.len() + 128 * self.tensors.len() + 64);
        out.extend(MAGIC);
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        out.extend(&self.meta);
        let mut offset = 0u64;
        for t in &self.tensors {
            t.put(offset, &mut out);
            offset = offset
                .checked_add(t.size)
                .and_then(|end| end.checked_next_multiple_of(self.alignment))
                .ok_or_else(|| t.too_large())?;
        }
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        }
        Ok(out)
    }

    /// Writes header and directory.
    pub fn begin<W: Write>(self, mut out: W) -> Result<DataWriter<W>, WriteError> {
        self.metadata()?;
        if !alignment_is_valid(self.alignment) {
            return Err(WriteError::Alignment(self.alignment));
        }
        out.write_all(&self.header()?)?;
        Ok(DataWriter {
            out,
            alignment: self.alignment,
            tensors: self.tensors,
            next: 0,
            filled: 0,
            padding: 0,
        })
    }
}

/// Takes the tensors' bytes.
pub struct DataWriter<W> {
    out: W,
    alignment: u64,
    tensors: Vec<Planned>,
    next: usize,
    /// Bytes of the next tensor that are already written.
    filled: u64,
    /// Zeros due before the next tensor; none follow the last.
    padding: u64,
}

impl<W: Write> DataWriter<W> {
    /// Writes the next tensor of the directory.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<&mut Self, WriteError> {
        if let Some(tensor) = self.tensors.get(self.next) {
            let given = self.filled + bytes.len() as u64;
            if self.filled > 0 || given != tensor.size {
                return Err(tensor.odd_size(given));
            }
        }
        self.part(bytes)
    }

    /// Writes some more bytes of the next tensor of the directory, for tensors that are too large to hold. A part does
    /// not reach beyond its tensor.
    pub fn part(&mut self, bytes: &[u8]) -> Result<&mut Self, WriteError> {
        let expected = self.tensors.len();
        let tensor =
            self.tensors.get(self.next).ok_or(WriteError::Count { given: self.next + 1, expected })?;
        let given = self.filled + bytes.len() as u64;
        if given > tensor.size {
            return Err(tensor.odd_size(given));
        }
        if self.filled == 0 {
            put_zeros(&mut self.out, self.padding)?;
            self.padding = 0;
        }
        self.out.write_all(bytes)?;
        self.filled = given;
        if given == tensor.size {
            self.padding = tensor.size.next_multiple_of(self.alignment) - tensor.size;
            self.next += 1;
            self.filled = 0;
        }
        Ok(self)
    }

    /// Flushes and returns what was written to; an error if tensors are missing.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(tensor) = self.tensors.get(self.next).filter(|_| self.filled > 0) {
            return Err(tensor.odd_size(self.filled));
        }
        if self.next != self.tensors.len() {
            return Err(WriteError::Count { given: self.next, expected: self.tensors.len() });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn put_str(out: &mut Vec<u8>, s: &[u8]) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s);
}

pub(crate) fn put_zeros(out: &mut impl Write, n: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), n), out).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::File;
    use super::*;

    #[test]
    fn what_is_written_is_read_back() -> Result<(), Box<dyn std::error::Error>> {
        for alignment in [8, 32, 64, 4096] {
            let mut writer = Writer::new();
            writer.u32("general.alignment", alignment).str("name", "x");
            writer.tensor("a", &[3], GgmlType::F32)?.tensor("b", &[32, 2], GgmlType::Q8_0)?;
            let (a, b) = (vec![1; 12], vec![2; 68]);
            let mut data = writer.begin(Vec::new())?;
            data.tensor(&a)?.tensor(&b)?;
            let file = File::from_bytes(data.finish()?)?;
            assert_eq!((file.version(), file.alignment()), (3, alignment.into()));
            let tensor = |name: &str| file.tensor(name).expect("it was written");
            assert_eq!(file.data(tensor("a"))?, a);
            assert_eq!(file.data(tensor("b"))?, b);
            assert_eq!(tensor("b").offset() % u64::from(alignment), 0);
            // No padding after the last tensor.
            assert_eq!(file.size(), tensor("b").offset() + 68);
        }
        Ok(())
    }

    #[test]
    fn parts_give_the_same_file_as_whole_tensors() -> Result<(), Box<dyn std::error::Error>> {
        let writer = || -> Result<_, WriteError> {
            let mut writer = Writer::new();
            writer.tensor("a", &[3], GgmlType::F32)?.tensor("b", &[32, 2], GgmlType::Q8_0)?;
            writer.begin(Vec::new())
        };
        let (a, b) = ([1; 12], [2; 68]);
        let mut whole = writer()?;
        whole.tensor(&a)?.tensor(&b)?;
        let mut parts = writer()?;
        parts.part(&a[..5])?.part(&a[5..])?.part(&b[..1])?.part(&[])?.part(&b[1..])?;
        assert_eq!(parts.finish()?, whole.finish()?);

        let size = |given| format!("tensor a: given {given} bytes, has 12");
        let mut data = writer()?;
        data.part(&a[..5])?;
        assert_eq!(data.part(&a[..8]).err().map(|e| e.to_string()), Some(size(13)));
        assert_eq!(data.tensor(&a).err().map(|e| e.to_string()), Some(size(17)));
        assert_eq!(data.finish().err().map(|e| e.to_string()), Some(size(5)));
        Ok(())
    }

    #[test]
    fn copies_values_bit_for_bit() -> Result<(), Box<dyn std::error::Error>> {
        let every = include_bytes!("../../tests/data/gguf/every.gguf");
        let source = File::from_bytes(every.to_vec())?;
        let mut writer = Writer::new();
        for (key, value) in source.meta().iter() {
            writer.value(key, value);
        }
        for t in source.tensors() {
            writer.tensor(&t.name, &t.dims[..t.n_dims], t.ty)?;
        }
        let mut data = writer.begin(Vec::new())?;
        for t in source.tensors() {
            data.tensor(source.data(t)?)?;
        }
        // The other writer also pads the last tensor.
        let bytes = data.finish()?;
        assert!(bytes == every[..bytes.len()]);
        assert_eq!(every.len(), bytes.len().next_multiple_of(32));
        Ok(())
    }

    #[test]
    fn refuses_what_would_not_load() {
        let twice = {
            let mut w = Writer::new();
            w.u32("k", 1).u32("k", 2);
            w.begin(Vec::new())
        };
        assert!(matches!(twice, Err(WriteError::DuplicateKey(_))));
        for alignment in [0, 4, 24, 1 << 21] {
            let mut w = Writer::new();
            w.u32("general.alignment", alignment);
            assert!(matches!(w.begin(Vec::new()), Err(WriteError::Alignment(_))), "{alignment}");
        }
        let mut w = Writer::new();
        assert!(matches!(w.tensor("t", &[31], GgmlType::Q8_0), Err(WriteError::Layout { .. })));
        assert!(matches!(w.tensor("t", &[], GgmlType::F32), Err(WriteError::Layout { .. })));
        assert!(matches!(w.tensor("t", &[1; 5], GgmlType::F32), Err(WriteError::Layout { .. })));
        assert!(matches!(w.tensor("t", &[1 << 40, 1 << 40], GgmlType::F32), Err(WriteError::Layout { .. })));
        assert!(matches!(w.tensor("t", &[1], GgmlType(200)), Err(WriteError::Layout { .. })));
        assert!(w.tensor("t", &[2], GgmlType::F32).is_ok());
        assert!(matches!(w.tensor("t", &[2], GgmlType::F32), Err(WriteError::DuplicateTensor(_))));
        let mut data = w.begin(Vec::new()).expect("a good header");
        assert!(matches!(data.tensor(&[0; 7]), Err(WriteError::Size { given: 7, size: 8, .. })));
        assert!(matches!(data.finish(), Err(WriteError::Count { given: 0, expected: 1 })));
    }
}
