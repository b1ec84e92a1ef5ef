//! The resources that a process uses, from /proc on Linux.

use std::time::Duration;

/// CPU time of all its threads so far, user and system, with a resolution of 10 ms.
pub fn cpu(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name in parentheses may contain spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    Duration::from_millis(10 * fields[11..13].iter().map(|t| t.parse::<u64>().unwrap()).sum::<u64>())
}

/// A kB line of its status, such as `VmRSS:`, in MiB.
pub fn mib(process: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
