//! Compiled pipelines on disk. Only ever an optimisation: whatever is wrong with the file, it is as if there were none.
//!
//! ```text
//! 0..8     magic
//! 8..16    FNV-1a (64 bits) over the rest
//! 16..     the driver's data
//! ```
//! Drivers check their data badly, so the checksum does it for them.

use std::fs;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"TWBPIPE1";
const HEADER: usize = 16;
const MAX_BYTES: u64 = 32 << 20;

/// The file for a device and the driver that compiles for it.
pub(super) fn path(folder: &str, cache_uuid: &[u8; 16], vendor: &str, driver_version: u32) -> PathBuf {
    let mut key = cache_uuid.to_vec();
    key.extend(driver_version.to_le_bytes());
    key.extend(vendor.as_bytes());
    Path::new(folder).join(format!("pipelines-{:016x}", fnv1a(&key)))
}

/// The driver's data of a file, if it is whole.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    if fs::metadata(path).ok()?.len() > MAX_BYTES {
        return None;
    }
    let mut bytes = fs::read(path).ok()?;
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (checksum, data) = rest.split_first_chunk::<8>()?;
    (*magic == MAGIC && u64::from_le_bytes(*checksum) == fnv1a(data)).then_some(())?;
    Some(bytes.split_off(HEADER))
}

/// Replaces a file in one step, or leaves it.
pub(super) fn write(path: &Path, data: &[u8]) {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(fnv1a(data).to_le_bytes());
    bytes.extend(data);
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    if let Some(folder) = path.parent() {
        let _ = fs::create_dir_all(folder);
    }
    if fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, path)).is_err() {
        let _ = fs::remove_file(&draft);
    }
}

pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_comes_back_and_rubbish_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("deep");
        let path = path(&folder.display().to_string(), &[7; 16], "vendor", 3);
        assert_eq!(read(&path), None);
        write(&path, b"pipelines");
        assert_eq!(read(&path).as_deref(), Some(&b"pipelines"[..]));
        let good = fs::read(&path).expect("the file");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            fs::write(&path, &bad).expect("space");
            assert_eq!(read(&path), None, "byte {at}");
            fs::write(&path, &good[..at]).expect("space");
            assert_eq!(read(&path), None, "cut at {at}");
        }
        write(Path::new("/proc/nowhere/pipelines"), b"x");
        let left: Vec<_> = fs::read_dir(&folder).expect("the folder").collect();
        assert_eq!(left.len(), 1, "no drafts are left behind");
    }

    #[test]
    fn keys_tell_drivers_apart() {
        let base = path("f", &[1; 16], "v", 1);
        for other in [path("f", &[2; 16], "v", 1), path("f", &[1; 16], "w", 1), path("f", &[1; 16], "v", 2)] {
            assert_ne!(other, base);
        }
    }
}
