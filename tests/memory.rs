//! The options about memory: what they change, what they keep to, what they refuse.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[cfg(target_os = "linux")]
use common::group::Group;
use common::tiny::Tiny;
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: &str = "the hello and";

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_twinband"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The megabytes that a refusal says are needed.
fn least(said: &str) -> u64 {
    let least = said.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    least.unwrap_or_else(|| panic!("no number in {said}"))
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A model of a few megabytes: 16 layers of 900 KB, a head of 400 KB.
struct Place {
    _dir: TempDir,
    model: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let tiny = Tiny::new().n_vocab(1600).with(|t| {
            (t.dim, t.hidden_dim, t.n_layers) = (256, 768, 16);
            (t.n_heads, t.n_kv_heads, t.head_dim, t.context) = (4, 4, 64, 4096);
        });
        let model = tiny.write(dir.path(), "model.gguf");
        Self { _dir: dir, model }
    }

    /// A folder beside it.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.model.with_file_name(name);
        std::fs::create_dir(&folder).expect("a folder");
        folder
    }

    fn size(&self) -> u64 {
        std::fs::metadata(&self.model).expect("the model").len()
    }

    fn command(&self, command: &str, args: &[&str]) -> Command {
        let mut all = program();
        all.arg(command).arg(&self.model).args(args).stdin(std::process::Stdio::null());
        all
    }

    /// A greedy answer of 40 tokens.
    fn run(&self, args: &[&str]) -> Output {
        let mut run = self.command("run", &[PROMPT, "--json", "--ignore-eos", "-n", "40", "-t", "2"]);
        run.args(args).output().expect("the program starts")
    }
}

/// The most memory a command held: all of it, and what was its own.
#[cfg(target_os = "linux")]
fn peaks(command: &mut Command) -> (Output, u64, u64) {
    let (output, [all, own]) = peaks_of(command, ["VmHWM", "RssAnon"]);
    (output, all, own)
}

/// The largest values of fields of a command's status, in bytes. Looked at every few milliseconds.
#[cfg(target_os = "linux")]
fn peaks_of<const N: usize>(command: &mut Command, names: [&str; N]) -> (Output, [u64; N]) {
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut peaks = [0; N];
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
                .map_or(0, |kb: u64| kb * 1024)
        };
        for (peak, name) in peaks.iter_mut().zip(names) {
            *peak = (*peak).max(field(name));
        }
        if child.try_wait().expect("its status").is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    (child.wait_with_output().expect("its output"), peaks)
}

#[test]
fn wrong_values_are_refused() {
    let place = Place::new();
    for value in ["0", "x", "-1", "1.5", "", "99999999999999999999"] {
        for command in ["run", "fit"] {
            let output = place.command(command, &["--max-ram", value]).output().expect("the program starts");
            assert_eq!(output.status.code(), Some(2), "{command} {value:?}: {}", stderr(&output));
        }
    }
    // More than there can be is no limit.
    let output = place.run(&["--max-ram", "18446744073709551615"]);
    assert_eq!((json(&output)["stop_reason"].as_str(), stderr(&output)), (Some("length"), String::new()));
}

/// The steps in order, each only when the one before is not enough, and no bit changed by the last.
#[test]
fn a_budget_reduces_what_it_must_and_says_so() {
    let place = Place::new();
    let plain = json(&place.run(&["-c", "4096"]));
    let within = |mb: u64, args: &[&str]| {
        let mb = mb.to_string();
        let output = place.run(&[args, &["--max-ram", &mb]].concat());
        (json(&output), stderr(&output))
    };
    // 4096 tokens take 67 MB in f16.
    let size = place.size() / 1_000_000;
    let (answer, said) = within(size + 170, &["-c", "4096"]);
    assert_eq!((&answer["digest"], said.as_str()), (&plain["digest"], ""));
    let q8 = json(&place.run(&["-c", "4096", "--q8-kv"]));
    // Just too little for that: 36 MB in blocks of 8 bits are enough.
    let need = |mb: u64| within(mb, &["-c", "4096"]).1;
    let enough = (size + 50..size + 170).rev().find(|&mb| !need(mb).is_empty()).expect("a limit");
    let (answer, said) = within(enough, &["-c", "4096"]);
    assert!(said.contains("KV cache in q8 in place of f16") && !said.contains("context"), "{said}");
    assert_eq!(answer["digest"], q8["digest"]);
    let (answer, said) = within(enough - 45, &["-c", "4096"]);
    assert!(
        said.starts_with("note: --max-ram ") && said.contains("context of ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!said.contains("read anew"), "{said}");
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(40));
    // What is said of batches; 128 if nothing is.
    let batch = |args: &[&str], mb: u64| {
        let (answer, said) = within(mb, &[&["-c", "512", "--q8-kv"], args].concat());
        assert_eq!(answer["digest"], q8["digest"], "{said}");
        let batch = said.split("batches of ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        batch.unwrap_or(128u64)
    };
    // Room for the smallest context, but not for all weights beside it.
    let least = least(&stderr(&place.run(&["-c", "512", "--q8-kv", "--max-ram", "5"])));
    let (answer, said) = within(least + 1, &["-c", "512", "--q8-kv"]);
    assert!(said.contains("of weights read anew") && !said.contains("context"), "{said}");
    assert_eq!(answer["digest"], q8["digest"]);
    // Smaller batches come last, and no smaller than they have to be; those asked for are where it begins.
    assert!(batch(&[], least) <= 16 && batch(&[], least + 12) == 128);
    let steps: Vec<u64> = (0..12).step_by(2).map(|more| batch(&[], least + more)).collect();
    assert!(steps.is_sorted() && steps.iter().any(|&batch| (16..128).contains(&batch)), "{steps:?}");
    assert_eq!(batch(&["-b", "5"], least + 1), 128);
}

#[test]
fn too_little_is_refused_item_by_item() {
    let place = Place::new();
    for command in ["run", "chat", "bench"] {
        let output = place.command(command, &["--max-ram", "5"]).output().expect("the program starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for part in ["--max-ram 5 ", "at least ", "tokenizer ", "buffers ", "KV cache of ", "weights a layer"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(output.stdout.is_empty());
    }
    // What is said to be needed is enough.
    let least = least(&stderr(&place.run(&["--max-ram", "5", "-c", "512"]))).to_string();
    let least = least.as_str();
    json(&place.run(&["--max-ram", least, "-c", "512"]));
    let fit = |mb: &str| {
        let output =
            place.command("fit", &["-c", "512", "--max-ram", mb, "--json"]).output().expect("it starts");
        let fit: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), fit["max_ram"]["fits"].as_bool(), fit["max_ram"]["streamed"].as_bool())
    };
    assert_eq!(fit("5"), (Some(1), Some(false), Some(false)));
    assert_eq!(fit(least), (Some(0), Some(true), Some(true)));
    assert_eq!(fit("1000"), (Some(0), Some(true), Some(false)));
    // A measurement is not made smaller.
    let bench =
        place.command("bench", &["--max-ram", least, "--prefill", "2000"]).output().expect("it starts");
    assert_eq!(bench.status.code(), Some(1), "{}", stderr(&bench));
}

/// Everything the process holds, the pages of the file included, and with a prompt that fills several batches.
#[test]
#[cfg(target_os = "linux")]
fn a_budget_is_kept() {
    let place = Place::new();
    let prompt = "the".to_owned() + &" the".repeat(499);
    let plain = json(
        &place
            .command("run", &[&prompt, "--json", "-n", "-1", "-c", "600", "--ignore-eos", "--q8-kv"])
            .output()
            .expect("a run"),
    );
    let (mut streamed, mut last) = (0, None);
    for mb in [50, 42, 36, 32] {
        let text = mb.to_string();
        let mut command = place.command(
            "run",
            &[&prompt, "--json", "-n", "-1", "-c", "600", "--ignore-eos", "--q8-kv", "--max-ram", &text],
        );
        let (output, all, own) = peaks(&mut command);
        let said = stderr(&output);
        if output.status.code() == Some(1) {
            assert!(said.contains("at least") && last.is_some(), "{said}");
            continue;
        }
        let answer = json(&output);
        assert_eq!(answer["digest"], plain["digest"], "{mb}: {said}");
        assert!(all <= mb * 1_000_000 && own <= mb * 1_000_000, "{mb}: {all} held, {own} of its own; {said}");
        streamed += usize::from(said.contains("read anew"));
        last = Some(all);
    }
    assert!(streamed > 0, "no budget was so small that weights had to be streamed");
}

/// A head of 88 MB, which is computed in parts, and a vocabulary that takes memory of its own.
#[test]
#[cfg(target_os = "linux")]
fn a_large_head_is_streamed_in_parts() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("head.gguf");
    let mut synth = program();
    synth.args(["synth", "qwen3-0.6b", "--type", "Q4_0", "--layers", "1", "-o"]).arg(&model);
    assert!(synth.output().expect("the program starts").status.success());
    let packed = dir.path().join("head.g2bx");
    assert!(program().arg("pack").args([&model, &packed]).output().expect("it starts").status.success());
    let run = |model: &Path, args: &[&str]| {
        let mut run = program();
        run.arg("run").arg(model).args([PROMPT, "--json", "-n", "3", "-c", "512", "-t", "2"]).args(args);
        peaks(&mut run)
    };
    let plain = json(&run(&model, &[]).0);
    for file in [&model, &packed] {
        let (output, all, _) = run(file, &["--max-ram", "80"]);
        assert!(stderr(&output).contains("read anew"), "{}", stderr(&output));
        assert_eq!(json(&output)["digest"], plain["digest"]);
        assert!(all <= 80_000_000, "{all}");
    }
}

/// A prompt of 1000 tokens, all of them in a cache of 16 KiB a token.
#[test]
#[cfg(target_os = "linux")]
fn a_cache_in_a_file_gives_the_same_and_takes_no_memory_of_its_own() {
    let place = Place::new();
    let prompt = "the".to_owned() + &" the".repeat(999);
    let run = |args: &[&str]| {
        let mut run = place.command("run", &[&prompt, "--json", "-n", "10", "-c", "4000", "--ignore-eos"]);
        peaks(run.args(args))
    };
    let (plain, _, held) = run(&[]);
    let plain = json(&plain);
    let folder = place.folder("swap");
    let folder_name = folder.to_str().expect("a name");
    let (swapped, _, own) = run(&["--swap", folder_name]);
    assert_eq!(stderr(&swapped), warning_of_memory(&folder));
    let swapped = json(&swapped);
    for field in ["digest", "tokens", "prompt_tokens"] {
        assert_eq!(swapped[field], plain[field], "{field}");
    }
    // 16 layers, keys and values of 256 numbers in f16.
    let cache = 1000 * 16 * 2 * 256 * 2;
    assert!(own + cache * 9 / 10 < held, "{own} with a file, {held} without, a cache of {cache}");
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 0, "something was left");
    // Without a value it is the folder for temporary files.
    let mut run =
        place.command("run", &[PROMPT, "--json", "-n", "3", "-c", "4000", "-t", "2", "-v", "--swap"]);
    let output = run.env("TMPDIR", &folder).output().expect("the program starts");
    assert!(stderr(&output).contains(&format!("in a file in {folder_name}")), "{}", stderr(&output));
    json(&output);
    // Every kind of cache lies there too, beside weights that are streamed.
    let q8 = json(&place.run(&["--kv", "k8v4"]));
    let least = least(&stderr(&place.run(&["--max-ram", "5", "--kv", "k8v4", "--swap", folder_name])));
    let least = least.to_string();
    let output = place.run(&["--max-ram", &least, "--kv", "k8v4", "--swap", folder_name]);
    assert!(stderr(&output).contains("read anew"), "{}", stderr(&output));
    assert_eq!(json(&output)["digest"], q8["digest"]);
}

/// What is said of a folder in memory.
#[cfg(target_os = "linux")]
fn warning_of_memory(folder: &Path) -> String {
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(folder).output().expect("stat");
    if String::from_utf8_lossy(&kind.stdout).trim() != "tmpfs" {
        return String::new();
    }
    let name = folder.display();
    format!(
        "warning: {name} is a file system in memory: --swap saves nothing there, name a folder on a disk\n"
    )
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_in_memory_is_said_to_be_one() {
    let place = Place::new();
    let shm = Path::new("/dev/shm");
    if warning_of_memory(shm).is_empty() {
        eprintln!("skipped: /dev/shm is no file system in memory here");
        return;
    }
    let output = place.run(&["--swap", "/dev/shm"]);
    assert_eq!(stderr(&output), warning_of_memory(shm));
    json(&output);
}

#[test]
fn a_cache_touches_no_file_that_is_there() {
    let place = Place::new();
    let folder = place.folder("swap");
    let file = folder.join("precious");
    std::fs::write(&file, b"precious").expect("a file");
    for (value, why) in [(&file, "not a folder"), (&folder.join("none"), "No such file")] {
        for command in ["run", "chat", "bench", "fit"] {
            let output = place.command(command, &["--swap"]).arg(value).output().expect("the program starts");
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains(why) && said.contains(value.to_str().expect("a name")), "{said}");
        }
    }
    let output = place.run(&["--swap", folder.to_str().expect("a name")]);
    json(&output);
    assert_eq!(std::fs::read(&file).expect("the file"), b"precious");
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1);
}

/// Said before anything is computed, by a limit on files and by a file system of 4 MB.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_at_the_start() {
    let place = Place::new();
    let folder = place.folder("swap");
    let refused = |script: &str, why: &str| {
        let output = Command::new("sh")
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_twinband")])
            .args([&place.model, &folder])
            .output()
            .expect("a shell");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        // 4096 tokens of keys, 8 KiB each.
        for part in ["33554432 bytes of keys", why, folder.to_str().expect("a name"), "smaller --ctx"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(output.stdout.is_empty());
    };
    let run = "\"$1\" run \"$2\" hello -n 1 -c 4096 --swap \"$3\"";
    refused(&format!("ulimit -f 1000; {run}"), "files may have");
    let mount = "mount -t tmpfs -o size=4m tmpfs \"$3\"";
    let private = |script: &str| format!("exec unshare -m sh -c '{script}' sh \"$1\" \"$2\" \"$3\"");
    let may = Command::new("sh").args(["-c", &private(mount), "sh", "", ""]).arg(&folder).output();
    if may.expect("a shell").status.success() {
        refused(&private(&format!("{mount} && {run}")), "the disk has 4194304 bytes left");
    } else {
        eprintln!("skipped: the disk of 4 MB, since file systems cannot be mounted here");
    }
}

#[test]
fn fit_counts_a_cache_in_a_file_on_its_disk() {
    let place = Place::new();
    let folder = place.folder("swap");
    let fit = |args: &[&str]| json(&place.command("fit", args).output().expect("it starts"));
    let plain = fit(&["-c", "4096", "--json"]);
    let swapped = fit(&["-c", "4096", "--json", "--swap", folder.to_str().expect("a name")]);
    let number = |value: &Value| value.as_u64().expect("a number");
    for (plain, swapped) in [0, 1, 2, 3].map(|kind| (&plain["kv"][kind], &swapped["kv"][kind])) {
        assert_eq!(plain["kv_bytes"], swapped["kv_bytes"]);
        assert_eq!(
            number(&plain["total_bytes"]),
            number(&swapped["total_bytes"]) + number(&plain["kv_bytes"])
        );
    }
    assert!(plain["swap"].is_null() && number(&swapped["swap"]["available_bytes"]) > 0);
    // What no disk has room for.
    let vast =
        Tiny::new().with(|t| (t.n_layers, t.n_kv_heads, t.head_dim, t.context) = (64, 4, 512, 1 << 30));
    let model = vast.write(&folder, "vast.gguf");
    let mut all = program();
    all.arg("fit").arg(&model).args(["-c", "1000000000", "--swap"]).arg(&folder);
    let output = all.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has room for"), "{}", stderr(&output));
}

/// A way to run a program without a privilege of root's; `None` if there is none here.
#[cfg(target_os = "linux")]
fn without(capability: &str) -> Option<String> {
    let id = Command::new("id").arg("-u").output().expect("id");
    if id.stdout != b"0\n" {
        return Some(String::new());
    }
    let setpriv = format!("setpriv --bounding-set -{capability} ");
    let works = Command::new("sh").args(["-c", &format!("{setpriv} true")]).output().expect("a shell");
    works.status.success().then_some(setpriv)
}

#[test]
#[cfg(target_os = "linux")]
fn locked_weights_are_in_memory_before_they_are_used() {
    let place = Place::new();
    let plain = json(&place.run(&[]));
    let args = [PROMPT, "--json", "--ignore-eos", "-n", "40", "-t", "2", "--mlock"];
    let (output, [locked]) = peaks_of(&mut place.command("run", &args), ["VmLck"]);
    let said = stderr(&output);
    assert_eq!(json(&output)["digest"], plain["digest"]);
    if said.is_empty() {
        assert!(locked >= place.size(), "{locked} of {}", place.size());
    } else {
        // More than an ordinary user may lock on some systems.
        assert!(said.contains("does not lock") && locked == 0, "{said}, {locked}");
    }
    let Some(without) = without("ipc_lock") else {
        eprintln!("skipped: a refusal, since setpriv does not work here");
        return;
    };
    let script = format!("ulimit -l 0; exec {without} \"$@\"");
    let mut refused = Command::new("sh");
    refused.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_twinband"), "run"]).arg(&place.model).args(args);
    let output = refused.output().expect("a shell");
    let said = stderr(&output);
    assert!(said.starts_with("warning: --mlock: ") && said.contains("ulimit -l"), "{said}");
    assert_eq!(json(&output)["digest"], plain["digest"]);
}

#[test]
fn locking_and_a_budget_exclude_each_other() {
    let place = Place::new();
    let output = place.run(&["--mlock", "--max-ram", "1000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("choose one"), "{}", stderr(&output));
}

/// The nice values of the two threads of a command once it waits for input, and what it said.
#[cfg(target_os = "linux")]
fn nice(command: &mut Command) -> (Vec<i64>, String) {
    use std::process::Stdio;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let values = || -> Vec<i64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).expect("its threads");
        let stats = tasks.map(|task| std::fs::read_to_string(task.expect("a thread").path().join("stat")));
        // Behind the name in brackets: the state is field 3, nice is field 19.
        let nice = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok();
        let named = |stat: &String| stat.contains("(twinband-");
        stats.filter_map(|stat| stat.ok().filter(named)).filter_map(|stat| nice(&stat)).collect()
    };
    let mut found = values();
    for _ in 0..1000 {
        // On a busy machine the second is seen later than the first.
        if found.len() == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        found = values();
    }
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (found, stderr(&output))
}

#[test]
#[cfg(target_os = "linux")]
fn fast_is_the_8_bit_cache_and_a_raised_priority() {
    let place = Place::new();
    let digest = |args: &[&str]| json(&place.run(args))["digest"].clone();
    let q8 = digest(&["--q8-kv"]);
    assert_eq!(digest(&["--fast"]), q8);
    let f16 = digest(&[]);
    assert_ne!(q8, f16);
    assert_eq!(digest(&["--fast", "--kv", "f16"]), f16);
    let (before, said) = nice(&mut place.command("chat", &["-t", "2"]));
    assert_eq!((before.len(), said.as_str()), (2, ""));
    let (raised, said) = nice(&mut place.command("chat", &["-t", "2", "--fast"]));
    if said.is_empty() {
        assert!(raised.len() == 2 && raised.iter().all(|&nice| nice <= -10), "{raised:?}");
    } else {
        assert!(said.starts_with("warning: --fast: ") && raised == before, "{said}, {raised:?}");
    }
    let Some(without) = without("sys_nice") else {
        eprintln!("skipped: a refusal, since setpriv does not work here");
        return;
    };
    let script = format!("exec {without} \"$@\"");
    let mut refused = Command::new("sh");
    refused.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_twinband"), "chat"]).arg(&place.model);
    let (kept, said) = nice(refused.args(["-t", "2", "--fast"]));
    assert!(said.starts_with("warning: --fast: the priority stays"), "{said}");
    assert_eq!(kept, before);
}

/// A group of that much memory; `None`, and why, where none can be made.
#[cfg(target_os = "linux")]
fn limited_group(name: &str, limit: u64) -> Option<Group> {
    Group::new(name, limit)
        .inspect_err(|why| {
            eprintln!("skipped: no control group with a limit on memory can be made here ({why})");
        })
        .ok()
}

/// A model of 130 MB where 64 MB is all there is: slower, never killed, the same to the bit.
#[test]
#[cfg(target_os = "linux")]
fn a_model_larger_than_its_control_group_runs() {
    const LIMIT: u64 = 64 << 20;
    let Some(group) = limited_group("model", LIMIT) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("model.gguf");
    let command = |args: &[&str]| {
        let mut command = program();
        command.arg(args[0]).arg(&model).args(&args[1..]);
        command
    };
    // Written in the group, so that the pages of the file are the group's.
    let mut synth = program();
    synth.args(["synth", "qwen3-0.6b", "--type", "Q4_0", "--layers", "4", "-o"]).arg(&model);
    let output = group.command(&synth).output().expect("a shell");
    assert!(output.status.success(), "{}", stderr(&output));
    let size = std::fs::metadata(&model).expect("the model").len();
    assert!(size > 3 * LIMIT / 2, "{size}");

    let run = ["run", PROMPT, "--json", "--ignore-eos", "-n", "6", "-c", "512", "-t", "2", "--q8-kv"];
    let plain = json(&command(&run).output().expect("a run"));
    let forget = || {
        // Pages that are in memory already count for whom they were read for first.
        let mut dd = Command::new("dd");
        dd.arg(format!("of={}", model.display())).args([
            "oflag=nocache",
            "conv=notrunc,fdatasync",
            "count=0",
        ]);
        assert!(dd.output().expect("dd").status.success());
    };
    for args in [&[][..], &["--max-ram", "60"], &["--swap"], &["--mlock"]] {
        forget();
        let output = group.command(&command(&[&run, args].concat())).output().expect("a shell");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}: {said}", output.status);
        assert_eq!(json(&output)["digest"], plain["digest"], "{args:?}");
        let expected = match args.first() {
            Some(&"--max-ram") => "of weights read anew",
            Some(&"--mlock") => "not locked",
            _ => "weights will be read from disk again and again",
        };
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    let fit = json(&group.command(&command(&["fit", "-c", "512", "--json"])).output().expect("a shell"));
    let available = fit["available_bytes"].as_u64().expect("a number");
    assert!((LIMIT / 2..=LIMIT).contains(&available), "{available}");
    let f16 = &fit["kv"][0];
    assert_eq!((f16["fits"].as_bool(), f16["weights_stay"].as_bool()), (Some(true), Some(false)));
    assert!(group.peak().is_none_or(|peak| peak <= LIMIT) && group.killed() == 0);
}

/// A cache of 49 MB where 40 MB is all there is.
#[test]
#[cfg(target_os = "linux")]
fn a_cache_larger_than_its_control_group_lies_in_a_file() {
    const LIMIT: u64 = 40 << 20;
    let Some(group) = limited_group("cache", LIMIT) else { return };
    let place = Place::new();
    // 16 layers of keys and values, 256 floats each: 32 KiB a token.
    let prompt = "the".to_owned() + &" the".repeat(1499);
    let long = ["run", &prompt, "--json", "--ignore-eos", "-n", "1", "-c", "1600", "-t", "2", "--kv", "f32"];
    let command =
        |args: &[&str]| group.command(&place.command(args[0], &args[1..])).output().expect("a shell");
    let output = command(&[&long[..], &["--swap"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}: {}", output.status, stderr(&output));
    assert!(group.peak().is_none_or(|peak| peak <= LIMIT) && group.killed() == 0);
    // The limit is one: with the cache in memory of its own the same is killed, and was warned.
    let output = command(&long);
    assert!(stderr(&output).contains("the full context needs more"), "{}", stderr(&output));
    assert_eq!((output.status.code(), group.killed()), (None, 1));
}
