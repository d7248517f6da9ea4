//! A position in bytes that were written by somebody else: every step is checked against the end.

use super::error::Fault;

/// Reads little-endian values from `bytes`, front to back.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes; `what` names them in the error.
    pub fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        let ends = || Fault::Ends { what, at: self.at as u64, need: n, size: self.bytes.len() as u64 };
        let n = usize::try_from(n).map_err(|_| ends())?;
        let end = self.at.checked_add(n).ok_or_else(ends)?;
        let taken = self.bytes.get(self.at..end).ok_or_else(ends)?;
        self.at = end;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Fault> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things of at least `min_bytes` each. A count that the rest of the file cannot hold is refused
    /// here, so that nothing is ever reserved or looped over on the word of a damaged file.
    pub fn count(&mut self, min_bytes: u64, what: &'static str) -> Result<usize, Fault> {
        let at = self.at as u64;
        let count = self.u64(what)?;
        let left = self.left() as u64;
        let fits = count.checked_mul(min_bytes).is_some_and(|bytes| bytes <= left);
        usize::try_from(count).ok().filter(|_| fits).ok_or(Fault::Count { what, count, at, left })
    }

    /// A length (u64) and that many bytes.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8], Fault> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A string that is at most `limit` bytes, not empty, UTF-8 and free of NUL.
    pub fn name(&mut self, limit: u64, what: &'static str) -> Result<&'a str, Fault> {
        let at = self.at as u64;
        let mut ahead = self.clone();
        let len = ahead.u64(what)?;
        // Asked of the length alone: a damaged length is better reported as such than as a file cut short.
        if len == 0 || len > limit {
            return Err(Fault::NameLength { what, len, at, limit });
        }
        let bytes = self.string(what)?;
        let shown = || super::error::printable(bytes);
        if bytes.contains(&0) {
            return Err(Fault::Nul { what, name: shown() });
        }
        str::from_utf8(bytes).map_err(|_| Fault::NotUtf8 { what, name: shown() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_the_end_and_not_a_byte_more() {
        let mut c = Cursor::new(&[1, 2, 3]);
        assert_eq!(c.take(3, "x").ok(), Some(&[1, 2, 3][..]));
        assert_eq!(c.take(0, "x").ok(), Some(&[][..]));
        assert!(matches!(c.take(1, "x"), Err(Fault::Ends { at: 3, need: 1, size: 3, .. })));
        assert!(matches!(c.take(u64::MAX, "x"), Err(Fault::Ends { .. })));
        assert_eq!(c.at(), 3);
    }

    #[test]
    fn counts_are_held_against_what_is_left() {
        let file = |count: u64| [&count.to_le_bytes()[..], &[0; 16]].concat();
        assert_eq!(Cursor::new(&file(2)).count(8, "strings").ok(), Some(2));
        for count in [3, 1 << 40, 1 << 62, u64::MAX] {
            assert!(matches!(
                Cursor::new(&file(count)).count(8, "strings"),
                Err(Fault::Count { left: 16, .. })
            ));
        }
    }

    #[test]
    fn names_are_checked() {
        let file = |name: &[u8]| [&(name.len() as u64).to_le_bytes()[..], name].concat();
        assert_eq!(Cursor::new(&file(b"abc")).name(3, "key").ok(), Some("abc"));
        assert!(matches!(Cursor::new(&file(b"abcd")).name(3, "key"), Err(Fault::NameLength { len: 4, .. })));
        assert!(matches!(Cursor::new(&file(b"")).name(3, "key"), Err(Fault::NameLength { len: 0, .. })));
        assert!(matches!(Cursor::new(&file(b"a\0b")).name(3, "key"), Err(Fault::Nul { .. })));
        assert!(matches!(Cursor::new(&file(b"a\xff")).name(3, "key"), Err(Fault::NotUtf8 { .. })));
    }
}
