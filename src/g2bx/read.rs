//! The header of version 4.

use std::sync::Arc;

use super::layout::fits;
use super::{ALIGN, CHECKSUM_AT, Fault, HEAD, MAGIC, PAGE, VERSION};
use crate::gguf::{Container, Cursor, Header, Map, Meta, TensorInfo, printable};
use crate::kernel::format::Layout;

/// A header that was found good.
pub(super) struct Packed {
    pub header: Header,
    /// Of each tensor, in the order of the directory.
    pub checksums: Vec<u32>,
    /// Where it ends; zeros follow up to the data.
    pub header_end: u64,
}

/// What the codes of layouts mean.
pub(super) const LAYOUTS: [Layout; 2] = [Layout::Rows, Layout::Rows8];

/// Reads and checks the header. With `header_only` the file may end before its data does.
pub(super) fn parse(map: &Arc<Map>, header_only: bool) -> Result<Packed, Fault> {
    let size = map.len() as u64;
    let mut head = Cursor::new(Cursor::new(map).take(HEAD as u64, "the file header")?);
    head.take(MAGIC.len() as u64 + 4, "the magic number and version")?;
    let header_end = head.u64("the size of the header")?;
    if header_end < HEAD as u64 {
        return Err(field("the size of the header", 8, header_end, format!("from {HEAD} up")));
    }
    let header = Cursor::new(map).take(header_end, "the header")?;
    check_sum(header)?;

    let mut cursor = Cursor::new(header);
    cursor.take(6, "the magic number and version")?;
    zeros("flags", 6, cursor.take(2, "the flags")?)?;
    cursor.take(8, "the size of the header")?;
    let data_start = cursor.u64("the start of the data")?;
    // The header lies in memory, so this cannot overflow.
    if data_start != header_end.next_multiple_of(PAGE) {
        let expected = format!("{}, the next multiple of {PAGE}", header_end.next_multiple_of(PAGE));
        return Err(field("the start of the data", 16, data_start, expected));
    }
    let file_end = cursor.u64("the size of the file")?;
    if size > file_end {
        return Err(Fault::Longer { need: file_end, size });
    }
    if size < file_end && !header_only {
        return Err(Fault::Truncated { need: file_end, size });
    }
    let n_kv = Meta::count(&mut cursor)?;
    let n_tensors = TensorInfo::count(&mut cursor)?;
    zeros("reserved bytes", 48, cursor.take((CHECKSUM_AT - 48) as u64, "reserved bytes")?)?;
    cursor.take((HEAD - CHECKSUM_AT) as u64, "the checksum")?;

    let meta = Meta::parse(map, &mut cursor, n_kv)?;
    let mut tensors = Vec::with_capacity(n_tensors);
    let mut checksums = Vec::with_capacity(n_tensors);
    for _ in 0..n_tensors {
        let (tensor, checksum) = entry(&mut cursor, data_start)?;
        tensors.push(tensor);
        checksums.push(checksum);
    }
    if cursor.at() != header.len() {
        let expected = format!("{}, where the directory ends", cursor.at());
        return Err(field("the size of the header", 8, header_end, expected));
    }
    let last = tensors.iter().map(TensorInfo::end).fold(data_start, u64::max);
    if last != file_end {
        let expected = format!("{last}, where the last tensor ends");
        return Err(field("the size of the file", 24, file_end, expected));
    }
    let version = VERSION.into();
    let container = Container::G2bx;
    let header = Header { container, version, alignment: ALIGN, meta, tensors, data_start };
    Ok(Packed { header, checksums, header_end })
}

/// One entry of the directory: GGUF's, and what it lacks.
fn entry(cursor: &mut Cursor<'_>, data_start: u64) -> Result<(TensorInfo, u32), Fault> {
    let mut tensor = TensorInfo::parse(cursor, 0)?;
    let name = || printable(tensor.name.as_bytes());
    let at = cursor.at() as u64;
    let bytes = cursor.u64("a tensor's size")?;
    let code = cursor.u32("a tensor's layout")?;
    let checksum = cursor.u32("a tensor's checksum")?;
    match tensor.bytes() {
        None => return Err(Fault::Type { tensor: name(), ty: tensor.ty }),
        Some(n) if n != bytes => {
            let expected = format!("{n}, which is what type and dimensions of {} give", name());
            return Err(field("a tensor's size", at, bytes, expected));
        }
        Some(_) => {}
    }
    let layout = usize::try_from(code).ok().and_then(|code| LAYOUTS.get(code));
    let &layout = layout.ok_or_else(|| Fault::Layout { tensor: name(), layout: code })?;
    if !fits(layout, tensor.ty) {
        return Err(Fault::LayoutOfType { tensor: name(), ty: tensor.ty });
    }
    tensor.layout = layout;
    tensor.place(data_start, ALIGN)?;
    Ok((tensor, checksum))
}

/// The checksum of a header: of all its bytes but those in which it lies.
pub(super) fn sum(header: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..CHECKSUM_AT]);
    hasher.update(&header[HEAD..]);
    hasher.finalize()
}

fn check_sum(header: &[u8]) -> Result<(), Fault> {
    let mut stored = Cursor::new(&header[CHECKSUM_AT..]);
    let (computed, stored) = (sum(header), stored.u32("the checksum")?);
    if computed == stored {
        return Ok(());
    }
    let to = header.len() as u64;
    Err(Fault::Checksum { what: "the header".to_owned(), from: 0, to, computed, stored })
}

pub(super) fn field(what: &'static str, at: u64, value: impl ToString, expected: String) -> Fault {
    Fault::Field { what, at, value: value.to_string(), expected }
}

fn zeros(what: &'static str, at: u64, bytes: &[u8]) -> Result<(), Fault> {
    match bytes.iter().position(|&b| b != 0) {
        None => Ok(()),
        Some(i) => {
            Err(field(what, at + i as u64, bytes[i], "0; the file may come from a later program".to_owned()))
        }
    }
}
