//! The bytes of a file, mapped if possible. The only unsafe code of this folder.
#![allow(unsafe_code, reason = "mapping a file is an unsafe operation")]

use std::fs;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::Error;

/// A file's bytes as they were when it was opened.
///
/// The map follows the open file, not its name: replacing the file by renaming another over it is harmless.
/// A file that is made shorter while mapped cannot be read safely any more (the system answers with SIGBUS);
/// [`Map::check_unchanged`] turns that into an error for callers who ask before they read.
pub(crate) struct Map {
    path: PathBuf,
    /// Kept for asking its size later; `None` for bytes that never were a file.
    file: Option<fs::File>,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Map {
    /// Maps a regular file; reads it into memory where the file system does not support mapping.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_by(path, map)
    }

    fn open_by(path: &Path, map: impl FnOnce(&fs::File) -> io::Result<Bytes>) -> Result<Self, Error> {
        let open = |source| Error::Open { path: path.to_owned(), source };
        // Before opening: opening a FIFO would wait for a writer.
        regular(path, &fs::metadata(path).map_err(open)?)?;
        let mut file = fs::File::open(path).map_err(open)?;
        regular(path, &file.metadata().map_err(open)?)?;
        let bytes = match map(&file) {
            Ok(bytes) => bytes,
            Err(_) => read(&mut file).map_err(|source| Error::Read { path: path.to_owned(), source })?,
        };
        Ok(Self { path: path.to_owned(), file: Some(file), bytes })
    }

    /// Bytes that are already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { path: PathBuf::from("<memory>"), file: None, bytes: Bytes::Owned(bytes) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, once more; `None` if there is none, or no descriptor left for it.
    pub fn file(&self) -> Option<fs::File> {
        self.file.as_ref()?.try_clone().ok()
    }

    /// An error if the file no longer has the size it was opened with.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let Some(file) = &self.file else { return Ok(()) };
        let now = file.metadata().map_err(|source| Error::Open { path: self.path.clone(), source })?.len();
        let opened = self.len() as u64;
        if now == opened { Ok(()) } else { Err(Error::Changed { path: self.path.clone(), opened, now }) }
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

fn regular(path: &Path, meta: &fs::Metadata) -> Result<(), Error> {
    let not = |what| Err(Error::NotRegular { path: path.to_owned(), what });
    let kind = meta.file_type();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return not("a directory");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return not("a pipe");
        }
        if kind.is_socket() {
            return not("a socket");
        }
    }
    not("a device")
}

fn map(file: &fs::File) -> io::Result<Bytes> {
    // SAFETY: the map is read-only and private to this process. Rust's rule that shared bytes do not change is kept as
    // long as nobody writes to the file while it is open; `Mmap` cannot enforce that for any file. A writer makes
    // weights wrong, never memory accesses out of range: the length was taken at this moment, and all ranges are
    // checked against it. Shrinking is discussed at `Map`.
    let map = unsafe { Mmap::map(file)? };
    Ok(Bytes::Mapped(map))
}

fn read(file: &mut fs::File) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    file.read_to_end(&mut bytes)?;
    Ok(Bytes::Owned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn falls_back_to_reading() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("m");
        fs::write(&path, b"some bytes")?;
        let refused = |_: &fs::File| Err(io::Error::from(io::ErrorKind::Unsupported));
        assert_eq!(&*Map::open_by(&path, refused)?, b"some bytes");
        assert_eq!(&*Map::open(&path)?, b"some bytes");
        Ok(())
    }

    #[test]
    fn renaming_over_the_file_is_harmless_and_shrinking_is_noticed() -> Outcome {
        let dir = tempfile::tempdir()?;
        let (path, other) = (dir.path().join("m"), dir.path().join("n"));
        fs::write(&path, b"some bytes")?;
        fs::write(&other, b"new")?;
        let map = Map::open(&path)?;
        fs::rename(&other, &path)?;
        map.check_unchanged()?;
        assert_eq!(&*map, b"some bytes");

        let map = Map::open(&path)?;
        fs::OpenOptions::new().write(true).open(&path)?.set_len(1)?;
        assert!(matches!(map.check_unchanged(), Err(Error::Changed { opened: 3, now: 1, .. })));
        Ok(())
    }

    #[test]
    fn what_is_not_a_file_is_named() -> Outcome {
        let dir = tempfile::tempdir()?;
        assert!(matches!(Map::open(dir.path()), Err(Error::NotRegular { what: "a directory", .. })));
        assert!(matches!(Map::open(&dir.path().join("none")), Err(Error::Open { .. })));
        #[cfg(unix)]
        assert!(matches!(Map::open(Path::new("/dev/null")), Err(Error::NotRegular { what: "a device", .. })));
        Ok(())
    }
}
