//! Writing version 4.
//!
//! The header holds checksums of data that come after it: [`Writer::begin`] leaves room, [`DataWriter`] takes the tensors'
//! bytes in parts, so that little need be in memory, and [`DataWriter::finish`] goes back and writes the header.

use std::io::{Seek, SeekFrom, Write};

use super::layout::fits;
use super::read::{self, LAYOUTS};
use super::{ALIGN, CHECKSUM_AT, HEAD, MAGIC, PAGE, VERSION};
use crate::gguf::write as gguf;
use crate::kernel::format::{GgmlType, Layout};

pub use crate::gguf::write::WriteError;

/// Metadata and directory of a file to be written.
pub struct Writer {
    /// Metadata and tensors are those of a GGUF file.
    gguf: gguf::Writer,
    layouts: Vec<Layout>,
}

impl Writer {
    /// A file with the metadata of `gguf`, to which no tensor was added yet.
    pub fn new(gguf: gguf::Writer) -> Self {
        Self { gguf, layouts: Vec::new() }
    }

    /// Adds a tensor of `dims` elements, the row length first, to the directory. Its bytes will be given in the order of
    /// `layout`, in which a type with blocks of one element can only have [`Layout::Rows`].
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
        layout: Layout,
    ) -> Result<&mut Self, WriteError> {
        if !fits(layout, ty) {
            return Err(WriteError::Layout { name: name.to_owned(), ty, dims: dims.to_vec() });
        }
        self.gguf.tensor(name, dims, ty)?;
        self.layouts.push(layout);
        Ok(self)
    }

    /// Bytes of the whole file.
    pub fn file_size(&self) -> Result<u64, WriteError> {
        let plan = self.plan()?;
        Ok(plan.file_end)
    }

    fn plan(&self) -> Result<Plan, WriteError> {
        let (meta, _) = self.gguf.metadata()?;
        let entry = |t: &gguf::Planned| 8 + t.name.len() + 4 + 8 * t.dims.len() + 4 + 8 + 8 + 4 + 4;
        let header_len = HEAD + meta.len() + self.gguf.tensors().iter().map(entry).sum::<usize>();
        let data_start = (header_len as u64).next_multiple_of(PAGE);
        let (mut offsets, mut end) = (Vec::new(), data_start);
        for t in self.gguf.tensors() {
            let start = end.checked_next_multiple_of(ALIGN).ok_or_else(|| t.too_large())?;
            end = start.checked_add(t.size).ok_or_else(|| t.too_large())?;
            offsets.push(start - data_start);
        }
        Ok(Plan { header_len, data_start, offsets, file_end: end })
    }

    fn header(&self, plan: &Plan, checksums: &[u32]) -> Result<Vec<u8>, WriteError> {
        let (meta, n_kv) = self.gguf.metadata()?;
        let mut out = Vec::with_capacity(plan.header_len);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 2]);
        let tensors = self.gguf.tensors();
        for number in
            [plan.header_len as u64, plan.data_start, plan.file_end, n_kv as u64, tensors.len() as u64]
        {
            out.extend(number.to_le_bytes());
        }
        out.resize(HEAD, 0);
        out.extend(meta);
        for (((t, layout), offset), sum) in
            tensors.iter().zip(&self.layouts).zip(&plan.offsets).zip(checksums)
        {
            t.put(*offset, &mut out);
            out.extend(t.size.to_le_bytes());
            let code = LAYOUTS.iter().position(|l| l == layout).unwrap_or_default();
            out.extend((code as u32).to_le_bytes());
            out.extend(sum.to_le_bytes());
        }
        let sum = read::sum(&out);
        out[CHECKSUM_AT..HEAD].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// Leaves room for the header; what is at the start of `out` until [`DataWriter::finish`] is no G2BX file.
    pub fn begin<W: Write + Seek>(self, mut out: W) -> Result<DataWriter<W>, WriteError> {
        let plan = self.plan()?;
        gguf::put_zeros(&mut out, plan.data_start)?;
        let n = plan.offsets.len();
        Ok(DataWriter {
            out,
            writer: self,
            plan,
            checksums: Vec::with_capacity(n),
            hasher: crc32fast::Hasher::new(),
            filled: 0,
            end: 0,
        })
    }
}

/// Where everything will lie.
struct Plan {
    header_len: usize,
    data_start: u64,
    /// Of the tensors, counted from there.
    offsets: Vec<u64>,
    file_end: u64,
}

/// Takes the tensors' bytes.
pub struct DataWriter<W> {
    out: W,
    writer: Writer,
    plan: Plan,
    /// Of the tensors that are whole.
    checksums: Vec<u32>,
    /// Of the next.
    hasher: crc32fast::Hasher,
    /// Bytes of the next that are already written.
    filled: u64,
    /// Bytes of data written.
    end: u64,
}

impl<W: Write + Seek> DataWriter<W> {
    /// Writes some more bytes of the next tensor of the directory. A part does not reach beyond its tensor.
    pub fn part(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let (next, expected) = (self.checksums.len(), self.plan.offsets.len());
        let tensors = self.writer.gguf.tensors();
        let tensor = tensors.get(next).ok_or(WriteError::Count { given: next + 1, expected })?;
        let given = self.filled + bytes.len() as u64;
        if given > tensor.size {
            return Err(tensor.odd_size(given));
        }
        if self.filled == 0 {
            let start = self.plan.offsets[next];
            gguf::put_zeros(&mut self.out, start - self.end)?;
            self.end = start;
        }
        self.out.write_all(bytes)?;
        self.hasher.update(bytes);
        self.end += bytes.len() as u64;
        self.filled = given;
        if given == tensor.size {
            let hasher = std::mem::take(&mut self.hasher);
            self.checksums.push(hasher.finalize());
            self.filled = 0;
        }
        Ok(())
    }

    /// Writes the header and returns what was written to; an error if tensors are missing.
    pub fn finish(mut self) -> Result<W, WriteError> {
        let (given, expected) = (self.checksums.len(), self.plan.offsets.len());
        if let Some(tensor) = self.writer.gguf.tensors().get(given) {
            return Err(match self.filled {
                0 => WriteError::Count { given, expected },
                n => tensor.odd_size(n),
            });
        }
        let header = self.writer.header(&self.plan, &self.checksums)?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
