//! The priority of this process among others.

use std::io;

use super::Host;

/// Well before programs of normal priority (0), behind what keeps a system running (-20).
const NICE: i32 = -10;

impl Host {
    /// Raises the priority of the calling thread and of the threads and processes it starts from then on. Never lowers it.
    ///
    /// # Errors
    /// Mostly that this user may not: it takes CAP_SYS_NICE or a limit (`ulimit -e`) that allows it.
    pub fn raise_priority() -> io::Result<()> {
        let now = rustix::process::getpriority_process(None)?;
        if now > NICE {
            rustix::process::setpriority_process(None, NICE)?;
        }
        Ok(())
    }
}
