//! The older form of importance data, without a magic number; all integers are i32, little endian:
//!
//! ```text
//! entries
//! entries x ( length, name | calls | n | n x f32 )    means of squares, times the number of calls
//! pieces of text | length, name of the text           both may be missing, or the second
//! ```

use std::collections::BTreeMap;

use super::{ImportanceError, Origin};
use crate::gguf::{Cursor, Fault, Map, printable};

/// More than any model has matrices.
const ENTRIES: i32 = 100_000;
/// The longest name of a matrix or a text, in bytes.
const NAME: i32 = 1024;

/// Where the numbers of an entry lie.
pub(super) struct Entry {
    at: usize,
    bytes: usize,
}

impl Entry {
    /// Their bytes.
    pub fn sums<'m>(&self, map: &'m Map) -> &'m [u8] {
        map.get(self.at..).and_then(|rest| rest.get(..self.bytes)).unwrap_or_default()
    }
}

struct Reader<'m> {
    map: &'m Map,
    cursor: Cursor<'m>,
}

impl<'m> Reader<'m> {
    fn ends(&self, fault: Fault) -> ImportanceError {
        let path = self.map.path().to_owned();
        match fault {
            Fault::Ends { what, at, need, size } => ImportanceError::Ends { path, what, at, need, size },
            fault => crate::gguf::Error::Fault { path, fault }.into(),
        }
    }

    fn take(&mut self, n: u64, what: &'static str) -> Result<&'m [u8], ImportanceError> {
        self.cursor.take(n, what).map_err(|fault| self.ends(fault))
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, ImportanceError> {
        self.cursor.array(what).map(i32::from_le_bytes).map_err(|fault| self.ends(fault))
    }

    /// A length from 1 to `limit`.
    fn length(&mut self, what: &'static str, limit: i32) -> Result<u64, ImportanceError> {
        let at = self.cursor.at() as u64;
        match self.i32(what)? {
            value @ 1.. if value <= limit => Ok(value as u64),
            value => Err(ImportanceError::Length { path: self.map.path().to_owned(), what, value, at }),
        }
    }
}

/// The entries of a file by name, and where its data comes from.
pub(super) fn read(map: &Map) -> Result<(BTreeMap<String, Entry>, Origin), ImportanceError> {
    let mut reader = Reader { map, cursor: Cursor::new(map) };
    let n = reader.i32("the number of entries")?;
    if !(1..=ENTRIES).contains(&n) {
        return Err(ImportanceError::Unknown { path: map.path().to_owned(), n });
    }
    let mut entries = BTreeMap::new();
    for _ in 0..n {
        let length = reader.length("the length of a name", NAME)?;
        let name = String::from_utf8_lossy(reader.take(length, "a name")?).into_owned();
        reader.i32("a number of calls")?;
        let bytes = 4 * reader.length("the number of an entry's values", i32::MAX)?;
        let at = reader.cursor.at();
        let bytes = reader.take(bytes, "an entry's values")?.len();
        if entries.contains_key(&name) {
            let (path, name) = (map.path().to_owned(), printable(name.as_bytes()));
            return Err(ImportanceError::Twice { path, name });
        }
        entries.insert(name, Entry { at, bytes });
    }
    let mut origin = Origin::default();
    if reader.cursor.at() < map.len() {
        let chunks = reader.i32("the number of pieces of text")?;
        origin.chunks = u32::try_from(chunks).ok().filter(|&n| n > 0);
    }
    if reader.cursor.at() < map.len() {
        let length = reader.length("the length of the text's name", NAME)?;
        origin.dataset = Some(String::from_utf8_lossy(reader.take(length, "the text's name")?).into_owned());
    }
    Ok((entries, origin))
}
