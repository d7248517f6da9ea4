//! Files brought into the system's cache before they are used.
//!
//! Threads that compute read weights page by page where they happen to be, and wait for each. One more thread that reads the
//! whole file from its beginning to its end keeps the disk busy meanwhile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;

/// What is read at once. A piece that the cache has is not read.
const PIECE: usize = 256 << 10;

/// Reads files in a thread of its own, which ends by itself or with the process. What cannot be read is left to whoever uses it.
pub fn read_ahead(files: Vec<File>) {
    // Without a thread everything is read when it is used, as ever.
    let _ = thread::Builder::new().name("twinband-ahead".to_owned()).spawn(move || {
        for file in &files {
            let _ = read(file);
        }
    });
}

/// Brings a file into the cache.
fn read(file: &File) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        if is_cached(file, at) && is_cached(file, at + PIECE as u64 - 1) {
            at += PIECE as u64;
            continue;
        }
        match file.read_at(&mut piece, at)? {
            0 => return Ok(()),
            n => at += n as u64,
        }
    }
}

/// Whether the cache has the byte at `at`; false too where there is no such byte, or the system does not say.
fn is_cached(file: &File, at: u64) -> bool {
    #[cfg(target_os = "linux")]
    {
        let mut byte = [0];
        let mut into = [io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(file, &mut into, at, rustix::io::ReadWriteFlags::NOWAIT).is_ok_and(|n| n == 1)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, at);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

    #[test]
    fn what_was_dropped_from_the_cache_is_there_again() -> Result<(), Box<dyn std::error::Error>> {
        // Beside the program: a folder for temporary files may have no disk under it, and then nothing can be dropped.
        let folder = std::env::current_exe()?.parent().ok_or("a folder")?.to_owned();
        let file = tempfile::tempfile_in(folder)?;
        let size = 5 * PIECE as u64 / 2;
        file.write_all_at(&vec![7; size as usize], 0)?;
        file.sync_all()?;
        let places = [0, 5000, PIECE as u64, 2 * PIECE as u64 - 1, size - 1];
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        if places.iter().any(|&at| is_cached(&file, at)) {
            eprintln!("skipped: this file system keeps what it is asked to drop");
            return Ok(());
        }
        read(&file)?;
        assert!(places.iter().all(|&at| is_cached(&file, at)));
        assert!(!is_cached(&file, size));
        // Once more, with nothing to do, and with a hole in the middle.
        read(&file)?;
        posix_fadvise(&file, PIECE as i64, PIECE as i64, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        read(&file)?;
        assert!(places.iter().all(|&at| is_cached(&file, at)));
        Ok(())
    }
}
