//! A file that appears under its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error as ThisError;

/// Why a file cannot be put in place.
#[derive(Debug, ThisError)]
pub enum PartError {
    /// Something of this name is there already, and may not be replaced.
    #[error("{} exists already; use --force to replace it", path.display())]
    Exists {
        /// Its name.
        path: PathBuf,
    },
    /// What has this name is a folder, a device or the like.
    #[error("{} is no ordinary file and is never replaced: choose another name", path.display())]
    NotAFile {
        /// Its name.
        path: PathBuf,
    },
    /// The path ends in no name.
    #[error("{:?} names no file", path)]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file being written beside the name it will have. Dropped before [`PartFile::publish`] it is removed, and whatever
/// has the name stays as it was.
#[derive(Debug)]
pub struct PartFile {
    file: File,
    part: PathBuf,
    target: PathBuf,
    replace: bool,
    published: bool,
}

impl PartFile {
    /// Starts a file that will be `path`; one that is there is replaced only if `replace` says so.
    pub fn create(path: &Path, replace: bool) -> Result<Self, PartError> {
        // Behind a symbolic link it is the file that is replaced, not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        check(&target, replace)?;
        let Some(name) = target.file_name() else { return Err(PartError::NoName { path: target }) };
        let mut part = std::ffi::OsString::from(".");
        part.push(name);
        part.push(format!(".part-{}", std::process::id()));
        let part = target.with_file_name(part);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .map_err(|source| PartError::Io { verb: "create", path: part.clone(), source })?;
        Ok(Self { file, part, target, replace, published: false })
    }

    /// The file, open for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, once its bytes are on the disk: a machine that stops in the next moment finds either
    /// the old file or the whole new one.
    pub fn publish(mut self) -> Result<(), PartError> {
        check(&self.target, self.replace)?;
        let io = |verb, path: &Path| {
            let path = path.to_owned();
            move |source| PartError::Io { verb, path, source }
        };
        self.file.sync_all().map_err(io("write", &self.part))?;
        fs::rename(&self.part, &self.target).map_err(io("write", &self.target))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.published {
            // There is nobody to tell.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn check(path: &Path, replace: bool) -> Result<(), PartError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() => Err(PartError::NotAFile { path: path.to_owned() }),
        Ok(_) if !replace => Err(PartError::Exists { path: path.to_owned() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_appears_when_it_is_published_and_not_before() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("x.gguf");
        let part = PartFile::create(&path, false)?;
        part.file().write_all(b"new")?;
        assert!(!path.exists());
        part.publish()?;
        assert_eq!(
            (fs::read(&path)?.as_slice(), names(dir.path())),
            (&b"new"[..], vec!["x.gguf".to_owned()])
        );
        Ok(())
    }

    #[test]
    fn one_that_is_dropped_leaves_everything_as_it_was() -> Outcome {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("x.gguf");
        fs::write(&path, "old")?;
        let part = PartFile::create(&path, true)?;
        part.file().write_all(b"new")?;
        drop(part);
        assert_eq!(
            (fs::read(&path)?.as_slice(), names(dir.path())),
            (&b"old"[..], vec!["x.gguf".to_owned()])
        );
        Ok(())
    }

    #[test]
    fn nothing_is_replaced_unasked_and_only_files_ever() -> Outcome {
        let dir = tempfile::tempdir()?;
        let (path, link) = (dir.path().join("x.gguf"), dir.path().join("link.gguf"));
        fs::write(&path, "old")?;
        std::os::unix::fs::symlink(&path, &link)?;
        for path in [&path, &link] {
            assert!(matches!(PartFile::create(path, false), Err(PartError::Exists { .. })));
        }
        for path in [dir.path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(matches!(PartFile::create(path, true), Err(PartError::NotAFile { .. })), "{path:?}");
        }
        assert!(matches!(PartFile::create(Path::new(""), true), Err(PartError::NoName { .. })));
        // Someone else was quicker.
        let other = dir.path().join("y.gguf");
        let part = PartFile::create(&other, false)?;
        fs::write(&other, "theirs")?;
        assert!(matches!(part.publish(), Err(PartError::Exists { .. })));
        assert_eq!(fs::read(&other)?, b"theirs");
        // The file behind the link changes, the link stays.
        let part = PartFile::create(&link, true)?;
        part.file().write_all(b"new")?;
        part.publish()?;
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path)?, b"new");
        Ok(())
    }
}
