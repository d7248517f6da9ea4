//! A control group that limits memory, made for one test.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The group; it goes when this does, and by then its processes have to be gone.
pub struct Group {
    folder: PathBuf,
    /// Of the interface: 1 or 2.
    version: u8,
}

impl Group {
    /// A group whose processes may hold so many bytes together, or why there can be none here.
    pub fn new(name: &str, limit: u64) -> Result<Self, String> {
        let name = format!("twinband-{}-{name}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let path_of = |wanted: &dyn Fn(&str) -> bool| {
            own.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                wanted(controllers).then(|| PathBuf::from(path.trim_start_matches('/')))
            })
        };
        let mut why = "no memory controller in /proc/self/cgroup".to_owned();
        let first = path_of(&|list| list.split(',').any(|controller| controller == "memory"));
        let second = path_of(&str::is_empty);
        for (version, root, path) in [(1, "/sys/fs/cgroup/memory", first), (2, "/sys/fs/cgroup", second)] {
            // In a group with processes version 2 allows no others, so its parents are tried too; and a container may see
            // its own group as the root.
            let Some(path) = path else { continue };
            for parent in path.ancestors().map(|path| Path::new(root).join(path)) {
                match Self::inside(&parent, &name, version, limit) {
                    Ok(group) => return Ok(group),
                    Err(error) => why = format!("{}: {error}", parent.display()),
                }
            }
        }
        Err(why)
    }

    fn inside(parent: &Path, name: &str, version: u8, limit: u64) -> std::io::Result<Self> {
        let folder = parent.join(name);
        fs::create_dir(&folder)?;
        // From here on it is removed again, whatever fails.
        let group = Self { folder, version };
        group.write(["memory.limit_in_bytes", "memory.max"], limit)?;
        // Without swap, where the kernel counts it: memory that does not fit is to end a process.
        let _ = group
            .write(["memory.memsw.limit_in_bytes", "memory.swap.max"], [limit, 0][usize::from(version) - 1]);
        group.read(["memory.oom_control", "memory.events"])?;
        Ok(group)
    }

    fn at(&self, names: [&str; 2]) -> PathBuf {
        self.folder.join(names[usize::from(self.version) - 1])
    }

    fn write(&self, names: [&str; 2], value: u64) -> std::io::Result<()> {
        // Not `fs::write`, which would make a file where the kernel has none.
        use std::io::Write as _;
        let mut file = fs::OpenOptions::new().write(true).open(self.at(names))?;
        file.write_all(value.to_string().as_bytes())
    }

    fn read(&self, names: [&str; 2]) -> std::io::Result<String> {
        fs::read_to_string(self.at(names))
    }

    /// The command, run in the group.
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        let procs = self.folder.join("cgroup.procs");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs).arg(command.get_program());
        inside.args(command.get_args()).stdin(std::process::Stdio::null());
        inside
    }

    /// How many processes were killed because the group's memory was full.
    pub fn killed(&self) -> u64 {
        let events = self.read(["memory.oom_control", "memory.events"]).expect("the group's events");
        let line = events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        line.expect("a count")
    }

    /// The most bytes the group held, where the kernel keeps count.
    pub fn peak(&self) -> Option<u64> {
        self.read(["memory.max_usage_in_bytes", "memory.peak"]).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process leaves the group a moment after its parent has heard of its end.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
