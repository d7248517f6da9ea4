//! The program as its users meet it: processes over a tiny model, their output, messages and exit codes.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::tiny::Tiny;
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "the hello and";

/// A folder with a tiny model in it.
struct Place {
    dir: TempDir,
    model: PathBuf,
}

impl Place {
    fn new() -> Self {
        Self::of(&Tiny::new())
    }

    fn of(tiny: &Tiny) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let model = tiny.write(dir.path(), "tiny.gguf");
        Place { dir, model }
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// `twinband COMMAND MODEL ARGS`, with nothing on standard input.
    fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut all = program();
        all.arg(command).arg(&self.model).args(args).stdin(Stdio::null());
        all
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command("run", args).output().expect("the program starts")
    }

    /// `run --json` with the prompt; must succeed.
    fn json(&self, args: &[&str]) -> Value {
        let mut command = self.command("run", &[PROMPT, "--json", "--ignore-eos"]);
        json(&command.args(args).output().expect("the program starts"))
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_twinband"))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8 on standard output")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8 on standard error")
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

/// The exit code is `code`; standard error has one `error: `, behind warnings at most, and contains all of `parts`, on
/// few lines.
#[track_caller]
fn fails(output: &Output, code: i32, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let mut lines = text.lines().skip_while(|line| line.starts_with("warning: "));
    assert!(lines.next().is_some_and(|line| line.starts_with("error: ")), "{text}");
    assert!(code == 2 || lines.count() <= 2, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

fn text_of(value: &Value) -> &str {
    value["text"].as_str().expect("a text")
}

// ------------------------------------------------------------------------------------------------- command line

#[test]
fn wrong_command_lines_exit_with_2() {
    let place = Place::new();
    let cases: [&[&str]; 17] = [
        &["--no-such-option"],
        &["x", "-n", "-5"],
        &["x", "-n", "1.5"],
        &["x", "--temp", "-1"],
        &["x", "--temp", "NaN"],
        &["x", "--temp", "inf"],
        &["x", "--top-p", "1.5"],
        &["x", "--min-p", "-0.1"],
        &["x", "--top-k", "-3"],
        &["x", "--repeat-penalty", "0"],
        &["x", "--logit-bias", "42"],
        &["x", "--seed", "-1"],
        &["x", "-t", "-1"],
        &["x", "--batch", "0"],
        &["x", "--kv", "q7"],
        &["x", "--kv", "q8", "--q8-kv"],
        &["x", "-f", "y"],
    ];
    for args in cases {
        let output = place.run(args);
        assert!(output.stdout.is_empty());
        fails(&output, 2, &[]);
    }
    assert_eq!(program().output().expect("the program starts").status.code(), Some(2));
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "chat"]] {
        let output = program().args(args).output().expect("the program starts");
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{args:?}");
    }
    let help = stdout(&program().arg("--help").output().expect("the program starts"));
    assert!(help.contains("Exit codes:") && help.contains("130"), "{help}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let place = Place::new();
    let missing = place.dir.path().join("none.gguf");
    let run = |model: &Path, args: &[&str]| {
        program().arg("run").arg(model).args(args).stdin(Stdio::null()).output().expect("the program starts")
    };
    fails(&run(&missing, &["x"]), 1, &["none.gguf", "No such file"]);
    fails(&run(place.dir.path(), &["x"]), 1, &[]);
    fails(&run(&place.file("text.gguf", "hello, I am no model"), &["x"]), 1, &["text.gguf", "GGUF"]);
    fails(&run(&place.file("empty.gguf", ""), &["x"]), 1, &["empty.gguf"]);
    fails(&place.run(&["-f", "no-prompt.txt"]), 1, &["no-prompt.txt", "No such file"]);
    fails(
        &place.run(&["-f", place.file("latin1.txt", b"caf\xe9").to_str().expect("a path")]),
        1,
        &["latin1.txt", "UTF-8", "offset 3"],
    );
    // A folder as standard input cannot be read.
    let folder = std::fs::File::open(place.dir.path()).expect("a folder opens");
    let output = place.command("run", &[]).stdin(folder).output().expect("the program starts");
    fails(&output, 1, &["standard input"]);
    fails(&place.run(&[""]), 1, &["prompt is empty"]);
    fails(&place.run(&["x", "--isa", "avx1024"]), 1, &["avx1024", "scalar"]);
    fails(&place.run(&["x", "-t", "100000"]), 1, &["100000"]);
    fails(&place.run(&["x", "--logit-bias", "999=1"]), 1, &["999", "300"]);
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let output = |args: &[&str]| stdout(&program().args(args).output().expect("the program starts"));
    let help = output(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Continued descriptions are indented further.
        .filter(|line| line.get(2..).is_some_and(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(
        ["run", "chat", "bench", "ppl", "man", "help"].iter().all(|c| commands.contains(c)),
        "{commands:?}"
    );
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&["completions", shell]);
        assert!(commands.iter().all(|c| script.contains(c)), "{shell}");
    }
    let page = output(&["man"]);
    assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{page}");
    assert!(output(&["man", "run"]).contains("repeat\\-penalty"));
    let dir = tempfile::tempdir().expect("a folder");
    output(&["man", "--dir", dir.path().to_str().expect("a path")]);
    for command in commands.iter().filter(|c| **c != "help") {
        assert!(dir.path().join(format!("twinband-{command}.1")).exists(), "{command}");
    }
    let wrong = program().args(["man", "walk"]).output().expect("the program starts");
    fails(&wrong, 1, &["walk", "run"]);
}

// ------------------------------------------------------------------------------------------------------------ run

#[test]
fn json_has_its_fields() {
    let value = Place::new().json(&["-n", "12"]);
    let object = value.as_object().expect("an object");
    let fields: Vec<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "text",
            "tokens",
            "prompt_tokens",
            "digest",
            "stop_reason",
            "prefill_tps",
            "decode_tps",
            "rss_anon_peak_bytes",
            "gpu"
        ]
    );
    assert_eq!(value["tokens"].as_array().map(Vec::len), Some(12));
    assert_eq!(value["stop_reason"], "length");
    assert!(value["prompt_tokens"].as_u64().is_some_and(|n| (3..=13).contains(&n)));
    let digest = value["digest"].as_str().expect("a digest");
    assert!(digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
    assert!(value["prefill_tps"].as_f64().is_some_and(|x| x > 0.0));
    assert!(value["decode_tps"].as_f64().is_some_and(|x| x > 0.0));
    assert!(value["rss_anon_peak_bytes"].as_u64().is_some_and(|n| n > 100_000));
    assert_eq!(value["gpu"]["mode"], "off");
}

#[test]
fn text_is_streamed_as_json_reports_it() {
    let place = Place::new();
    let value = place.json(&["-n", "40"]);
    let output = place.run(&[PROMPT, "-n", "40", "--ignore-eos", "--stats"]);
    let text = text_of(&value);
    let line = if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
    assert_eq!(stdout(&output), line);
    assert!(stderr(&output).contains(value["digest"].as_str().expect("a digest")), "{}", stderr(&output));
}

#[test]
fn the_answer_depends_on_nothing_but_file_tokens_and_numeric_options() {
    let place = Place::new();
    let of = |args: &[&str]| {
        let value = place.json(&[&["-n", "30"], args].concat());
        (value["tokens"].clone(), value["digest"].clone(), value["text"].clone())
    };
    for base in
        [&[][..], &["--temp", "0.9", "--seed", "5"], &["--temp", "1.2", "--top-k", "20", "--top-p", "0.9"]]
    {
        let expected = of(base);
        for same in [
            &["-t", "1"][..],
            &["-t", "2"],
            &["-t", "3", "--batch", "1"],
            &["--batch", "2"],
            &["--batch", "1000"],
            &["--isa", "scalar"],
            &["--ctx", "100"],
        ] {
            assert_eq!(of(&[base, same].concat()), expected, "{base:?} {same:?}");
        }
    }
    let exact = of(&["--exact"]);
    assert_ne!(exact.1, of(&[]).1);
    assert_eq!(of(&["--exact", "-t", "1", "--isa", "scalar", "--batch", "1"]), exact);
}

#[test]
fn a_seed_decides_what_is_sampled() {
    let place = Place::new();
    let of = |seed: &str| place.json(&["-n", "20", "--temp", "1.5", "--seed", seed])["tokens"].clone();
    assert_eq!(of("1"), of("1"));
    assert_ne!(of("1"), of("2"));
    assert_ne!(of("random"), of("random"));
}

#[test]
fn many_threads_on_few_cores_end_in_sane_time() {
    let place = Place::new();
    let expected = place.json(&["-n", "20"])["digest"].clone();
    let start = Instant::now();
    assert_eq!(place.json(&["-n", "20", "-t", "64"])["digest"], expected);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_prompt_comes_from_an_argument_a_file_or_a_pipe() {
    let place = Place::new();
    let expected = stdout(&place.run(&[PROMPT, "-n", "8"]));
    let file = place.file("prompt.txt", format!("{PROMPT}\n"));
    let path = file.to_str().expect("a path");
    assert_eq!(stdout(&place.run(&["-f", path, "-n", "8"])), expected);
    for args in [&["-n", "8"][..], &["-", "-n", "8"], &["-f", "-", "-n", "8"]] {
        let input = std::fs::File::open(&file).expect("the file");
        let output = place.command("run", args).stdin(input).output().expect("the program starts");
        assert_eq!((stdout(&output), output.status.code()), (expected.clone(), Some(0)), "{args:?}");
    }
}

#[test]
fn lengths_at_the_edge() {
    let place = Place::new();
    let none = place.json(&["-n", "0"]);
    assert_eq!((text_of(&none), &none["stop_reason"]), ("", &Value::from("length")));
    assert_eq!(none["digest"], "cbf29ce484222325");
    assert_eq!(place.json(&["-n", "1"])["tokens"].as_array().map(Vec::len), Some(1));

    let n = none["prompt_tokens"].as_u64().expect("a number");
    let ctx =
        |size: u64| place.run(&[PROMPT, "--json", "--ignore-eos", "-n", "-1", "--ctx", &size.to_string()]);
    fails(&ctx(n - 1), 1, &[&format!("{n} tokens"), &format!("holds {}", n - 1)]);
    for (size, tokens) in [(n, 1), (n + 1, 2), (n + 20, 21)] {
        let output = ctx(size);
        let value = json(&output);
        assert_eq!(value["tokens"].as_array().map(Vec::len), Some(tokens));
        assert_eq!(value["stop_reason"], "context");
        assert!(
            stderr(&output).contains(&format!("context of {size} tokens is full")),
            "{}",
            stderr(&output)
        );
    }
    fails(&ctx(0), 1, &[]);
}

#[test]
fn stop_strings_end_the_text_and_are_not_shown() {
    let place = Place::new();
    let whole = place.json(&["-n", "40"]);
    let text = text_of(&whole).to_owned();
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    let mut tried = 0;
    for (i, &start) in starts.iter().enumerate().skip(3).step_by(7) {
        let Some(&end) = starts.get(i + 4) else { break };
        let stop = &text[start..end];
        let value = place.json(&["-n", "40", "--stop", "never \u{1} said", "--stop", stop]);
        let first = text.find(stop).expect("it is in the text");
        assert_eq!(
            (text_of(&value), &value["stop_reason"]),
            (&text[..first], &Value::from("stop")),
            "{stop:?}"
        );
        tried += 1;
    }
    assert!(tried >= 3, "{text:?}");
    let other = place.json(&["-n", "40", "--stop", "never \u{1} said"]);
    assert_eq!((&other["text"], &other["digest"]), (&whole["text"], &whole["digest"]));
}

#[test]
fn the_model_ends_a_text_by_its_own_token() {
    // The end token is made the likeliest by a bias; its id is the last of the vocabulary.
    let place = Place::new();
    let ended = json(&place.run(&[PROMPT, "--json", "--logit-bias", "299=1000"]));
    assert_eq!(
        (text_of(&ended), &ended["stop_reason"], &ended["tokens"]),
        ("", &Value::from("eos"), &serde_json::json!([299]))
    );
    let ignored = place.json(&["--logit-bias", "299=1000", "-n", "3"]);
    assert_eq!((text_of(&ignored), &ignored["stop_reason"]), ("", &Value::from("length")));
    let shown = place.json(&["--logit-bias", "299=1000", "-n", "3", "--special"]);
    assert_eq!(text_of(&shown), "<|im_end|><|im_end|><|im_end|>");
}

#[test]
fn special_tokens_are_read_only_where_asked() {
    let place = Place::new();
    let tokens = |args: &[&str]| {
        let output = place.run(&[&["<|im_start|>", "--json", "-n", "0"], args].concat());
        json(&output)["prompt_tokens"].as_u64().expect("a number")
    };
    assert!(tokens(&[]) > 1);
    assert_eq!(tokens(&["--special"]), 1);
}

// --------------------------------------------------------------------------------------------- pipes and signals

/// A model that talks for long: its context is large.
fn talkative() -> Place {
    Place::of(&Tiny::new().with(|tiny| tiny.context = 60_000))
}

fn talk(place: &Place, args: &[&str]) -> Child {
    let mut command = place.command("run", &[PROMPT, "--ignore-eos", "-n", "-1", "--ctx", "60000"]);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits for the process; fails when that takes long.
#[track_caller]
fn ends(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > Duration::from_secs(20) {
            child.kill().expect("it was running");
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("a child")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill starts");
    assert!(status.success());
}

#[test]
fn a_reader_that_leaves_is_success() {
    let place = talkative();
    let mut child = talk(&place, &[]);
    let mut some = [0; 64];
    child.stdout.take().expect("piped").read_exact(&mut some).expect("some text");
    let output = ends(child);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    for args in [&["--help"][..], &["completions", "bash"], &["man", "run"]] {
        let mut child =
            program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        drop(child.stdout.take());
        let output = ends(child);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn ctrl_c_keeps_what_was_said() {
    let place = talkative();
    for name in ["-INT", "-TERM"] {
        let mut child = talk(&place, &["--stats"]);
        let mut said = [0; 16];
        let mut out = child.stdout.take().expect("piped");
        out.read_exact(&mut said).expect("some text");
        signal(&child, name);
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).expect("the rest of the text");
        let output = ends(child);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(rest.last(), Some(&b'\n'));
        assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    }
}

#[test]
fn ctrl_c_with_json_reports_the_interruption() {
    let place = talkative();
    let child = talk(&place, &["--json"]);
    std::thread::sleep(Duration::from_millis(700));
    signal(&child, "-INT");
    let value = json(&ends(child));
    assert_eq!(value["stop_reason"], "interrupted");
    assert!(!text_of(&value).is_empty());
}

#[test]
fn ctrl_c_before_the_first_token_is_130() {
    let place = talkative();
    let long = place.file("long.txt", "the hello and ".repeat(9_000));
    let mut command = place.command("run", &["--ctx", "60000", "--batch", "16", "-f"]);
    let child = command.arg(long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    std::thread::sleep(Duration::from_millis(700));
    signal(&child, "-INT");
    let output = ends(child);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(130), "error: interrupted\n"));
}

#[test]
fn too_little_memory_is_an_error_and_no_crash() {
    let place = Place::of(&Tiny::new().with(|tiny| tiny.context = 200_000));
    let mut outcomes = (0, 0);
    for step in 1..=20 {
        let script = format!("ulimit -v {} && exec \"$@\"", step * 12_000);
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_twinband"), "run"]).arg(&place.model);
        command.args([PROMPT, "-n", "2", "--ctx", "200000", "-t", "2"]).env("RUST_BACKTRACE", "0");
        let output = command.output().expect("sh starts");
        match output.status.code() {
            Some(0) => outcomes.0 += 1,
            // Below what the loader of programs needs there is no program to speak.
            Some(126 | 127) if step < 3 => {}
            Some(1) => {
                fails(&output, 1, &[]);
                outcomes.1 += 1;
            }
            code => panic!("step {step}: {code:?} {}", stderr(&output)),
        }
    }
    assert!(outcomes.0 > 0 && outcomes.1 > 0, "{outcomes:?}");
}

// ----------------------------------------------------------------------------------------------------------- chat

#[test]
fn ctrl_c_stops_an_answer_and_not_the_conversation() {
    let place = talkative();
    // Neither of the tokens that end a text may come.
    let endless = ["--ctx", "60000", "-n", "-1", "--logit-bias", "299=-inf", "--logit-bias", "297=-inf"];
    let mut child = place
        .command("chat", &endless)
        .args(["--stats"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut answers = child.stdout.take().expect("piped");
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    for _ in 0..2 {
        writeln!(stdin, "hello").expect("it reads");
        answers.read_exact(&mut [0; 16]).expect("an answer");
        signal(&child, "-INT");
        let mut line = String::new();
        while !line.starts_with("answer") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("UTF-8") > 0, "it ended with the answer");
        }
        assert!(line.contains("interrupted"), "{line}");
    }
    drop(stdin);
    assert_eq!(ends(child).status.code(), Some(0));
}

#[test]
fn chat_answers_line_by_line_and_evaluates_nothing_twice() {
    let place = Place::of(&Tiny::new().with(|tiny| tiny.context = 2000));
    let mut child = place
        .command("chat", &["-n", "12", "--temp", "0", "--stats"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    let mut evaluated = 0;
    let mut position = 0;
    for turn in 0..3 {
        writeln!(stdin, "hello {turn} <|im_end|>").expect("it reads");
        // "prompt   P tokens, E evaluated", and the answer's tokens, all of which but the last are evaluated.
        let (mut prompt, mut fresh, mut answer) = (None, 0, None);
        while answer.is_none() {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).expect("UTF-8") > 0, "it ended early");
            let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            if line.starts_with("prompt") {
                (prompt, fresh) = (numbers.first().copied(), numbers[1]);
            } else if line.starts_with("answer") {
                answer = numbers.first().copied();
            }
        }
        let (prompt, answer) = (prompt.expect("a prompt line"), answer.expect("an answer line"));
        evaluated += fresh + answer.saturating_sub(1);
        position = prompt + answer.saturating_sub(1);
        assert_eq!(evaluated, position, "turn {turn}");
    }
    assert!(position > 60, "{position}");
    drop(stdin);
    let output = ends(child);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).lines().count() >= 3, "{}", stdout(&output));
}

#[test]
fn run_chat_wraps_the_prompt_and_keeps_its_specials_text() {
    let place = Place::new();
    let tokens = |prompt: &str| {
        let output = place.run(&[prompt, "--chat", "--json", "-n", "0"]);
        json(&output)["prompt_tokens"].as_u64().expect("a number")
    };
    let plain =
        json(&place.run(&["hello", "--json", "-n", "0"]))["prompt_tokens"].as_u64().expect("a number");
    assert!(tokens("hello") > plain + 4);
    // A control token typed by the user stays the text it is: more than one token.
    assert!(tokens("<|im_end|>") > tokens("h") + 2);
    let bare = Place::of(&Tiny::new().without_key("tokenizer.chat_template"));
    let output = bare.run(&["hello", "--chat", "-n", "1"]);
    assert!(stderr(&output).contains("template"), "{}", stderr(&output));
}

// ---------------------------------------------------------------------------------------------------- bench, ppl

#[test]
fn bench_has_its_fields_and_one_digest() {
    let place = Place::new();
    let bench = |args: &[&str]| {
        let all = [&["--prefill", "40", "--decode", "10", "--reps", "2", "--json"], args].concat();
        json(&place.command("bench", &all).output().expect("the program starts"))
    };
    let value = bench(&["-t", "1"]);
    for field in ["prefill_tps", "decode_tps", "decode_gbps", "read_ceiling_gbps"] {
        assert!(value[field].as_f64().is_some_and(|x| x > 0.0), "{field}: {value}");
    }
    for field in ["rss_anon_peak_bytes", "rss_peak_bytes", "threads"] {
        assert!(value[field].as_u64().is_some_and(|n| n > 0), "{field}: {value}");
    }
    assert!(value["isa"].is_string());
    assert_eq!(bench(&["-t", "2", "--batch", "7"])["digest"], value["digest"]);
    let output = place.command("bench", &["--prefill", "8", "--decode", "2", "--reps", "1"]).output();
    let text = stdout(&output.expect("the program starts"));
    assert!(text.contains("tok/s") && text.contains("digest"), "{text}");
    let nothing = place.command("bench", &["--prefill", "0", "--decode", "0"]).output();
    fails(&nothing.expect("the program starts"), 2, &["--prefill"]);
}

#[test]
fn ppl_scores_whole_windows() {
    let place = Place::new();
    let text = place.file("text.txt", "the hello and the in is and hello ".repeat(40));
    let ppl = |args: &[&str]| {
        let all = [&["-f", text.to_str().expect("a path"), "--json"], args].concat();
        place.command("ppl", &all).output().expect("the program starts")
    };
    let value = json(&ppl(&["--window", "64"]));
    let (windows, scored) = (value["windows"].as_u64().expect("n"), value["scored"].as_u64().expect("n"));
    assert_eq!((windows, scored), (value["tokens"].as_u64().expect("n") / 64, windows * 31));
    let figure = |value: &Value| value["ppl"].as_f64().expect("a number").to_bits();
    for same in [&["-t", "1"][..], &["--batch", "5"], &["--isa", "scalar"]] {
        assert_eq!(figure(&json(&ppl(&[&["--window", "64"], same].concat()))), figure(&value), "{same:?}");
    }
    let strided = json(&ppl(&["--window", "64", "--stride", "16", "--windows", "3"]));
    assert_eq!((strided["windows"].as_u64(), strided["scored"].as_u64()), (Some(3), Some(48)));
    // A model is as far from itself as it should be.
    let own = place.model.to_str().expect("a path");
    let compared = json(&ppl(&["--window", "64", "--against", own]));
    assert_eq!(figure(&compared), figure(&value));
    let against = &compared["against"];
    assert_eq!((against["kld_max"].as_f64(), against["same_top"].as_f64()), (Some(0.0), Some(1.0)));
    assert!((against["ppl"].as_f64().expect("n") / value["ppl"].as_f64().expect("n") - 1.0).abs() < 1e-6);
    let against =
        |args: &[&str]| json(&ppl(&[&["--window", "64", "--against-kv"], args].concat()))["against"].clone();
    let same = against(&["f16"]);
    assert_eq!((same["kld_max"].as_f64(), same["same_top"].as_f64()), (Some(0.0), Some(1.0)));
    assert!(against(&["f32"])["kld_mean"].as_f64().is_some_and(|kld| kld > 0.0 && kld < 1e-3));
    fails(&ppl(&["--window", "64", "--q8-kv"]), 1, &["heads of 16", "--kv f16"]);
    fails(&ppl(&["--window", "5000"]), 1, &["5000"]);
    fails(&ppl(&["--window", "64", "--stride", "64"]), 2, &["--stride"]);
}

#[test]
fn ppl_stops_where_numbers_end() {
    // One NaN in an f32 norm: everything after it is NaN.
    let tiny = Tiny::new();
    let mut norm = vec![1.0; 64];
    norm[7] = f32::NAN;
    let place = Place::of(&tiny.tensor("output_norm.weight", &[64], norm));
    let text = place.file("text.txt", "the hello and ".repeat(60));
    let output =
        place.command("ppl", &["--window", "16", "-f"]).arg(text).output().expect("the program starts");
    fails(&output, 1, &[]);
    let output = place.run(&[PROMPT, "-n", "4"]);
    fails(&output, 1, &["NaN"]);
}
