//! The program with a device computing part of the head: the text and every bit of the logits are those of the CPU
//! alone, whatever the device does. The device here is the worker's own CPU code, which fails on request; the numbers
//! in names are the kinds of fault that users of comparable engines report.

mod common;

use std::process::{Command, Stdio};

use common::place;
use common::tiny::{Tiny, encode};
use serde_json::Value;
use tempfile::TempDir;

struct Place {
    dir: TempDir,
    model: std::path::PathBuf,
}

impl Place {
    /// A model of an odd vocabulary whose head is in a format of which the worker has its own code.
    fn new(head_q8: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let tiny = Tiny::new()
            .n_vocab(1003)
            .tied()
            .format(move |t| if head_q8 { encode::q8_0(t) } else { encode::q4_0(t) });
        let model = tiny.write(dir.path(), "tiny.gguf");
        Place { dir, model }
    }

    /// The same model in our own container, with its head interleaved.
    fn interleaved(self) -> Self {
        let model = self.dir.path().join("tiny.g2bx");
        place::interleaved(&self.model, &model);
        Place { model, ..self }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
        command
            .arg("run")
            .arg(&self.model)
            .args(["the hello and", "--json", "--ignore-eos", "--threads", "2"])
            .args(if args.contains(&"-n") { &[][..] } else { &["-n", "40"] })
            .args(args)
            .env("XDG_CACHE_HOME", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Value {
        let output = self.command(args).output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {text}");
        serde_json::from_slice(&output.stdout).expect("one JSON value")
    }

    /// As [`Place::run`], with a device of these faults that takes part from the first token on.
    fn with(&self, faults: &str, share: &str, more: &[&str]) -> Value {
        let args = ["--gpu", "on", "--gpu-null", faults, "--gpu-share", share];
        self.run(&[&args[..], more].concat())
    }
}

fn same(a: &Value, b: &Value, what: &str) {
    for field in ["text", "tokens", "digest"] {
        assert_eq!(a[field], b[field], "{what}: {field}");
    }
}

#[test]
fn the_share_of_a_device_changes_no_bit() {
    for q8 in [false, true] {
        let place = Place::new(q8);
        for sampling in [&["--temp", "0"][..], &["--temp", "1.5", "--seed", "7"]] {
            let cpu = place.run(sampling);
            assert_eq!(cpu["gpu"]["mode"], "off");
            for share in ["0.01", "0.5", "0.99", "1"] {
                for verify in ["spot", "full"] {
                    let both = place.with("", share, &[sampling, &["--verify", verify][..]].concat());
                    same(&cpu, &both, share);
                    let gpu = &both["gpu"];
                    // Nearly every token, but a busy machine may make an answer late.
                    assert!(gpu["jobs"].as_u64() >= Some(20), "share {share}: {gpu}");
                    assert_eq!(gpu["mismatches"], 0);
                    assert!(gpu["share"].as_f64() > Some(0.0), "{gpu}");
                }
            }
        }
    }
}

/// A packed file may have its head in groups of eight rows, which the worker takes apart.
#[test]
fn an_interleaved_head_is_no_other() {
    for q8 in [false, true] {
        let place = Place::new(q8);
        let cpu = place.run(&[]);
        let place = place.interleaved();
        same(&cpu, &place.run(&[]), "the packed file");
        for (share, verify) in [("0.01", "spot"), ("0.5", "full"), ("1", "spot")] {
            let both = place.with("", share, &["--verify", verify]);
            same(&cpu, &both, share);
            let gpu = &both["gpu"];
            assert!(gpu["jobs"].as_u64() >= Some(20), "share {share}: {gpu}");
            assert_eq!(gpu["mismatches"], 0, "{gpu}");
        }
        for faults in ["corrupt=3@7", "nan=3@1", "lost@7", "abort@30", "hang@7", "memory=500"] {
            let both = place.with(faults, "0.9", &[]);
            same(&cpu, &both, faults);
            assert!(!both["gpu"]["last_fault"].is_null(), "{faults} was noticed: {}", both["gpu"]);
        }
    }
}

/// V13, V16, V18 and their kin: at the first token, at the seventh, and later.
#[test]
fn no_fault_changes_the_text() {
    let place = Place::new(false);
    let cpu = place.run(&[]);
    for at in [1, 7, 30] {
        for fault in ["corrupt", "nan", "lost", "abort", "exit0", "hang", "garbage"] {
            let row = if matches!(fault, "corrupt" | "nan") { "=3" } else { "" };
            let faults = format!("{fault}{row}@{at}");
            let both = place.with(&faults, "0.5", &[]);
            same(&cpu, &both, &faults);
            let gpu = &both["gpu"];
            assert!(!gpu["last_fault"].is_null(), "{faults} was noticed: {gpu}");
        }
    }
}

/// V18: a wrong number ends the device's part, and its fault is counted.
#[test]
fn a_wrong_number_is_found_and_the_device_dropped() {
    for faults in ["corrupt=0@9", "nan=0@40"] {
        let place = Place::new(true);
        let both = place.with(faults, "0.9", &["--verify", "full"]);
        let gpu = &both["gpu"];
        assert_eq!(gpu["mismatches"], 1, "{gpu}");
        // With the last token it has just been lost; given up follows.
        assert!(gpu["state"] == "given-up" || gpu["state"] == "lost", "{gpu}");
        // It is remembered, also when the program ended right after.
        let output =
            place.command(&["-n", "2", "--gpu", "on", "--gpu-null", faults]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("wrong number") && text.contains("vkinfo --retry"), "{text}");
    }
}

/// V12: an explicit wish that cannot be granted is an error with its cause; `auto` goes on without a word on standard
/// output and tells JSON readers.
#[test]
fn a_device_that_cannot_be_had() {
    let place = Place::new(false);
    let run = |mode: &str| {
        Command::new(env!("CARGO_BIN_EXE_twinband"))
            .arg("run")
            .arg(&place.model)
            .args(["the", "--json", "-n", "4", "--gpu", mode, "--worker", "/nonexistent/worker"])
            .env("XDG_CACHE_HOME", place.dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("the program starts")
    };
    let on = run("on");
    let text = String::from_utf8_lossy(&on.stderr);
    assert_eq!(on.status.code(), Some(1), "{text}");
    assert!(text.contains("/nonexistent/worker") && text.contains("vkinfo"), "{text}");
    let auto = run("auto");
    assert_eq!(auto.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&auto.stdout).expect("one JSON value");
    assert_eq!(json["gpu"]["mode"], "auto");
    assert_eq!(json["gpu"]["jobs"], 0);
}

/// Nothing is not a share, and what is said of a GPU that is off is answered.
#[test]
fn options_that_contradict_each_other() {
    let place = Place::new(false);
    for share in ["0", "-0.1", "1.5", "nan", "half"] {
        let share = format!("--gpu-share={share}");
        let output = place.command(&["--gpu", "on", &share]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{share}: {text}");
        assert!(text.contains("above 0 and at most 1") && text.contains("--gpu off"), "{share}: {text}");
    }
    let output = place.command(&["-n", "1", "--gpu-share", "0.5"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("note: ") && text.contains("--gpu on"), "{text}");
}

/// V30: the device is measured, found slower than the CPU, and left alone.
#[test]
fn a_slow_device_gets_no_rows() {
    let place = Place::new(false);
    let cpu = place.run(&["-n", "500"]);
    let both = place.run(&["-n", "500", "--gpu", "on", "--gpu-null", "slow=5@1"]);
    same(&cpu, &both, "slow");
    assert_eq!(both["gpu"]["share"], 0.0, "{}", both["gpu"]);
}
