//! What the driver is told to do, in two environment variables, and the carrying out of it.
//!
//! `TWINBAND_ICD_FAULT` is a list of words with commas between them, `TWINBAND_ICD_LOG` a file that gets a line with the
//! name of the stage for every call of one.
//!
//! | word | effect |
//! |---|---|
//! | `STAGE=ACTION` | the action with every call of the stage |
//! | `STAGE=ACTION@N` | with the N-th call of this process and every later one |
//! | `STAGE=ACTION@N-M` | with the N-th to the M-th call |
//! | `once=PATH` | only one action is carried out, by the process that makes this file |
//! | `alloc-max=B` | allocations of more than B bytes are refused |
//! | `type=T` | the device says that it is `discrete` or `integrated` |
//! | `name=S` | the device says that this is its name |
//! | `ssbo-range=B`, `wg-count=N`, `wg-inv=N`, `smem=B` | the device says that these are its limits |
//! | `heap=B` | every heap of the device says that this is its size |
//!
//! Stages: `init` (the driver is greeted), `instance`, `enumerate`, `device`, `alloc`, `pipe` (a pipeline is compiled),
//! `pool` (a command pool is made), `submit`, `wait`, `job`, `end` (the device is torn down). A job is counted when work
//! that computes is submitted with a fence, and what is ordered for it happens in every wait for that fence; copies to
//! the device, of which there are now more and now fewer, do not count.
//!
//! Actions: `segv`, `abort`, `exit0` (the process ends with status 0 and no word), `kill` and `stop` (the process gets
//! this signal, as if from outside), `hang`, `slow:MS`, `fail` (the stage's own error), `lost` (device lost), `timeout`
//! (says at once that it is not ready), and for `wait` and `job` also `corrupt` (a bit of the first number of every small
//! buffer is flipped).

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// What is left for the caller to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    Lost,
    Timeout,
    Corrupt,
}

unsafe extern "C" {
    /// Ends the process without a word, and without the tear-down that `exit` has.
    safe fn _exit(status: i32) -> !;

    /// Sends a signal to the calling thread; these end or stop the whole process.
    safe fn raise(signal: i32) -> i32;
}

const SIGKILL: i32 = 9;
/// On all of Linux but MIPS, PA-RISC and SPARC.
const SIGSTOP: i32 = 19;

/// The value of a word `key=value`.
pub fn value(key: &str) -> Option<String> {
    words().into_iter().find_map(|(k, value)| (k == key).then_some(value))
}

/// The same as a number.
pub fn number<T: std::str::FromStr>(key: &str) -> Option<T> {
    value(key)?.parse().ok()
}

fn words() -> Vec<(String, String)> {
    let text = std::env::var("TWINBAND_ICD_FAULT").unwrap_or_default();
    text.split(',')
        .filter_map(|word| word.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// Counts a call of a stage and does what was ordered for it.
pub fn reach(stage: &'static str) -> Verdict {
    carry_out(stage, count(stage))
}

/// Does what was ordered for a call of a stage.
pub fn carry_out(stage: &'static str, call: u64) -> Verdict {
    let mut verdict = Verdict::Pass;
    for (_, order) in words().iter().filter(|(key, _)| key == stage) {
        let (action, when) = order.split_once('@').unwrap_or((order, "1"));
        let (first, last) = when.split_once('-').unwrap_or((when, ""));
        let last = last.parse().unwrap_or(u64::MAX);
        if !(first.parse().unwrap_or(1)..=last).contains(&call) {
            continue;
        }
        if value("once").is_some_and(|path| File::create_new(path).is_err()) {
            continue;
        }
        match action.split_once(':').unwrap_or((action, "")) {
            ("segv", _) => crash(),
            ("abort", _) => std::process::abort(),
            ("exit0", _) => _exit(0),
            ("kill", _) => _ = raise(SIGKILL),
            ("stop", _) => _ = raise(SIGSTOP),
            ("hang", _) => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            ("slow", ms) => thread::sleep(Duration::from_millis(ms.parse().unwrap_or(0))),
            ("fail", _) => verdict = Verdict::Fail,
            ("lost", _) => verdict = Verdict::Lost,
            ("timeout", _) => verdict = Verdict::Timeout,
            ("corrupt", _) => verdict = Verdict::Corrupt,
            // A test that misspells its fault must not pass for want of one.
            _ => {
                eprintln!("TWINBAND_ICD_FAULT: no action {action:?}");
                std::process::abort();
            }
        }
    }
    verdict
}

/// Counts a call of a stage.
pub fn count(stage: &'static str) -> u64 {
    static CALLS: Mutex<Vec<(&str, u64)>> = Mutex::new(Vec::new());
    let Ok(mut calls) = CALLS.lock() else { return 0 };
    if !calls.iter().any(|(name, _)| *name == stage) {
        calls.push((stage, 0));
    }
    if let Some(path) = std::env::var_os("TWINBAND_ICD_LOG") {
        // One write, so that lines of two processes do not mix. A log that cannot be written shows as missing lines.
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(format!("{stage}\n").as_bytes()));
    }
    calls.iter_mut().find(|(name, _)| *name == stage).map_or(0, |(_, n)| {
        *n += 1;
        *n
    })
}

/// A true fault: a signal sent to oneself would be taken for somebody else's.
fn crash() -> ! {
    let nowhere = std::ptr::without_provenance_mut::<u64>(8);
    // SAFETY: there is none: the first page is never mapped, and the process ends here.
    unsafe { nowhere.write_volatile(1) };
    std::process::abort();
}
