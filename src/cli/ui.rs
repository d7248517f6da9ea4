//! What commands say on standard error: notes, warnings, progress.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long a piece of work has to take before its progress bar appears: short work should not flash one.
const PROGRESS_DELAY: Duration = Duration::from_millis(700);

/// The side channel of a command: standard error, as quiet or verbose as the user asked.
#[derive(Debug, Clone)]
pub struct Ui {
    verbose: bool,
    quiet: bool,
    terminal: bool,
    /// Lines kept until a text has been shown.
    asides: Arc<Mutex<Vec<String>>>,
}

impl Ui {
    /// `quiet` wins over `verbose`.
    pub fn new(verbose: bool, quiet: bool) -> Self {
        Ui { verbose: verbose && !quiet, quiet, terminal: io::stderr().is_terminal(), asides: Arc::default() }
    }

    /// Whether details were asked for (`-v`).
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// A line the user should see unless `--quiet`: `note: ...`.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            line(format_args!("note: {text}"));
        }
    }

    /// A line about something that may be wrong, shown unless `--quiet`: `warning: ...`.
    pub fn warn(&self, text: impl Display) {
        if !self.quiet {
            line(format_args!("warning: {text}"));
        }
    }

    /// A line that comes up while a text is being shown: kept for [`Ui::catch_up`], so that it does not fall into the
    /// middle of a sentence. With `-v` it is shown at once.
    pub fn aside(&self, text: &str) {
        if self.verbose {
            line(text);
        } else if let Ok(mut asides) = self.asides.lock() {
            asides.push(text.to_owned());
        }
    }

    /// Shows the lines that were kept, unless `--quiet`.
    pub fn catch_up(&self) {
        let Ok(mut asides) = self.asides.lock() else { return };
        for text in asides.drain(..) {
            if !self.quiet {
                line(text);
            }
        }
    }

    /// A line shown only with `-v`.
    pub fn detail(&self, text: impl Display) {
        if self.verbose {
            line(text);
        }
    }

    /// Lines which the user asked for by an option, `--quiet` or not.
    pub fn stats(&self, lines: impl Display) {
        line(lines);
    }

    /// A progress bar over `total` steps, drawn only when standard error is a terminal and the work takes a while.
    pub fn progress(&self, what: &str, total: u64) -> Progress {
        Progress::new(what, total, self.terminal && !self.quiet)
    }
}

/// Standard error may be closed; a lost note is no reason to stop.
fn line(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A progress bar which erases itself when dropped; draws nothing where nobody looks.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    since: std::time::Instant,
    shown: bool,
    total: u64,
}

impl Progress {
    fn new(what: &str, total: u64, visible: bool) -> Self {
        let bar = visible.then(|| ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()));
        Progress { bar, what: what.to_owned(), since: std::time::Instant::now(), shown: false, total }
    }

    /// `done` of the total are finished.
    pub fn set(&mut self, done: u64) {
        let Some(bar) = &self.bar else { return };
        if !self.shown && self.since.elapsed() >= PROGRESS_DELAY && done < self.total {
            if let Ok(style) = ProgressStyle::with_template("{msg} {bar:32} {pos}/{len} {eta}") {
                bar.set_style(style);
            }
            bar.set_message(self.what.clone());
            bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        bar.set_position(done);
    }

    /// Erases the bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
