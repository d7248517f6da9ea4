//! Where the worker's program is, and the life of its process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use twinband_protocol::{ENGINE_VARIABLE, Exit, MODEL_FD, SHARED_FD, WORKER_PROGRAM};

use super::{Lost, Stage};

/// The environment variable that names the worker's program.
pub const WORKER_VARIABLE: &str = "TWINBAND_WORKER";

/// How long an ended worker's exit status is waited for. The pipe closes before that, and earlier by a good deal where a
/// busy system has a driver's threads and memory to clear away.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// How much of what the worker printed last is kept, in bytes.
const TAIL: usize = 4096;

/// Variables that the worker inherits. Everything else may be a trap for a driver, or a secret.
const KEPT: &[&str] = &["HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "RUST_BACKTRACE"];

/// The same, by how their names begin: where files are, and settings of loaders and drivers. The last is read by
/// a driver made for tests.
const KEPT_PREFIXES: &[&str] = &["XDG_", "VK_", "MESA_", "LP_", "LVP_", "TWINBAND_ICD_"];

/// Those of the prefixes that begin the names of settings.
const SETTINGS: &[&str] = &["VK_", "MESA_", "LP_", "LVP_"];

/// Turns implicit layers off.
const LAYERS_DISABLE: &str = "VK_LOADER_LAYERS_DISABLE";
const IMPLICIT: &str = "~implicit~";

/// What older loaders understand in its place: the layers' own switches.
const LAYER_SWITCHES: &[&str] = &[
    "DISABLE_LAYER_AMD_SWITCHABLE_GRAPHICS_1",
    "DISABLE_MANGOHUD",
    "DISABLE_VKBASALT",
    "DISABLE_VK_LAYER_VALVE_steam_fossilize_1",
    "DISABLE_VK_LAYER_VALVE_steam_overlay_1",
    "DISABLE_VULKAN_OBS_CAPTURE",
    "NODEVICE_SELECT",
];

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

/// The worker's whole environment, from that of the engine.
fn environment(
    ours: impl Iterator<Item = (OsString, OsString)>,
    keep_layers: bool,
) -> Vec<(OsString, OsString)> {
    let kept = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        KEPT.iter().any(|kept| name == kept.as_bytes())
            || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    };
    let mut theirs: Vec<_> = ours.filter(|(name, _)| kept(name)).collect();
    if !keep_layers {
        let asked =
            theirs.iter().position(|(name, _)| name == LAYERS_DISABLE).map(|i| theirs.swap_remove(i).1);
        let mut disable = OsString::from(IMPLICIT);
        if let Some(asked) = asked.filter(|asked| !asked.is_empty()) {
            disable.push(",");
            disable.push(asked);
        }
        theirs.push((LAYERS_DISABLE.into(), disable));
        theirs.extend(LAYER_SWITCHES.iter().map(|name| (name.into(), "1".into())));
    }
    theirs.push((ENGINE_VARIABLE.into(), std::process::id().to_string().into()));
    theirs
}

/// The settings of loaders and drivers that a worker finds in its environment, for reports.
pub fn worker_variables(keep_layers: bool) -> Vec<(String, String)> {
    let theirs = environment(std::env::vars_os(), keep_layers).into_iter();
    let settings = theirs.filter(|(name, _)| {
        let name = name.as_encoded_bytes();
        SETTINGS.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    });
    let text = |s: OsString| s.to_string_lossy().into_owned();
    settings.map(|(name, value)| (text(name), text(value))).collect()
}

/// A running worker. Dropping it kills it: there is nothing in it to lose.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` only while it is being dropped.
    child: Option<Child>,
    /// The last it printed.
    tail: Arc<Mutex<Vec<u8>>>,
}

/// What to start, and what it inherits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spawn<'a> {
    pub program: &'a Path,
    /// For [`SHARED_FD`].
    pub shared: Option<BorrowedFd<'a>>,
    /// For [`MODEL_FD`].
    pub model: Option<&'a File>,
    /// Whether implicit layers may be loaded.
    pub keep_layers: bool,
}

impl Process {
    /// Starts the program. The kernel kills it when the calling thread ends, so this is not for a thread of a pool.
    ///
    /// `on_end` is called, in another thread, when the worker has closed its standard error, which it does at the latest
    /// when it ends.
    pub(super) fn spawn(
        spawn: Spawn<'_>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<(Self, ChildStdin, ChildStdout), Lost> {
        Self::start(spawn, on_end).map_err(|source| Lost::Spawn { path: spawn.program.to_owned(), source })
    }

    fn start(
        Spawn { program, shared, model, keep_layers }: Spawn<'_>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut mappings = Vec::new();
        if let Some(shared) = shared {
            mappings.push(FdMapping { parent_fd: shared.try_clone_to_owned()?, child_fd: SHARED_FD });
        }
        if let Some(model) = model {
            mappings.push(FdMapping { parent_fd: OwnedFd::from(model.try_clone()?), child_fd: MODEL_FD });
        }
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(environment(std::env::vars_os(), keep_layers))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.fd_mappings(mappings).map_err(std::io::Error::other)?;
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let process = Self { child: Some(child), tail: Arc::default() };
        let ((stdin, stdout), stderr) = pipes.ok_or(std::io::ErrorKind::BrokenPipe)?;
        let tail = Arc::clone(&process.tail);
        thread::Builder::new().name("worker stderr".to_owned()).spawn(move || {
            listen(stderr, &tail);
            on_end();
        })?;
        Ok((process, stdin, stdout))
    }

    /// The process number.
    pub(super) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it has ended. Reaps it if so.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// How the process ended, once its pipe is closed. Waits for a moment if it has not.
    pub(super) fn ending(&mut self, stage: Stage) -> Lost {
        let deadline = Instant::now() + STATUS_PATIENCE;
        while !self.has_ended() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok()?);
        let mut how = status.map_or_else(|| "closed its pipe".to_owned(), describe);
        if let Some(said) = self.last_words() {
            how = format!("{how} (it printed `{said}`)");
        }
        let killed = status.and_then(|s| s.signal()) == Some(Signal::SIGKILL as i32);
        Lost::Gone { stage, how, killed }
    }

    /// The last line it printed.
    fn last_words(&self) -> Option<String> {
        let tail = self.tail.lock().ok()?;
        let text = String::from_utf8_lossy(&tail);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(200).collect())
    }
}

fn describe(status: ExitStatus) -> String {
    let meaning = status.code().and_then(Exit::from_code);
    meaning.map_or_else(|| format!("ended ({status})"), |exit| exit.to_string())
}

/// Keeps the end of what comes.
fn listen(mut stderr: ChildStderr, tail: &Mutex<Vec<u8>>) {
    let mut buffer = [0; TAIL];
    while let Ok(n @ 1..) = stderr.read(&mut buffer) {
        let Ok(mut tail) = tail.lock() else { return };
        tail.extend_from_slice(&buffer[..n]);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        // The child leads its group and is not reaped, so the number is still its own. Errors mean that it has ended.
        if let Ok(pid) = i32::try_from(child.id()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = child.kill();
        // The kernel may take a while to tear down a process with a driver in it, or for ever. If the thread cannot be
        // started, the dead process stays in the table until this one ends: harmless.
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

    #[test]
    fn the_environment_is_an_allow_list() {
        let ours = [
            ("HOME", "/home/me"),
            ("LD_PRELOAD", "/tmp/overlay.so"),
            ("AWS_SECRET", "x"),
            ("VK_DRIVER_FILES", "/a.json"),
            ("VK_LOADER_LAYERS_DISABLE", "VK_LAYER_x"),
            ("DISPLAY", ":0"),
            ("LVP_POISON_MEMORY", "1"),
        ];
        let get = |keep_layers, name: &str| {
            let ours = ours.iter().map(|(name, value)| (name.into(), value.into()));
            let mut theirs = environment(ours, keep_layers).into_iter();
            theirs.find(|(n, _)| n == name).map(|(_, value)| value.to_string_lossy().into_owned())
        };
        for (name, value) in ours {
            let kept = !["LD_PRELOAD", "AWS_SECRET", "DISPLAY"].contains(&name);
            assert_eq!(get(true, name), kept.then(|| value.to_owned()), "{name}");
        }
        assert_eq!(get(false, LAYERS_DISABLE).as_deref(), Some("~implicit~,VK_LAYER_x"));
        assert_eq!(get(false, "DISABLE_MANGOHUD").as_deref(), Some("1"));
        assert_eq!(get(true, "DISABLE_MANGOHUD"), None);
        assert_eq!(get(true, ENGINE_VARIABLE), Some(std::process::id().to_string()));
    }
}
