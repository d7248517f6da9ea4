//! Small records that outlive the program, one a file. An optimisation or a warning, never a need: what cannot be read
//! is not there, what cannot be written is not kept.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Records larger than this are not ours.
const MAX_BYTES: u64 = 1 << 16;

/// A folder of records.
#[derive(Clone, Debug)]
pub struct Store {
    dir: Option<PathBuf>,
}

/// A record as it is written: with its whole key, because file names hold only a hash of it.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    key: Vec<String>,
    value: T,
}

impl Store {
    /// The records in `dir`, or in the user's cache folder (`XDG_CACHE_HOME`, else `.cache` at home). Without any of
    /// these nothing is kept.
    pub fn new(dir: Option<&Path>) -> Self {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let user = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        Self { dir: dir.map(Path::to_owned).or_else(|| Some(user()?.join("twinband"))) }
    }

    /// The folder.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// The record of this kind and key.
    pub fn load<T: DeserializeOwned>(&self, kind: &str, key: &[String]) -> Option<T> {
        let record: Record<T> = read(&self.path(kind, key)?)?;
        (record.key == key).then_some(record.value)
    }

    /// All records of a kind, with their keys.
    pub fn all<T: DeserializeOwned>(&self, kind: &str) -> Vec<(Vec<String>, T)> {
        let mut paths = self.paths(kind);
        paths.sort();
        paths.iter().filter_map(|path| read(path)).map(|r: Record<T>| (r.key, r.value)).collect()
    }

    /// Keeps a record. It replaces the one of the same key as a whole, and is on the disk when this returns.
    pub fn save<T: Serialize>(&self, kind: &str, key: &[String], value: &T) -> io::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (Some(dir), Some(path)) = (&self.dir, self.path(kind, key)) else { return Ok(()) };
        fs::create_dir_all(dir)?;
        let text = serde_json::to_vec_pretty(&Record { key: key.to_vec(), value })?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let draft = dir.join(format!(".draft-{}-{number}", std::process::id()));
        let written = File::create(&draft)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        // The name too has to outlive a machine that freezes in the next moment.
        written.and_then(|()| File::open(dir)?.sync_all())
    }

    /// Forgets a record.
    pub fn remove(&self, kind: &str, key: &[String]) {
        if let Some(path) = self.path(kind, key) {
            let _ = fs::remove_file(path);
        }
    }

    /// Forgets all records of a kind; returns how many there were.
    pub fn clear(&self, kind: &str) -> usize {
        self.paths(kind).iter().filter(|path| fs::remove_file(path).is_ok()).count()
    }

    fn path(&self, kind: &str, key: &[String]) -> Option<PathBuf> {
        let hash =
            key.iter().flat_map(|part| part.bytes().chain([0])).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        Some(self.dir.as_ref()?.join(format!("{kind}-{hash:016x}.json")))
    }

    fn paths(&self, kind: &str) -> Vec<PathBuf> {
        let Some(entries) = self.dir.as_ref().and_then(|dir| fs::read_dir(dir).ok()) else {
            return Vec::new();
        };
        let ours = |name: &str| {
            name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-') && rest.ends_with(".json"))
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(ours)).collect()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    if size > MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str]) -> Vec<String> {
        parts.iter().map(|&part| part.to_owned()).collect()
    }

    #[test]
    fn records_come_back_by_their_whole_key() {
        let dir = tempfile::tempdir().expect("a folder");
        // The folder does not exist yet.
        let store = Store::new(Some(&dir.path().join("a/b")));
        let (one, two) = (key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(store.load::<u32>("split", &one), None);
        store.save("split", &one, &1u32).expect("it is written");
        store.save("split", &two, &2u32).expect("it is written");
        store.save("other", &one, &3u32).expect("it is written");
        store.save("split", &one, &4u32).expect("it is written");
        assert_eq!(store.load("split", &one), Some(4u32));
        assert_eq!(store.load("split", &two), Some(2u32));
        let mut all: Vec<(_, u32)> = store.all("split");
        all.sort();
        assert_eq!(all, [(two.clone(), 2), (one.clone(), 4)]);
        store.remove("split", &two);
        assert_eq!(store.load::<u32>("split", &two), None);
        assert_eq!(store.clear("split"), 1);
        assert_eq!((store.load("other", &one), store.all::<u32>("split").len()), (Some(3u32), 0));
        let left = fs::read_dir(dir.path().join("a/b")).expect("the folder").count();
        assert_eq!(left, 1, "no drafts are left behind");
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::new(Some(dir.path()));
        let key = key(&["k"]);
        store.save("split", &key, &1u32).expect("it is written");
        let path = store.path("split", &key).expect("a path");
        for rubbish in [
            &b""[..],
            b"{",
            b"{\"key\":[\"k\"],\"value\":\"no number\"}",
            b"{\"key\":[\"x\"],\"value\":1}",
            &[0xff; 100],
        ] {
            fs::write(&path, rubbish).expect("it is written");
            assert_eq!(store.load::<u32>("split", &key), None);
        }
        fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).expect("it is written");
        assert_eq!(store.load::<u32>("split", &key), None);
        // A folder in its place can be neither read nor replaced.
        fs::remove_file(&path).expect("it is there");
        fs::create_dir(&path).expect("a folder");
        assert_eq!(store.load::<u32>("split", &key), None);
        assert!(store.save("split", &key, &1u32).is_err());
        // A file where the folder should be.
        let store = Store::new(Some(&dir.path().join("file/x")));
        fs::write(dir.path().join("file"), b"").expect("it is written");
        assert!(store.save("split", &key, &1u32).is_err());
        assert_eq!(store.load::<u32>("split", &key), None);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let store = Store { dir: None };
        store.save("split", &key(&["k"]), &1u32).expect("no error");
        assert_eq!((store.load::<u32>("split", &key(&["k"])), store.clear("split")), (None, 0));
    }
}
