//! Limits that the worker puts on itself before any driver is loaded, and the way it ends.
//!
//! The environment is not touched here: the engine has cut it down to an allow-list when it started this process, before
//! any code ran that reads it.
#![allow(
    unsafe_code,
    reason = "takes over inherited descriptors, and ends the process without exit handlers"
)]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd;
use twinband_protocol::{
    ENGINE_VARIABLE, Exit, Fault, FaultCode, MODEL_FD, Message, SHARED_FD, WORKER_PROGRAM, frame,
};

/// How long the worker may go on after the engine has closed the pipe, to finish what it was told before.
const FAREWELL: Duration = Duration::from_millis(400);

/// The longest text of a panic that is reported.
const PANIC_TEXT: usize = 2000;

/// What the engine handed over.
pub struct Inherited {
    /// Messages from the engine.
    pub input: File,
    /// Messages to the engine.
    pub output: &'static File,
    /// The shared buffer, if there is one.
    pub shared: Option<OwnedFd>,
    /// The model file, if there is one.
    pub model: Option<File>,
}

/// The pipe to the engine. Here for the panic hook, which has nothing else.
static OUTPUT: OnceLock<File> = OnceLock::new();

/// The number of the message that is being answered.
static QUESTION: AtomicU64 = AtomicU64::new(0);

/// Limits the process. Called once, first of all, while there is one thread.
pub fn enter() -> io::Result<Inherited> {
    die_with_the_engine()?;
    prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // A signal from the terminal is for the engine. Refused only if this process already leads a group.
    let _ = unistd::setpgid(unistd::Pid::from_raw(0), unistd::Pid::from_raw(0));
    // If memory runs out, this process is the one to miss least. Not possible everywhere, and nothing depends on it.
    let _ = fs::write("/proc/self/oom_score_adj", "500");

    close_strangers();
    let shared = take(SHARED_FD);
    let model = take(MODEL_FD).map(File::from);
    // Drivers print, and some read: they get streams on which that does no harm.
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    unistd::dup2_stdin(File::open("/dev/null")?)?;
    unistd::dup2_stdout(io::stderr())?;

    leave_when_closed(input.try_clone()?)?;
    std::panic::set_hook(Box::new(|panic| report_panic(&panic.to_string())));
    Ok(Inherited { input, output: OUTPUT.get_or_init(|| output), shared, model })
}

/// The kernel kills this process when the thread that started it ends, however it ends.
fn die_with_the_engine() -> io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // It may have ended before the request above.
    let engine = std::env::var(ENGINE_VARIABLE).ok().and_then(|pid| pid.parse::<i32>().ok());
    if engine.is_some_and(|pid| pid != unistd::getppid().as_raw()) {
        leave(Exit::EngineGone);
    }
    Ok(())
}

/// Closes what a shell or a careless library let through.
fn close_strangers() {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd").map_or_else(
        |_| (0..1024).collect(),
        |entries| entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect(),
    );
    for fd in open.into_iter().filter(|fd| *fd > 2 && *fd != SHARED_FD && *fd != MODEL_FD) {
        // An error means that it is closed already, like the one that listed them.
        let _ = unistd::close(fd);
    }
}

/// An inherited descriptor, if it is open; from now on not inherited any further.
fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: sets a flag of a descriptor, or fails where there is none.
    let open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: it is open, as just seen, and nothing else in this process owns it or will: the process has just begun, the
    // number is named nowhere but here, and `enter` runs once, before anything is opened.
    open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Watches for the end of the engine while the serving thread may be stuck in a driver.
fn leave_when_closed(input: File) -> io::Result<()> {
    thread::Builder::new().name("engine watch".to_owned()).spawn(move || {
        loop {
            let mut fds = [PollFd::new(input.as_fd(), PollFlags::empty())];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => break,
                Err(nix::Error::EINTR) => {}
                Err(_) => return,
            }
        }
        thread::sleep(FAREWELL);
        leave(Exit::EngineGone);
    })?;
    Ok(())
}

/// Notes which message is being answered.
pub fn answering(seq: u64) {
    QUESTION.store(seq, Ordering::Relaxed);
}

/// Writes bytes that are no message: what a driver does that prints to a descriptor it should not know.
pub fn write_rubbish(bytes: &[u8]) {
    if let Some(mut pipe) = OUTPUT.get() {
        let _ = pipe.write_all(bytes);
    }
}

/// Tells the engine of a panic, in whatever thread, and ends.
fn report_panic(text: &str) -> ! {
    eprintln!("{WORKER_PROGRAM}: {text}");
    if let Some(mut pipe) = OUTPUT.get() {
        let text = format!("the worker failed: {}", text.chars().take(PANIC_TEXT).collect::<String>());
        let fault = Message::Fault(Fault { code: FaultCode::Internal, text });
        let _ = frame::send(&mut pipe, QUESTION.load(Ordering::Relaxed), &fault);
    }
    leave(Exit::Fault(FaultCode::Internal))
}

/// Ends the process at once: no destructors, no exit handlers.
pub fn leave(exit: Exit) -> ! {
    // SAFETY: ends the process; has no other effect on it.
    unsafe { libc::_exit(exit.code().into()) }
}
