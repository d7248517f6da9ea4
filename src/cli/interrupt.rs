//! Ctrl-C and SIGTERM: the first asks the work to stop, the second leaves at once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;

/// The exit code of an interrupted command, as shells report it for SIGINT.
pub const EXIT: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<()> = OnceLock::new();

/// The command was interrupted before it had a result.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Catches the signals from now on and returns the flag they raise. A loop looks at it between steps;
/// who handled it lowers it again. A signal while the flag is still up ends the process.
pub fn flag() -> anyhow::Result<&'static AtomicBool> {
    if INSTALLED.set(()).is_ok() {
        ctrlc::set_handler(|| {
            if ASKED.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(EXIT));
            }
        })
        .context("cannot catch Ctrl-C")?;
    }
    Ok(&ASKED)
}
