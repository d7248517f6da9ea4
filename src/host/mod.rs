//! What this machine offers: cores to compute on, memory to hold weights in.
//!
//! Read from `/proc` and `/sys`, within the limits of affinity and control groups: a container with two cores and a
//! gigabyte is a machine with two cores and a gigabyte.

pub mod ahead;
pub mod cores;
pub mod memory;
pub mod priority;

use std::path::{Path, PathBuf};

/// The root of the file system that is asked; tests put recorded trees in its place.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// This machine.
    pub fn new() -> Self {
        Self::at(Path::new("/"))
    }

    /// A machine whose `/proc` and `/sys` lie under `root`.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A file's text without surrounding white space, or `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    /// The value of `name:` in a file of such lines.
    fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// The folders whose limits of `controller` (`cpu`, `memory`) apply to this process: its own control group and
    /// all above it, in either version of the interface.
    fn control_groups(&self, controller: &str) -> Vec<String> {
        let mut folders = Vec::new();
        for line in self.text("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let base = match controllers {
                "" => "/sys/fs/cgroup".to_owned(),
                list if list.split(',').any(|c| c == controller) => {
                    // The folder is named for the whole list (`cpu,cpuacct`) or linked under the single name.
                    format!("/sys/fs/cgroup/{controller}")
                }
                _ => continue,
            };
            let mut path = path.trim_matches('/');
            loop {
                folders.push(if path.is_empty() { base.clone() } else { format!("{base}/{path}") });
                let Some((above, _)) = path.rsplit_once('/') else {
                    if path.is_empty() {
                        break;
                    }
                    path = "";
                    continue;
                };
                path = above;
            }
        }
        folders
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine made of the given files.
    pub(crate) struct Fake {
        pub host: Host,
        _dir: tempfile::TempDir,
    }

    pub(crate) fn fake(files: &[(&str, &str)]) -> Fake {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        Fake { host: Host::at(dir.path()), _dir: dir }
    }

    #[test]
    fn control_groups_of_both_versions_and_their_parents() {
        let v2 = fake(&[("/proc/self/cgroup", "0::/user.slice/run-1.scope\n")]);
        assert_eq!(
            v2.host.control_groups("cpu"),
            ["/sys/fs/cgroup/user.slice/run-1.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"]
        );
        let v1 = fake(&[("/proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n2:memory:/\n")]);
        assert_eq!(
            v1.host.control_groups("cpu"),
            ["/sys/fs/cgroup/cpu/docker/x", "/sys/fs/cgroup/cpu/docker", "/sys/fs/cgroup/cpu"]
        );
        assert_eq!(v1.host.control_groups("memory"), ["/sys/fs/cgroup/memory"]);
        assert!(fake(&[]).host.control_groups("cpu").is_empty());
    }
}
