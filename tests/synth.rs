//! `twinband synth`: its files run, are the same for the same seed, and replace nothing unasked.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use twinband::kernel::format;

/// `twinband synth tiny ARGS` in a folder.
fn synth(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
    command.current_dir(dir).arg("synth").args(args).output().expect("the program starts")
}

/// The answer of two tokens to a prompt.
fn run(dir: &Path, file: &str, args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
    command.current_dir(dir).args(["run", file, "hello world", "-n", "2", "--ignore-eos", "--json"]);
    let output = command.args(args).output().expect("the program starts");
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[track_caller]
fn fails(output: &Output, code: i32, part: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && text.contains(part), "{code}, {part}: {text}");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a folder").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_model_of_every_format_runs_and_the_exact_path_agrees() {
    let dir = tempfile::tempdir().expect("a folder");
    for ty in format::all().map(|format| format.ty.to_string()) {
        let output = synth(dir.path(), &["tiny", "--type", &ty.to_lowercase(), "-o", "x.gguf", "--force"]);
        assert!(output.status.success(), "{ty}: {}", String::from_utf8_lossy(&output.stderr));
        let answer = run(dir.path(), "x.gguf", &[]);
        assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(2), "{ty}");
        let exact = run(dir.path(), "x.gguf", &["--exact"]);
        assert_eq!(answer["tokens"][0], exact["tokens"][0], "{ty}");
    }
}

#[test]
fn a_seed_is_a_digest() {
    let dir = tempfile::tempdir().expect("a folder");
    let digest = |name: &str, args: &[&str]| {
        let output = synth(dir.path(), &[&["tiny", "--type", "Q4_0", "-o", name], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        run(dir.path(), name, &[])["digest"].to_string()
    };
    let first = digest("a.gguf", &[]);
    assert_eq!(first, digest("b.gguf", &["--seed", "0"]));
    let read = |name: &str| std::fs::read(dir.path().join(name)).expect("a file");
    assert!(read("a.gguf") == read("b.gguf"));
    let others = BTreeSet::from([
        first,
        digest("c.gguf", &["--seed", "1"]),
        digest("d.gguf", &["--seed", "18446744073709551615"]),
        digest("e.gguf", &["--layers", "1"]),
    ]);
    assert_eq!(others.len(), 4, "{others:?}");
}

#[test]
fn a_file_that_is_there_is_replaced_only_by_force() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("mine.gguf"), "precious").expect("a file");
    let mine = || std::fs::read(dir.path().join("mine.gguf")).expect("a file");
    let args = ["tiny", "--type", "Q8_0", "-o", "mine.gguf"];
    fails(&synth(dir.path(), &args), 1, "mine.gguf exists already; use --force");
    assert_eq!(mine(), b"precious");
    assert!(synth(dir.path(), &[&args[..], &["--force"]].concat()).status.success());
    assert!(mine().starts_with(b"GGUF"));
    assert_eq!(names(dir.path()), ["mine.gguf"], "nothing is left beside it");
}

#[test]
fn odd_arguments_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    for (args, code, part) in [
        (&["huge", "--type", "Q4_0", "-o", "x"][..], 2, "llama-3.2-1b"),
        (&["tiny", "--type", "Q9_9", "-o", "x"], 2, "Q4_K"),
        (&["tiny", "--type", "Q8_1", "-o", "x"], 2, "possible values"),
        (&["tiny", "--type", "Q4_0"], 2, "--output"),
        (&["tiny", "-o", "x"], 2, "--type"),
        (&["tiny", "--type", "Q4_0", "-o", "x", "--layers", "0"], 2, "at least 1"),
        (&["tiny", "--type", "Q4_0", "-o", "x", "--layers", "1001"], 2, "at most 1000"),
        (&["tiny", "--type", "Q4_0", "-o", "x", "--layers", "99999999999999999999"], 2, "whole number"),
        (&["tiny", "--type", "Q4_0", "-o", "x", "--seed", "1.5"], 2, "--seed"),
        (&["tiny", "--type", "Q4_0", "-o", "no/such/x"], 1, "cannot create no/such/.x.part-"),
        (&["tiny", "--type", "Q4_0", "-o", ".", "--force"], 1, "no ordinary file"),
        (&["tiny", "--type", "Q4_0", "-o", "/dev/null", "--force"], 1, "no ordinary file"),
        (&["tiny", "--type", "Q4_0", "-o", "", "--force"], 2, "--output"),
    ] {
        fails(&synth(dir.path(), args), code, part);
    }
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}
