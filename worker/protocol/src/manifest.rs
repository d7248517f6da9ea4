//! Driver manifests: the JSON files by which Vulkan drivers announce themselves, found and read as the system's loader
//! would, and which of them are in a state that the loader stumbles over. Nothing of a driver runs here: the engine uses
//! this to tell whether a driver has changed, the worker to reach it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Larger files are no manifests.
const MAX_BYTES: u64 = 1 << 20;

/// A manifest and the library it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The manifest's file.
    pub path: PathBuf,
    /// As `dlopen` takes it, or what is wrong with the manifest.
    pub library: Result<PathBuf, String>,
}

/// Environment variables by name.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Every manifest, in the loader's order, without those that the environment switches off.
pub fn all(env: Env<'_>) -> Vec<Manifest> {
    let mut seen = HashSet::new();
    let paths = named(env).unwrap_or_else(|| found(env));
    paths.into_iter().filter(|p| enabled(p, env) && seen.insert(p.clone())).map(|p| read(&p)).collect()
}

/// The manifests that variables name, if they do.
fn named(env: Env<'_>) -> Option<Vec<PathBuf>> {
    let list = env("VK_DRIVER_FILES").filter(|v| !v.is_empty());
    let list = list.or_else(|| env("VK_ICD_FILENAMES").filter(|v| !v.is_empty()))?;
    Some(
        std::env::split_paths(&list)
            .flat_map(|p| if p.is_dir() { manifests_in(&p) } else { vec![p] })
            .collect(),
    )
}

/// The manifests in the usual folders.
fn found(env: Env<'_>) -> Vec<PathBuf> {
    let home = |below: &str| env("HOME").filter(|h| !h.is_empty()).map(|h| PathBuf::from(h).join(below));
    let one = |name: &str, otherwise: &str| {
        env(name).filter(|v| !v.is_empty()).map(PathBuf::from).or_else(|| home(otherwise)).into_iter()
    };
    let many = |name: &str, otherwise: &str| {
        let list = env(name).filter(|v| !v.is_empty()).unwrap_or_else(|| otherwise.into());
        std::env::split_paths(&list).collect::<Vec<_>>()
    };
    let added = env("VK_ADD_DRIVER_FILES").map(|l| std::env::split_paths(&l).collect::<Vec<_>>());
    let folders = one("XDG_CONFIG_HOME", ".config")
        .chain(many("XDG_CONFIG_DIRS", "/etc/xdg"))
        .chain([PathBuf::from("/etc")])
        .chain(one("XDG_DATA_HOME", ".local/share"))
        .chain(many("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
    let installed = folders.flat_map(|f| manifests_in(&f.join("vulkan/icd.d")));
    added.into_iter().flatten().chain(installed).collect()
}

fn manifests_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.sort();
    paths
}

/// The loader's own switches: patterns for file names, with `*` at either end.
fn enabled(path: &Path, env: Env<'_>) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let matches = |variable: &str| {
        let list = env(variable).filter(|v| !v.is_empty())?.to_string_lossy().to_lowercase();
        Some(list.split(',').any(|pattern| matches(pattern.trim(), &name)))
    };
    matches("VK_LOADER_DRIVERS_SELECT").unwrap_or(true)
        && !matches("VK_LOADER_DRIVERS_DISABLE").unwrap_or(false)
}

fn matches(pattern: &str, name: &str) -> bool {
    let core = pattern.trim_matches('*');
    match (pattern.starts_with('*'), pattern.ends_with('*')) {
        (true, true) => name.contains(core),
        (true, false) => name.ends_with(core),
        (false, true) => name.starts_with(core),
        (false, false) => name == core,
    }
}

/// Reads one manifest.
pub fn read(path: &Path) -> Manifest {
    Manifest { path: path.to_owned(), library: library(path) }
}

fn library(path: &Path) -> Result<PathBuf, String> {
    let size = fs::metadata(path).map_err(|e| e.to_string())?.len();
    if size > MAX_BYTES {
        return Err(format!("{size} bytes are too many for a manifest"));
    }
    let text = fs::read(path).map_err(|e| e.to_string())?;
    let json: Value = serde_json::from_slice(&text).map_err(|e| format!("it is not JSON: {e}"))?;
    let icd = json.get("ICD").ok_or("it has no section ICD")?;
    let named = icd.get("library_path").and_then(Value::as_str).filter(|l| !l.is_empty());
    let named = Path::new(named.ok_or("it names no library")?);
    let bits = if cfg!(target_pointer_width = "64") { "64" } else { "32" };
    if let Some(other) = icd.get("library_arch").and_then(Value::as_str).filter(|a| *a != bits) {
        return Err(format!("its library is for {other}-bit programs"));
    }
    // A bare name is searched for by dlopen; everything else is relative to the manifest.
    if named.components().count() == 1 && !named.is_absolute() && !named.starts_with(".") {
        return Ok(named.to_owned());
    }
    let library = path.parent().unwrap_or(Path::new(".")).join(named);
    match fs::metadata(&library) {
        Ok(_) => Ok(library),
        Err(e) => Err(format!("its library {}: {e}", library.display())),
    }
}

/// The file of a library, if it can be told without loading it: names without a folder are looked for where `dlopen`
/// would in the usual case.
pub fn library_file(library: &Path, env: Env<'_>) -> Option<PathBuf> {
    if library.parent().is_some_and(|folder| !folder.as_os_str().is_empty()) {
        return Some(library.to_owned());
    }
    let asked = env("LD_LIBRARY_PATH").map(|list| std::env::split_paths(&list).collect::<Vec<_>>());
    let arch = std::env::consts::ARCH;
    let usual = [format!("/lib/{arch}-linux-gnu"), format!("/usr/lib/{arch}-linux-gnu")].map(PathBuf::from);
    let usual = usual.into_iter().chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    asked.into_iter().flatten().chain(usual).map(|folder| folder.join(library)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        fs::create_dir_all(folder).expect("a folder");
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    #[test]
    fn every_state_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let library = write(folder, "lib.so", "");
        let good = format!(r#"{{"ICD":{{"library_path":"{}","api_version":"1.0.5"}}}}"#, library.display());
        let state = |text: &str| read(&write(folder, "m.json", text)).library;
        assert_eq!(state(&good), Ok(library.clone()));
        assert_eq!(state(r#"{"ICD":{"library_path":"./lib.so"}}"#), Ok(folder.join("./lib.so")));
        assert_eq!(state(r#"{"ICD":{"library_path":"libGL.so.1"}}"#), Ok("libGL.so.1".into()));
        for (text, part) in [
            ("", "not JSON"),
            (r#"{"ICD":{"library"#, "not JSON"),
            ("[]", "no section ICD"),
            (r#"{"ICD":{}}"#, "names no library"),
            (r#"{"ICD":{"library_path":7}}"#, "names no library"),
            (r#"{"ICD":{"library_path":"/nowhere/x.so"}}"#, "/nowhere/x.so"),
            (r#"{"ICD":{"library_path":"x.so","library_arch":"32"}}"#, "32-bit"),
        ] {
            let trouble = state(text).expect_err(text);
            assert!(trouble.contains(part), "{text}: {trouble}");
        }
        assert!(read(&folder.join("missing.json")).library.is_err());
    }

    #[test]
    fn folders_are_searched_in_the_loaders_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for (part, name) in [
            ("c/vulkan/icd.d", "z.json"),
            ("d/vulkan/icd.d", "b.json"),
            ("d/vulkan/icd.d", "a.json"),
            ("d/vulkan/icd.d", "a.txt"),
            ("h/.local/share/vulkan/icd.d", "h.json"),
        ] {
            write(&root.join(part), name, "{}");
        }
        let dirs = format!("{0}/d:{0}/none", root.display());
        let set = |more: &'static [(&'static str, &'static str)]| {
            let (root, dirs) = (root.to_owned(), dirs.clone());
            move |name: &str| -> Option<OsString> {
                if let Some((_, value)) = more.iter().find(|(n, _)| *n == name) {
                    return Some(value.replace("ROOT", &root.display().to_string()).into());
                }
                match name {
                    "XDG_CONFIG_DIRS" => Some(root.join("c").into()),
                    "XDG_DATA_DIRS" => Some(dirs.clone().into()),
                    "HOME" => Some(root.join("h").into()),
                    _ => None,
                }
            }
        };
        let names = |env: Env<'_>| -> Vec<String> {
            let below = all(env).into_iter().filter(|m| m.path.starts_with(root));
            below.map(|m| m.path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(&set(&[])), ["z.json", "h.json", "a.json", "b.json"]);
        assert_eq!(names(&set(&[("VK_LOADER_DRIVERS_DISABLE", "z*,*B.json")])), ["h.json", "a.json"]);
        assert_eq!(names(&set(&[("VK_LOADER_DRIVERS_SELECT", "*a*")])), ["a.json"]);
        assert_eq!(names(&set(&[("VK_ICD_FILENAMES", "ROOT/x.json:ROOT/x.json")])), ["x.json"]);
        let both = set(&[("VK_ICD_FILENAMES", "ROOT/x.json"), ("VK_DRIVER_FILES", "ROOT/d/vulkan/icd.d")]);
        assert_eq!(names(&both), ["a.json", "b.json"]);
        assert_eq!(names(&set(&[("VK_ADD_DRIVER_FILES", "ROOT/n.json")]))[0], "n.json");
    }

    #[test]
    fn libraries_are_found_as_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = write(folder.path(), "libdriver.so", "");
        let list = folder.path().as_os_str().to_owned();
        let env = move |name: &str| (name == "LD_LIBRARY_PATH").then(|| list.clone());
        assert_eq!(library_file(&file, &|_| None), Some(file.clone()));
        assert_eq!(library_file(Path::new("libdriver.so"), &env), Some(file));
        assert_eq!(library_file(Path::new("libdriver.so"), &|_| None), None);
        // Every program has the C library, wherever it lies.
        if cfg!(target_env = "gnu") {
            assert!(library_file(Path::new("libc.so.6"), &|_| None).is_some());
        }
    }
}
