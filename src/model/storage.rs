//! Memory of the KV cache: pages that are zero and cost nothing until they are used, the system's or those of a file.
#![allow(unsafe_code, reason = "maps a file and looks at its bytes as numbers")]

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use memmap2::{MmapMut, MmapOptions};

use super::error::StateError;

/// Where the cache is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In memory of the process's own.
    #[default]
    Memory,
    /// In files without a name in this folder. The system writes their pages to disk when memory is short and keeps
    /// them cached when it is not; they are gone when the process ends, however it ends.
    Folder(PathBuf),
}

/// `len` numbers, all zero at first.
pub struct Storage<T> {
    map: MmapMut,
    len: usize,
    numbers: PhantomData<T>,
}

/// Numbers for which every pattern of bits is a value, and all zeros is 0.
///
/// # Safety
/// Promises just that, and that there is no padding.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u16 {}
// SAFETY: any bits are an f32.
unsafe impl Plain for f32 {}

impl<T: Plain> Storage<T> {
    /// Room for `len` numbers, for `what`. In memory only addresses are taken; in a file the whole room, so that a disk
    /// that is full shows now and not in the middle of an answer.
    pub fn new(len: usize, what: &'static str, place: &Place) -> Result<Self, StateError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let map = match place {
            Place::Memory => {
                MmapOptions::new().len(bytes).map_anon().map_err(|_| StateError::Memory { bytes, what })
            }
            Place::Folder(folder) => in_file(folder, bytes).map_err(|error| StateError::Swap {
                folder: folder.clone(),
                bytes,
                what,
                reason: error.to_string(),
            }),
        }?;
        Ok(Self { map, len, numbers: PhantomData })
    }
}

impl<T: Plain> Deref for Storage<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the map holds `len` numbers (`new`) from the start of a page on, which is aligned for every number,
        // and any bits are numbers (`Plain`).
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Storage<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}

/// Bytes that can be written to the disk of this folder.
pub fn room(folder: &Path) -> io::Result<u64> {
    let disk = nix::sys::statvfs::statvfs(folder)?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// A file of this length in the folder, mapped, all of it allocated. It never has a name, so it can meet no other file.
fn in_file(folder: &Path, bytes: usize) -> io::Result<MmapMut> {
    // Some file systems fill up before they say that there is no room.
    let room = room(folder)?;
    let file = tempfile::tempfile_in(folder)?;
    if (room as u128) < bytes as u128 {
        return Err(io::Error::other(format!("the disk has {room} bytes left")));
    }
    // Beyond this limit the system answers with a signal that ends the process.
    let (most, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE)?;
    if u128::from(most) < bytes as u128 {
        return Err(io::Error::other(format!("files may have {most} bytes here (ulimit -f)")));
    }
    let len = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    nix::fcntl::posix_fallocate(&file, 0, len.max(1))?;
    // SAFETY: nobody else can open a file that has no name, so its bytes change through this map only and its length,
    // which was just set, not at all.
    unsafe { MmapOptions::new().len(bytes).map_mut(&file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_zero_and_stay_what_they_become() {
        let dir = tempfile::tempdir().expect("a folder");
        for place in [Place::Memory, Place::Folder(dir.path().to_owned())] {
            let mut numbers = Storage::<f32>::new(100_000, "numbers", &place).expect("room");
            assert!(numbers.len() == 100_000 && numbers.iter().all(|x| *x == 0.0));
            numbers[99_999] = 1.5;
            assert_eq!((numbers[0], numbers[99_999]), (0.0, 1.5));
            assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0, "a name was left");
            assert!(Storage::<u16>::new(0, "nothing", &place).expect("no room is needed").is_empty());
        }
    }

    #[test]
    fn no_room_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let petabyte = 1 << 50;
        let error = |place| Storage::<u8>::new(petabyte, "keys", &place).err().expect("no room");
        assert_eq!(error(Place::Memory), StateError::Memory { bytes: petabyte, what: "keys" });
        let said = error(Place::Folder(dir.path().to_owned())).to_string();
        assert!(said.contains("1125899906842624 bytes of keys") && said.contains("bytes left"), "{said}");
        let said = error(Place::Folder(dir.path().join("none"))).to_string();
        assert!(said.contains("none") && said.contains("No such file"), "{said}");
    }
}
