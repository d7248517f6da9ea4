//! How many threads to compute with: one on each physical performance core that we may use.
//!
//! More are slower: threads of one core share its multipliers, efficiency cores make the others wait at every
//! barrier, and above a control group's quota the scheduler stops whole teams for milliseconds.

use super::Host;
use std::collections::BTreeSet;

impl Host {
    /// The number of threads to use if nobody asks for another: physical performance cores within the affinity mask
    /// and the whole cores of the control group's quota, at least 1.
    pub fn default_threads(&self) -> usize {
        let allowed = self.allowed_cpus();
        self.cores(&self.performance_cpus(&allowed))
    }

    /// The number of threads to use if all cores shall be busy, efficiency cores too, within the same limits.
    pub fn all_threads(&self) -> usize {
        self.cores(&self.allowed_cpus())
    }

    /// Physical cores of these CPUs, as far as the control group's quota goes; at least 1.
    fn cores(&self, cpus: &BTreeSet<usize>) -> usize {
        let cores: BTreeSet<usize> = cpus.iter().map(|&cpu| self.core_of(cpu)).collect();
        let quota = self.cpu_quota().map_or(usize::MAX, |cores| cores as usize);
        cores.len().min(quota).max(1)
    }

    /// CPUs in the affinity mask that are online.
    fn allowed_cpus(&self) -> BTreeSet<usize> {
        let online = self.text("/sys/devices/system/cpu/online").map(|list| parse_list(&list));
        let allowed = self.field("/proc/self/status", "Cpus_allowed_list").map(|list| parse_list(&list));
        match (allowed, online) {
            (Some(allowed), Some(online)) => allowed.intersection(&online).copied().collect(),
            (Some(cpus), None) | (None, Some(cpus)) => cpus,
            (None, None) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
        }
    }

    /// Those of `cpus` that are not efficiency cores; all of them if none is told apart.
    fn performance_cpus(&self, cpus: &BTreeSet<usize>) -> BTreeSet<usize> {
        let fast: BTreeSet<usize> = if let Some(list) = self.text("/sys/devices/cpu_core/cpus") {
            // Hybrid x86 names its performance cores.
            parse_list(&list).intersection(cpus).copied().collect()
        } else {
            // Arm gives each core a capacity; the little ones have well under half.
            let capacity = |cpu: usize| -> usize {
                let text = self.text(&format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity"));
                text.and_then(|t| t.parse().ok()).unwrap_or(1024)
            };
            let most = cpus.iter().map(|&c| capacity(c)).max().unwrap_or(0);
            cpus.iter().copied().filter(|&c| capacity(c) * 2 > most).collect()
        };
        if fast.is_empty() { cpus.clone() } else { fast }
    }

    /// A number for the physical core of a CPU: its lowest sibling.
    fn core_of(&self, cpu: usize) -> usize {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| parse_list(&self.text(&format!("{topology}/{name}"))?).first().copied())
            .unwrap_or(cpu)
    }

    /// The control groups' limit in cores, if there is one.
    fn cpu_quota(&self) -> Option<f64> {
        let limit = |folder: &String| -> Option<f64> {
            if let Some(max) = self.text(&format!("{folder}/cpu.max")) {
                let (quota, period) = max.split_once(' ')?;
                return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
            }
            let quota: f64 = self.text(&format!("{folder}/cpu.cfs_quota_us"))?.parse().ok()?;
            let period: f64 = self.text(&format!("{folder}/cpu.cfs_period_us"))?.parse().ok()?;
            (quota > 0.0).then_some(quota / period)
        };
        let limits = self.control_groups("cpu");
        limits.iter().filter_map(limit).filter(|l| l.is_finite() && *l > 0.0).min_by(f64::total_cmp)
    }
}

/// A kernel list such as `0-3,8,10-11`. What cannot be read is left out.
fn parse_list(list: &str) -> BTreeSet<usize> {
    let mut cpus = BTreeSet::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) {
            // No machine has more CPUs than this; a longer range is a damaged file.
            cpus.extend(from..=to.min(from.saturating_add(8191)));
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    const ALL8: (&str, &str) =
        ("/proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n");

    fn siblings(pairs: &[(usize, &str)]) -> Vec<(String, String)> {
        let file = |(cpu, list): &(usize, &str)| {
            (format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), (*list).to_owned())
        };
        pairs.iter().map(file).collect()
    }

    fn threads(fixed: &[(&str, &str)], more: &[(String, String)]) -> usize {
        let mut files = fixed.to_vec();
        files.extend(more.iter().map(|(p, t)| (p.as_str(), t.as_str())));
        fake(&files).host.default_threads()
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-3,8,10-11\n").into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("x,3-y").is_empty());
        assert!(parse_list("0-18446744073709551615").len() <= 8192);
    }

    #[test]
    fn simultaneous_threads_share_a_core() {
        let pairs: Vec<(usize, &str)> = (0..8).map(|c| (c, ["0,4", "1,5", "2,6", "3,7"][c % 4])).collect();
        assert_eq!(threads(&[ALL8, ("/sys/devices/system/cpu/online", "0-7")], &siblings(&pairs)), 4);
    }

    #[test]
    fn efficiency_cores_are_left_out() {
        // Two performance cores with two threads each, four efficiency cores.
        let pairs = [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3"), (4, "4"), (5, "5"), (6, "6"), (7, "7")];
        let hybrid = ("/sys/devices/cpu_core/cpus", "0-3");
        assert_eq!(threads(&[ALL8, hybrid], &siblings(&pairs)), 2);
        // The same by capacity, one thread a core.
        let capacity: Vec<(String, String)> = (0..8)
            .map(|c| {
                let value = if c < 6 { "400" } else { "1024" };
                (format!("/sys/devices/system/cpu/cpu{c}/cpu_capacity"), value.to_owned())
            })
            .collect();
        assert_eq!(threads(&[ALL8], &capacity), 2);
        // All cores, if that is asked for.
        let (list, cpus) = (siblings(&pairs), [ALL8, hybrid]);
        let all: Vec<_> =
            cpus.into_iter().chain(list.iter().map(|(path, text)| (path.as_str(), text.as_str()))).collect();
        assert_eq!(fake(&all).host.all_threads(), 6);
        // Only efficiency cores allowed: then those.
        let status = ("/proc/self/status", "Cpus_allowed_list:\t4-7\n");
        assert_eq!(threads(&[status, hybrid], &siblings(&pairs)), 4);
    }

    #[test]
    fn affinity_and_offline_cpus() {
        let online = ("/sys/devices/system/cpu/online", "0-1,3");
        assert_eq!(threads(&[ALL8, online], &[]), 3);
        assert_eq!(threads(&[("/proc/self/status", "Cpus_allowed_list:\t0\n"), online], &[]), 1);
    }

    #[test]
    fn quotas_of_control_groups() {
        let v2 = ("/proc/self/cgroup", "0::/a/b\n");
        let on = |path: &'static str, text: &'static str| threads(&[ALL8, v2, (path, text)], &[]);
        assert_eq!(on("/sys/fs/cgroup/a/b/cpu.max", "max 100000"), 8);
        assert_eq!(on("/sys/fs/cgroup/a/b/cpu.max", "250000 100000"), 2);
        assert_eq!(on("/sys/fs/cgroup/a/cpu.max", "300000 100000"), 3);
        assert_eq!(on("/sys/fs/cgroup/a/b/cpu.max", "50000 100000"), 1);
        assert_eq!(on("/sys/fs/cgroup/a/b/cpu.max", "rubbish"), 8);
        let v1 = [
            ALL8,
            ("/proc/self/cgroup", "3:cpu,cpuacct:/d\n"),
            ("/sys/fs/cgroup/cpu/d/cpu.cfs_quota_us", "765000"),
            ("/sys/fs/cgroup/cpu/d/cpu.cfs_period_us", "100000"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ];
        assert_eq!(threads(&v1, &[]), 7);
    }

    #[test]
    fn this_machine_has_at_least_one() {
        let here = Host::new().default_threads();
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=most.max(1)).contains(&here));
    }
}
