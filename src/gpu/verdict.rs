//! Which drivers are not to be tried again.
//!
//! A verdict is written before a driver is touched ("trying") and removed when it has done its first job, so that a
//! machine that freezes in between finds it at its next start. It holds until what it is about changes: the engine's
//! version, the driver's manifest or library, what was asked for; or until somebody clears it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use twinband_protocol::manifest::{self, Manifest};
use twinband_protocol::{BUILD, Backend, Driver};

use super::{GpuOptions, Store};

const KIND: &str = "verdict";

/// What is held against a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Why it is not tried; `None` while it is being tried.
    pub cause: Option<String>,
    /// When it was written, in seconds since 1970.
    pub time: u64,
    /// The boot of the machine in which it was written.
    pub boot: String,
}

impl Verdict {
    fn now(cause: Option<String>) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        Self { cause, time, boot: boot() }
    }

    /// The reason not to try, if it is one.
    pub fn standing(&self) -> Option<String> {
        match &self.cause {
            Some(cause) => Some(cause.clone()),
            // In this boot the trying went on without harm to the machine, or still does.
            None if self.boot == boot() => None,
            None => Some("the machine went down while the driver was tried".to_owned()),
        }
    }
}

/// A name that is the same until the machine is started again.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// All verdicts, each with what it is about.
pub fn verdicts(store: &Store) -> Vec<(Vec<String>, Verdict)> {
    store.all(KIND)
}

/// Forgets all verdicts; returns how many there were.
pub fn clear_verdicts(store: &Store) -> usize {
    store.clear(KIND)
}

/// The verdict about what is about to be used.
#[derive(Debug)]
pub(super) struct Subject {
    store: Store,
    key: Vec<String>,
}

impl Subject {
    pub(super) fn new(store: Store, options: &GpuOptions) -> Self {
        Self { store, key: key(options, found) }
    }

    /// Why it is not to be tried.
    pub(super) fn standing(&self) -> Option<String> {
        self.store.load::<Verdict>(KIND, &self.key)?.standing()
    }

    /// It is about to be tried.
    pub(super) fn trying(&self) {
        let _ = self.store.save(KIND, &self.key, &Verdict::now(None));
    }

    /// It works, or fails in good order.
    pub(super) fn harmless(&self) {
        self.store.remove(KIND, &self.key);
    }

    /// It is not to be tried again.
    pub(super) fn condemn(&self, cause: &str) {
        let _ = self.store.save(KIND, &self.key, &Verdict::now(Some(cause.to_owned())));
    }
}

/// All that a verdict depends on.
fn key(options: &GpuOptions, manifests: impl FnOnce() -> Vec<Manifest>) -> Vec<String> {
    let mut key =
        vec![format!("engine {BUILD}"), format!("device {}", options.device.as_deref().unwrap_or("any"))];
    match (&options.backend, &options.driver) {
        (Backend::Null(orders), _) => key.push(format!("null {orders}")),
        (Backend::Vulkan, Driver::Manifest(path)) => key.extend(identity(&manifest::read(path.as_ref()))),
        (Backend::Vulkan, driver @ (Driver::Loader | Driver::Direct)) => {
            key.push(format!("driver {driver:?}"));
            key.extend(manifests().iter().flat_map(identity));
        }
    }
    key
}

/// A driver: its manifest and the library that this names. An update may leave the manifest as it was.
fn identity(manifest: &Manifest) -> Vec<String> {
    let library = manifest.library.as_ref().ok();
    let library = library.and_then(|library| manifest::library_file(library, &variable));
    let manifest = format!("manifest {}", stamp(&manifest.path));
    [manifest].into_iter().chain(library.map(|file| format!("library {}", stamp(&file)))).collect()
}

/// A file, by whatever way its name leads there, when it was last changed, and its size.
fn stamp(path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let meta = real.metadata().ok();
    let changed = meta.as_ref().and_then(|meta| meta.modified().ok());
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |t| t.as_nanos());
    let size = meta.map_or(0, |meta| meta.len());
    format!("{} changed {changed} bytes {size}", real.display())
}

/// The manifests that a loader would read, in its order.
pub fn manifests() -> Vec<PathBuf> {
    found().into_iter().map(|manifest| manifest.path).collect()
}

fn found() -> Vec<Manifest> {
    manifest::all(&variable)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn options(manifest: &Path) -> GpuOptions {
        GpuOptions { driver: Driver::Manifest(manifest.display().to_string()), ..GpuOptions::default() }
    }

    #[test]
    fn a_verdict_holds_until_the_manifest_changes_or_it_is_cleared() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Store::new(Some(&dir.path().join("cache")));
        let (good, bad, link) =
            (dir.path().join("g.json"), dir.path().join("b.json"), dir.path().join("l.json"));
        fs::write(&good, "{}").expect("a manifest");
        fs::write(&bad, "{}").expect("a manifest");
        let subject = |path: &Path| Subject::new(store.clone(), &options(path));
        assert_eq!(subject(&bad).standing(), None);
        subject(&bad).trying();
        subject(&bad).condemn("it crashed");
        assert_eq!(subject(&bad).standing().as_deref(), Some("it crashed"));
        assert_eq!(subject(&good).standing(), None);

        // A link is what it leads to.
        std::os::unix::fs::symlink(&bad, &link).expect("a link");
        assert!(subject(&link).standing().is_some());
        fs::remove_file(&link).expect("the link");
        std::os::unix::fs::symlink(&good, &link).expect("a link");
        assert_eq!(subject(&link).standing(), None);

        let later = SystemTime::now() + Duration::from_secs(5);
        fs::File::options().write(true).open(&bad).and_then(|f| f.set_modified(later)).expect("a new date");
        assert_eq!(subject(&bad).standing(), None);
        subject(&bad).condemn("again");
        assert_eq!(verdicts(&store).len(), 2);
        assert_eq!(clear_verdicts(&store), 2);
        assert_eq!(subject(&bad).standing(), None);
    }

    /// A driver's update may change nothing but its library.
    #[test]
    fn a_verdict_ends_when_the_library_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        let store = Store::new(Some(&path("cache")));
        let subject = || Subject::new(store.clone(), &options(&path("m.json")));
        fs::write(path("driver.so.1"), "one").expect("a library");
        std::os::unix::fs::symlink("driver.so.1", path("driver.so")).expect("a link");
        fs::write(path("m.json"), r#"{"ICD": {"library_path": "./driver.so"}}"#).expect("a manifest");
        let age = |file: &str| {
            let file = fs::File::options().write(true).open(path(file)).expect("it is there");
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).expect("a date");
        };
        age("driver.so.1");
        subject().condemn("it crashed");
        assert!(subject().standing().is_some());
        // Of another size, though no younger.
        fs::write(path("driver.so.1"), "three").expect("a library");
        age("driver.so.1");
        assert_eq!(subject().standing(), None);
        subject().condemn("it crashed");
        // Of another time, though no larger.
        fs::write(path("driver.so.1"), "seven").expect("a library");
        assert_eq!(subject().standing(), None);
        subject().condemn("it crashed");
        // Another file by the same name.
        fs::write(path("driver.so.2"), "seven").expect("a library");
        fs::remove_file(path("driver.so")).expect("the link");
        std::os::unix::fs::symlink("driver.so.2", path("driver.so")).expect("a link");
        assert_eq!(subject().standing(), None);
        // And back: what was found out about it still holds.
        fs::remove_file(path("driver.so")).expect("the link");
        std::os::unix::fs::symlink("driver.so.1", path("driver.so")).expect("a link");
        assert!(subject().standing().is_some());
    }

    #[test]
    fn a_try_counts_against_a_driver_only_if_the_machine_went_down() {
        let dir = tempfile::tempdir().expect("a folder");
        let subject = Subject::new(Store::new(Some(dir.path())), &options(Path::new("/x.json")));
        subject.trying();
        assert_eq!(subject.standing(), None);
        let earlier = Verdict { boot: "another".to_owned(), ..Verdict::now(None) };
        subject.store.save(KIND, &subject.key, &earlier).expect("it is written");
        assert!(subject.standing().is_some_and(|text| text.contains("went down")));
        subject.harmless();
        assert_eq!(subject.standing(), None);
    }

    #[test]
    fn the_key_names_all_that_it_depends_on() {
        let base = GpuOptions::default();
        let manifests = || ["/a.json", "/b.json"].map(|path| manifest::read(path.as_ref())).into();
        let of = |options: &GpuOptions| key(options, manifests);
        let text = of(&base).join("\n");
        for part in [BUILD, "Loader", "/a.json", "/b.json"] {
            assert!(text.contains(part), "{text}");
        }
        let others = [
            GpuOptions { device: Some("1".to_owned()), ..base.clone() },
            GpuOptions { driver: Driver::Direct, ..base.clone() },
            GpuOptions { driver: Driver::Manifest("/a.json".to_owned()), ..base.clone() },
            GpuOptions { backend: Backend::Null(String::new()), ..base.clone() },
        ];
        for other in &others {
            assert_ne!(of(other), of(&base));
        }
        assert_ne!(key(&base, Vec::new), of(&base));
    }
}
