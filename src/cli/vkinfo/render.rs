//! Render nodes: the files by which programs reach GPUs, and whether this user may.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A render node.
#[derive(Debug, Serialize)]
pub struct Node {
    path: PathBuf,
    /// Permission bits, in octal digits.
    mode: String,
    /// Number of the group that owns it.
    group: u32,
    /// The group's name, if it has one here.
    group_name: Option<String>,
    /// Whether the permission bits let this user read and write.
    permitted: bool,
    /// What opening it says, if it fails.
    error: Option<String>,
}

/// Who asks.
#[derive(Debug, Default)]
pub struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    /// This process's effective user. If that cannot be told, one without any rights.
    pub fn current() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// From the text of `/proc/PID/status`.
    fn parse(status: &str) -> Self {
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect()
        };
        // Real, effective, saved, file system.
        let effective = |name: &str| numbers(name).get(1).copied();
        let groups = numbers("Groups").into_iter().chain(effective("Gid")).collect();
        Self { uid: effective("Uid").unwrap_or(u32::MAX), groups }
    }

    /// Whether permission bits allow reading and writing. The first class that fits decides.
    fn may_use(&self, file: &Metadata) -> bool {
        let class = if self.uid == 0 {
            return true;
        } else if self.uid == file.uid() {
            6
        } else if self.groups.contains(&file.gid()) {
            3
        } else {
            0
        };
        file.mode() >> class & 6 == 6
    }
}

impl Node {
    /// The group, by name and number.
    pub fn owner(&self) -> String {
        match &self.group_name {
            Some(name) => format!("{name} ({})", self.group),
            None => format!("{} (which has no name here)", self.group),
        }
    }

    /// What to do if it cannot be opened.
    pub fn advice(&self) -> Option<String> {
        let error = self.error.as_ref()?;
        let path = self.path.display();
        Some(if self.permitted {
            format!(
                "{path} cannot be opened although its rights allow it ({error}): a container has to be given the device"
            )
        } else {
            let group = self.group_name.clone().unwrap_or_else(|| self.group.to_string());
            format!(
                "{path} belongs to group {}: `sudo usermod -aG {group} USER` and a new login let you use it; \
                 for a container it is `--group-add {}`",
                self.owner(),
                self.group
            )
        })
    }

    /// One line.
    pub fn line(&self) -> String {
        let may = match &self.error {
            None => "may be opened".to_owned(),
            Some(error) => format!("may NOT be opened: {error}"),
        };
        format!("{}, group {}, mode {}: {may}", self.path.display(), self.owner(), self.mode)
    }
}

/// The render nodes in a folder, sorted. Opening one is the only sure test: access lists and a container's rules do not
/// show in permission bits.
pub fn nodes(folder: &Path, groups: &Path, user: &User) -> Vec<Node> {
    let groups = fs::read_to_string(groups).unwrap_or_default();
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("renderD"))
    });
    paths.sort();
    let node = |path: PathBuf| {
        let file = fs::metadata(&path).ok()?;
        let error = File::options().read(true).write(true).open(&path).err().map(|e| e.to_string());
        Some(Node {
            mode: format!("{:03o}", file.mode() & 0o777),
            group: file.gid(),
            group_name: group_name(&groups, file.gid()),
            permitted: user.may_use(&file),
            error,
            path,
        })
    };
    paths.into_iter().filter_map(node).collect()
}

/// The name of a group in the text of `/etc/group`.
fn group_name(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// V41: who may open a render node, by its modes, and which group it would take.
    #[test]
    fn rights_follow_from_modes() {
        let dir = tempfile::tempdir().expect("a folder");
        let modes =
            [("renderD128", 0o660), ("renderD129", 0o600), ("renderD130", 0o666), ("renderD131", 0o060)];
        for (name, mode) in modes.iter().chain(&[("card0", 0o666)]) {
            let path = dir.path().join(name);
            fs::write(&path, "").expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).expect("its mode");
        }
        let owner = fs::metadata(dir.path().join("card0")).expect("it exists");
        let (uid, gid) = (owner.uid(), owner.gid());
        let etc = dir.path().join("group");
        fs::write(&etc, format!("root:x:{}:\nrender:x:{gid}:me\nbroken\n", gid + 7)).expect("a file");
        let permitted = |user: User| -> Vec<bool> {
            let nodes = nodes(dir.path(), &etc, &user);
            assert_eq!(nodes.len(), 4, "card0 is no render node");
            assert!(nodes.iter().all(|n| n.group == gid && n.group_name.as_deref() == Some("render")));
            assert_eq!(nodes[0].mode, "660");
            nodes.iter().map(|node| node.permitted).collect()
        };
        let stranger = uid + 1;
        assert_eq!(permitted(User { uid: stranger, groups: vec![gid + 1] }), [false, false, true, false]);
        assert_eq!(permitted(User { uid: stranger, groups: vec![gid + 1, gid] }), [true, false, true, true]);
        assert_eq!(permitted(User { uid: 0, groups: vec![] }), [true; 4]);
        if uid != 0 {
            // The owner's class decides, even if it gives less than that of the group.
            assert_eq!(permitted(User { uid, groups: vec![gid] }), [true, true, true, false]);
        }
    }

    #[test]
    fn advice_names_the_group() {
        let node = |permitted, error: Option<&str>| Node {
            path: "/dev/dri/renderD128".into(),
            mode: "660".to_owned(),
            group: 109,
            group_name: None,
            permitted,
            error: error.map(str::to_owned),
        };
        assert_eq!(node(true, None).advice(), None);
        let denied = node(false, Some("Permission denied"));
        let advice = denied.advice().expect("advice");
        assert!(advice.contains("usermod -aG 109") && advice.contains("--group-add 109"), "{advice}");
        assert!(denied.line().contains("may NOT be opened: Permission denied"));
        let contained = node(true, Some("Operation not permitted")).advice().expect("advice");
        assert!(contained.contains("container") && !contained.contains("usermod"), "{contained}");
        assert!(nodes(Path::new("/nonexistent"), Path::new("/nonexistent"), &User::default()).is_empty());
    }

    #[test]
    fn the_user_is_read_from_the_process_table() {
        let user =
            User::parse("Name:\tx\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\t6\t5\t5\nGroups:\t27 109 \n");
        assert_eq!((user.uid, user.groups), (1001, vec![27, 109, 6]));
        assert_eq!(User::parse("").uid, u32::MAX);
    }
}
