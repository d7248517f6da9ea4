//! Where the worker's program is, and the life of its process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use twinband_protocol::{Exit, WORKER_PROGRAM};

use super::Error;

/// The environment variable that names the worker's program.
pub const WORKER_VARIABLE: &str = "TWINBAND_WORKER";

/// How long an ended worker's exit status is waited for; the pipe can close a little earlier.
const STATUS_PATIENCE: Duration = Duration::from_millis(200);

/// The worker's program: the one named (`--worker`), else that of [`WORKER_VARIABLE`], else the one beside this
/// executable. Whether it is there shows when it is started.
pub fn locate(named: Option<&Path>) -> PathBuf {
    choose(named, std::env::var_os(WORKER_VARIABLE), std::env::current_exe().ok())
}

fn choose(named: Option<&Path>, variable: Option<OsString>, executable: Option<PathBuf>) -> PathBuf {
    if let Some(path) = named {
        return path.to_owned();
    }
    if let Some(path) = variable.filter(|path| !path.is_empty()) {
        return path.into();
    }
    let program = format!("{WORKER_PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    executable.as_deref().and_then(Path::parent).unwrap_or(Path::new("")).join(program)
}

/// A running worker. Dropping it kills it: there is nothing in it to lose.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` only while it is being dropped.
    child: Option<Child>,
}

impl Process {
    /// Starts the program with both pipes. What it prints to standard error is a driver's talk and goes nowhere.
    pub(super) fn spawn(path: &Path) -> Result<(Self, ChildStdin, ChildStdout), Error> {
        let spawn_error = |source| Error::Spawn { path: path.to_owned(), source };
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(spawn_error)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Self { child: Some(child) };
        let (stdin, stdout) = pipes.ok_or_else(|| spawn_error(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok((process, stdin, stdout))
    }

    /// Says how the process ended, once its pipe is closed.
    pub(super) fn ending(&mut self) -> String {
        let Some(child) = &mut self.child else { return "is gone".to_owned() };
        let deadline = Instant::now() + STATUS_PATIENCE;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let meaning = status.code().and_then(Exit::from_code);
                    return meaning.map_or_else(|| format!("ended ({status})"), |exit| exit.to_string());
                }
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                Ok(None) => return "closed its pipe".to_owned(),
                Err(error) => return format!("is lost: {error}"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // An error here means that it has ended already.
        let _ = child.kill();
        // The kernel may take a while to tear down a process with a driver in it. If the thread cannot be started, the
        // dead process stays in the table until this one ends: harmless.
        let _ = thread::Builder::new().name("worker reaper".to_owned()).spawn(move || child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_wins() {
        let executable = || Some(PathBuf::from("/opt/bin/twinband"));
        let named = Path::new("/a/worker");
        assert_eq!(choose(Some(named), Some("/b/worker".into()), executable()), named);
        assert_eq!(choose(None, Some("/b/worker".into()), executable()), Path::new("/b/worker"));
        let beside = PathBuf::from(format!("/opt/bin/twinband-worker{}", std::env::consts::EXE_SUFFIX));
        assert_eq!(choose(None, None, executable()), beside);
        assert_eq!(choose(None, Some("".into()), executable()), beside);
    }
}
