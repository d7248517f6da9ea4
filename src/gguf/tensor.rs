//! The tensor directory: what each tensor is and where its bytes lie.

use super::cursor::Cursor;
use super::error::{Fault, printable};
use super::header::limited;
use crate::kernel::format::{GgmlType, Layout};

/// The longest tensor name, in bytes.
const NAME_LIMIT: u64 = 127;
/// The largest dimension: what the format's other readers can represent.
const DIM_LIMIT: u64 = i32::MAX as u64;
/// The fewest bytes of a directory entry: a name of one byte, one dimension, type and offset.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements along each dimension, the row length first; dimensions that the file does not give are 1.
    pub dims: [u64; 4],
    /// How many dimensions the file gives, 1 to 4.
    pub n_dims: usize,
    /// The type of the elements.
    pub ty: GgmlType,
    /// In which order its blocks lie; row after row in every GGUF file.
    pub layout: Layout,
    /// Which part of a split set holds it, counted from 0.
    pub(super) part: usize,
    /// First byte, counted from the start of the part.
    pub(super) start: u64,
    /// Known for types whose geometry is known.
    pub(super) bytes: Option<u64>,
}

impl TensorInfo {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        // No overflow: checked by `parse`.
        self.dims.iter().product()
    }

    /// The number of rows: elements divided by the row length `dims[0]`.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// The bytes of the whole tensor, or `None` if the type's geometry is not known.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The index of the file that holds the tensor in [`File::parts`](super::File::parts).
    pub fn part(&self) -> usize {
        self.part
    }

    /// Where the tensor's first byte lies, counted from the start of that file.
    pub fn offset(&self) -> u64 {
        self.start
    }

    /// Reads the number of tensors of a header.
    pub(crate) fn count(cursor: &mut Cursor<'_>) -> Result<usize, Fault> {
        limited(cursor.count(MIN_ENTRY, "tensors")?, "tensors")
    }

    /// Reads one directory entry. `start` still counts from the start of the tensor data.
    pub(crate) fn parse(cursor: &mut Cursor<'_>, part: usize) -> Result<Self, Fault> {
        let name = cursor.name(NAME_LIMIT, "tensor name")?;
        let tensor = || printable(name.as_bytes());
        let n = cursor.u32("a tensor's number of dimensions")?;
        if !(1..=4).contains(&n) {
            return Err(Fault::Dimensions { tensor: tensor(), n });
        }
        let n_dims = n as usize;
        let mut dims = [1; 4];
        for (index, dim) in dims.iter_mut().take(n_dims).enumerate() {
            *dim = cursor.u64("a tensor's dimension")?;
            if !(1..=DIM_LIMIT).contains(dim) {
                return Err(Fault::Dimension { tensor: tensor(), index, dim: *dim });
            }
        }
        let ty = GgmlType(cursor.u32("a tensor's type")?);
        let offset = cursor.u64("a tensor's offset")?;
        Self::new(name, dims, n_dims, ty, part, offset)
    }

    /// A tensor whose rows must be whole blocks. `dims` are from 1 to 2^31 - 1, those from `n_dims` on are 1.
    pub(crate) fn new(
        name: &str,
        dims: [u64; 4],
        n_dims: usize,
        ty: GgmlType,
        part: usize,
        start: u64,
    ) -> Result<Self, Fault> {
        let tensor = || printable(name.as_bytes());
        let overflow = || Fault::Overflow { tensor: tensor(), dims };
        dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(overflow)?;
        let bytes = match ty.geometry() {
            None => None,
            Some(geometry) => {
                let row = dims[0] as usize; // At most i32::MAX.
                let row_bytes = geometry.row_bytes(row).ok_or_else(|| Fault::Row {
                    tensor: tensor(),
                    row: dims[0],
                    ty,
                    block: geometry.block,
                })?;
                let bytes = dims[1..].iter().try_fold(row_bytes as u64, |n, &d| n.checked_mul(d));
                Some(bytes.ok_or_else(overflow)?)
            }
        };
        Ok(Self { name: name.to_owned(), dims, n_dims, ty, layout: Layout::Rows, part, start, bytes })
    }

    /// Turns the offset in the data section into one in the file and checks that it can be one.
    pub(crate) fn place(&mut self, data_start: u64, alignment: u64) -> Result<(), Fault> {
        let (tensor, offset) = (|| printable(self.name.as_bytes()), self.start);
        if !offset.is_multiple_of(alignment) {
            return Err(Fault::Unaligned { tensor: tensor(), offset, alignment });
        }
        let bytes = self.least_bytes();
        let start = data_start.checked_add(offset);
        match start.and_then(|s| s.checked_add(bytes)).zip(start) {
            Some((_, start)) => self.start = start,
            None => return Err(Fault::Offset { tensor: tensor(), offset, bytes }),
        }
        Ok(())
    }

    /// The end of the tensor's bytes in the file; of a type of unknown size, the end of its first byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.least_bytes()
    }

    fn least_bytes(&self) -> u64 {
        self.bytes.unwrap_or(1)
    }
}

/// Checks that the tensors of one part lie in its `size` bytes (unless that is `None`) and do not share bytes.
pub(super) fn check_ranges(tensors: &[TensorInfo], size: Option<u64>) -> Result<(), Fault> {
    if let (Some(size), Some(last)) = (size, tensors.iter().max_by_key(|t| t.end()))
        && last.end() > size
    {
        return Err(Fault::Truncated { tensor: printable(last.name.as_bytes()), need: last.end(), size });
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        let [a, b] = pair else { continue };
        if a.end() > b.start {
            let (first, second) = (printable(a.name.as_bytes()), printable(b.name.as_bytes()));
            return Err(Fault::Overlap { first, second });
        }
    }
    Ok(())
}
