//! The bytes of a file, mapped if possible. The only unsafe code of this folder.
#![allow(unsafe_code, reason = "mapping a file is an unsafe operation")]

use std::fs;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};

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

    /// Where in the map some of its bytes are; `None` if they are not of this map.
    fn place(&self, bytes: &[u8]) -> Option<(&Mmap, usize)> {
        let Bytes::Mapped(map) = &self.bytes else { return None };
        let start = (bytes.as_ptr() as usize).checked_sub(map.as_ptr() as usize)?;
        (!bytes.is_empty() && start.checked_add(bytes.len())? <= map.len()).then_some((map, start))
    }

    /// Gives up the memory of pages that hold these bytes of the map; they are read anew when they are used again. With
    /// `from_cache` the system is asked to forget them too, if nobody else has mapped them. False if the bytes are not of
    /// this map. That a system knows no such thing is not reported: nothing depends on it but memory.
    pub fn release(&self, bytes: &[u8], from_cache: bool) -> bool {
        let Some((map, start)) = self.place(bytes) else { return false };
        // SAFETY: the map shares the pages of a file and is never written through, so pages that are dropped come back
        // with the same bytes: references to them stay valid and see no change.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, bytes.len()) };
        if let Some(file) = self.file.as_ref().filter(|_| from_cache) {
            forget(file, start, bytes.len());
        }
        true
    }

    /// Reads the whole map and keeps it in memory.
    pub fn lock(&self) -> io::Result<()> {
        match &self.bytes {
            Bytes::Mapped(map) => map.lock(),
            Bytes::Owned(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Takes [`lock`](Self::lock) back.
    pub fn unlock(&self) {
        if let Bytes::Mapped(map) = &self.bytes {
            // What fails is what was not locked.
            let _ = map.unlock();
        }
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

/// Asks the system to drop bytes of a file from its cache.
fn forget(file: &fs::File, start: usize, len: usize) {
    #[cfg(target_os = "linux")]
    {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        if let (Ok(start), Ok(len)) = (i64::try_from(start), i64::try_from(len)) {
            let _ = posix_fadvise(file, start, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, len);
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
    fn bytes_that_were_released_are_still_there() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("m");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes)?;
        let (map, other) = (Map::open(&path)?, Map::open(&path)?);
        for from_cache in [false, true] {
            assert!(*map == *bytes);
            assert!(map.release(&map[5000..90_000], from_cache) && map.release(&map, from_cache));
            assert!(*map == *bytes);
        }
        assert!(!map.release(&other[5..10], false) && !map.release(&map[..0], false));
        let owned = Map::from_bytes(bytes);
        assert!(!owned.release(&owned, true) && owned.lock().is_err());
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
