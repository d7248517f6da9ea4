//! Memory: what is there, and what this process takes of it.

use std::path::Path;

use super::Host;

/// What a process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Memory of its own (RssAnon): what cannot be given back without swapping.
    pub anonymous: u64,
    /// The most it ever held, mapped file pages included (VmHWM).
    pub peak: u64,
}

impl Host {
    /// Bytes that can be used without swapping or being killed: what the kernel calls available, within the control
    /// groups' limits. `None` if the system does not say.
    pub fn available_memory(&self) -> Option<u64> {
        let kib = |name| self.field("/proc/meminfo", name).and_then(|v| parse_kib(&v));
        let free = kib("MemAvailable")?;
        let limit = |folder: &String| -> Option<u64> {
            let number = |name: &str| self.text(&format!("{folder}/{name}"))?.parse::<u64>().ok();
            let max = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
            let used = number("memory.current").or_else(|| number("memory.usage_in_bytes")).unwrap_or(0);
            // File pages count as used but can be dropped, like those of MemAvailable. Version 1 has the group's own beside
            // those of the whole tree, to which its other numbers belong.
            let stat = self.text(&format!("{folder}/memory.stat")).unwrap_or_default();
            let named = |name: &str| -> Option<u64> {
                stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            };
            let pages = |kind: &str| named(&format!("total_{kind}")).or_else(|| named(kind)).unwrap_or(0);
            let file = pages("inactive_file").saturating_add(pages("active_file"));
            Some(max.saturating_sub(used.saturating_sub(file)))
        };
        Some(self.control_groups("memory").iter().filter_map(limit).fold(free, u64::min))
    }

    /// Whether what is written to this folder stays in memory; false if the system does not say.
    pub fn in_memory(folder: &Path) -> bool {
        #[cfg(target_os = "linux")]
        {
            use nix::sys::statfs::{TMPFS_MAGIC, statfs};
            statfs(folder).is_ok_and(|on| on.filesystem_type() == TMPFS_MAGIC)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = folder;
            false
        }
    }

    /// What this process holds now; zeros if the system does not say.
    pub fn resident(&self) -> Resident {
        let bytes = |name| self.field("/proc/self/status", name).and_then(|v| parse_kib(&v)).unwrap_or(0);
        Resident { anonymous: bytes("RssAnon"), peak: bytes("VmHWM") }
    }
}

/// `"123 kB"` in bytes.
fn parse_kib(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    const INFO: (&str, &str) =
        ("/proc/meminfo", "MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  5000 kB\n");

    #[test]
    fn available_is_what_the_kernel_says_within_the_control_group() {
        assert_eq!(fake(&[INFO]).host.available_memory(), Some(5000 * 1024));
        assert_eq!(fake(&[]).host.available_memory(), None);
        let group = ("/proc/self/cgroup", "0::/g\n");
        let limited = |max, current, stat| {
            fake(&[
                INFO,
                group,
                ("/sys/fs/cgroup/g/memory.max", max),
                ("/sys/fs/cgroup/g/memory.current", current),
                ("/sys/fs/cgroup/g/memory.stat", stat),
            ])
            .host
            .available_memory()
        };
        assert_eq!(limited("max", "1000", ""), Some(5000 * 1024));
        assert_eq!(limited("1000000", "400000", "anon 1\ninactive_file 100000\n"), Some(700_000));
        assert_eq!(limited("1000000", "400000", "inactive_file 100000\nactive_file 50000\n"), Some(750_000));
        assert_eq!(limited("1000", "400000", ""), Some(0));
        // Version 1: the tree's pages, not only the group's own.
        let v1 = fake(&[
            INFO,
            ("/proc/self/cgroup", "4:memory:/g/h\n0::/\n"),
            ("/sys/fs/cgroup/memory/g/memory.limit_in_bytes", "2000000"),
            ("/sys/fs/cgroup/memory/g/memory.usage_in_bytes", "1500000"),
            (
                "/sys/fs/cgroup/memory/g/memory.stat",
                "active_file 7\ntotal_active_file 400000\ntotal_inactive_file 5\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000"),
        ]);
        assert_eq!(v1.host.available_memory(), Some(900_005));
    }

    #[test]
    fn resident_memory_of_this_process() {
        let status = "VmHWM:\t  300 kB\nRssAnon:\t     120 kB\n";
        let held = fake(&[("/proc/self/status", status)]).host.resident();
        assert_eq!(held, Resident { anonymous: 120 * 1024, peak: 300 * 1024 });
        assert_eq!(fake(&[]).host.resident(), Resident::default());
        assert!(Host::new().resident().peak > 0);
    }
}
