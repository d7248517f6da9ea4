//! Real models with part of the head on a Vulkan device, as users run them: the program, its worker, a software driver,
//! and between the last two a driver that fails on request (tests/icd). The text and every bit of the logits are those of
//! the CPU alone. V numbers name kinds of fault, see docs/FAULTS.md.

mod common;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::driver::{Guard, Outcome, Place, Software, lavapipe, swiftshader, workers};
use common::gpu::{LONG, signal};

/// Tokens of a run.
const TOKENS: [&str; 2] = ["-n", "200"];
const GREEDY: [&str; 2] = ["--temp", "0"];
const SAMPLED: [&str; 4] = ["--temp", "0.8", "--seed", "7"];

/// A share so small that a software driver costs next to nothing.
const SMALL: [&str; 4] = ["--gpu", "on", "--gpu-share", "0.005"];

/// The models that there are: name and a place to run it.
fn models() -> Vec<(&'static str, PathBuf)> {
    let Some(dir) = std::env::var_os("TWINBAND_MODELS").map(PathBuf::from) else {
        println!("skipped: TWINBAND_MODELS names no folder of models; scripts/get-model.sh gets them");
        return Vec::new();
    };
    let file = |name: &str| dir.join(format!("{name}.gguf"));
    let models = ["smollm2", "gemma3"].map(|name| (name, file(name)));
    models.into_iter().filter(|(_, path)| present(path)).collect()
}

fn present(path: &Path) -> bool {
    let there = path.exists();
    if !there {
        println!("skipped: {} is missing", path.display());
    }
    there
}

/// The model's place, with what the CPU alone answers.
fn place(model: &Path, args: &[&str]) -> Place {
    let mut place = Place::of(|_| model.to_owned());
    place.cpu = place.finish(place.command(args)).json;
    assert_eq!(place.cpu["gpu"]["mode"], "off");
    place
}

/// What to know of a run: how long it took, and what became of the device.
fn tell(what: &str, outcome: &Outcome) {
    let gpu = outcome.gpu();
    println!(
        "{what}: {:.1} s; {} jobs, {} late, {} mismatches, {} restarts, {}, {}",
        outcome.took.as_secs_f64(),
        gpu["jobs"],
        gpu["late"],
        gpu["mismatches"],
        gpu["restarts"],
        gpu["state"],
        gpu["last_fault"]
    );
}

/// Runs with every share, and holds text and digest to the CPU's.
fn shares(name: &str, place: &Place, driver: &Software, shares: &[f64], tokens: u64, args: &[&str]) {
    for share in shares {
        let text = share.to_string();
        let both = place.run(driver, "", &[&["--gpu", "on", "--gpu-share", &text], args].concat());
        let what = format!("{name}, {}, share {text}, {args:?}", driver.name);
        tell(&what, &both);
        place.same(&both, &what);
        let gpu = both.gpu();
        // All of them, unless the machine is so busy that answers come late.
        assert!(gpu["jobs"].as_u64() >= Some(tokens / 2), "{what}: {gpu}");
        assert_eq!(gpu["mismatches"], 0, "{what}: {gpu}");
        let got = gpu["share"].as_f64().unwrap_or(0.0);
        assert!(gpu["jobs"] != tokens || (got - share).abs() < 0.01, "{what}: {gpu}");
    }
}

#[test]
fn every_share_of_a_device_gives_the_same_text() {
    let Some(driver) = lavapipe() else { return };
    for (name, model) in models() {
        for sampling in [&GREEDY[..], &SAMPLED] {
            let args = [&TOKENS, sampling].concat();
            shares(name, &place(&model, &args), &driver, &[0.01, 0.5, 0.99], 200, &args);
        }
    }
}

/// It takes some four times as long as the other driver: a few tokens have to do.
#[test]
fn another_driver_gives_the_same_text() {
    let Some(driver) = swiftshader() else { return };
    for (name, model) in models() {
        let args = [&["-n", "24"], &SAMPLED[..]].concat();
        shares(name, &place(&model, &args), &driver, &[0.01, 0.5], 24, &args);
    }
}

/// Sends a signal to the worker as soon as it has the job of token `at`.
fn signalled(place: &Place, driver: &Software, name: &str, at: usize) -> Outcome {
    let dir = place.fresh();
    let log = dir.join("log");
    std::thread::scope(|scope| {
        let command = place.with(driver, &dir, "", &[&SMALL[..], &TOKENS, &["-v"]].concat());
        let run = scope.spawn(|| place.finish(command));
        let started = Instant::now();
        let jobs = || fs::read_to_string(&log).map_or(0, |text| text.matches("job\n").count());
        while jobs() < at && !run.is_finished() {
            assert!(started.elapsed() < LONG, "it does not get to token {at}");
            std::thread::sleep(Duration::from_millis(1));
        }
        for pid in workers(&log) {
            signal(name, pid);
        }
        run.join().expect("no panic")
    })
}

/// V13, V16, V18, V37, V38 at the first token, the seventh and the hundredth.
#[test]
fn no_fault_changes_the_text_of_a_real_model() {
    let Some(driver) = lavapipe() else { return };
    for (name, model) in models() {
        let place = place(&model, &TOKENS);
        for at in [1, 7, 100] {
            for fault in ["lost", "corrupt", "KILL", "STOP"] {
                let what = format!("{name}, {fault} at token {at}");
                let both = match fault {
                    "lost" | "corrupt" => {
                        let order = format!("job={fault}@{at}");
                        place.run(&driver, &order, &[&SMALL[..], &TOKENS, &["-v"]].concat())
                    }
                    signal => signalled(&place, &driver, signal, at),
                };
                let first = both.jobs().first().map_or(0, |jobs| *jobs as usize);
                tell(&format!("{what} (the first worker had {first} jobs)"), &both);
                place.same(&both, &what);
                let gpu = both.gpu();
                // On a busy machine an answer may be late after that, which is then the last fault.
                let why = format!("{}\n{}", both.fault(), both.stderr);
                let (late, restarts) = (gpu["late"].as_u64(), gpu["restarts"].as_u64());
                match fault {
                    "lost" => {
                        assert!(why.contains("DEVICE_LOST") && restarts >= Some(1), "{what}: {gpu}");
                        assert!(first == at || late > Some(0), "{what}: {first}");
                    }
                    "corrupt" => {
                        assert!(why.contains("wrong number"), "{what}: {gpu}");
                        assert_eq!((&gpu["mismatches"], restarts), (&1.into(), Some(0)), "{what}: {gpu}");
                        assert!(gpu["jobs"] == at || late > Some(0), "{what}: {gpu}");
                    }
                    "KILL" => {
                        assert!(why.contains("SIGKILL") && restarts >= Some(1), "{what}: {gpu}");
                        assert!((at..at + 60).contains(&first), "{what}: {first}");
                    }
                    _ => {
                        assert!(late >= Some(1), "{what}: {gpu}");
                        let named = ["did not answer", "no sign of life"].iter().any(|w| why.contains(w));
                        assert!(named, "{what}: {gpu}");
                        assert!((at..at + 60).contains(&first), "{what}: {first}");
                    }
                }
            }
        }
    }
}

/// The gaps between pieces of text, in ms and ascending, and what `--stats` said.
fn gaps(mut command: Command) -> (Vec<f64>, String) {
    let mut child =
        Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts"));
    let mut out = child.0.stdout.take().expect("a pipe");
    let (mut buffer, mut gaps, mut last) = ([0; 4096], Vec::new(), None::<Instant>);
    while let Ok(1..) = out.read(&mut buffer) {
        let now = Instant::now();
        gaps.extend(last.map(|last| 1e3 * (now - last).as_secs_f64()));
        last = Some(now);
    }
    gaps.sort_by(f64::total_cmp);
    let mut said = String::new();
    child.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (gaps, said)
}

/// V16: what a user sees of a device that hangs: the longest gap is the usual one, the deadline, and one head on the CPU.
#[test]
fn the_longest_gap_when_the_device_hangs() {
    let Some(driver) = lavapipe() else { return };
    let tokens = ["-n", "60"];
    for (name, model) in models() {
        let place = place(&model, &tokens);
        for share in ["0.005", "0.2"] {
            let run = |fault: &str| {
                let args = [&["--gpu", "on", "--gpu-share", share, "--stats"], &tokens[..]].concat();
                let (gaps, said) = gaps(place.with(&driver, &place.fresh(), fault, &args));
                let digest = said.lines().find_map(|line| Some(line.strip_prefix("digest")?.trim()));
                assert_eq!(digest, place.cpu["digest"].as_str(), "{name}, {fault}: {said}");
                (gaps, said)
            };
            let (usual, _) = run("");
            let (with_fault, said) = run("job=hang@30");
            let waiting = said.lines().find(|line| line.starts_with("waiting")).unwrap_or_default();
            let number = |after: &str| {
                let rest = waiting.split_once(after).map_or("", |(_, rest)| rest);
                rest.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN)
            };
            let (deadline, head) = (number("deadline of "), number("takes "));
            let (most, median) = (usual.last().copied(), usual[usual.len() / 2]);
            let longest = with_fault.last().copied().unwrap_or_default();
            println!(
                "{name}, share {share}: gaps without a fault {median:.0} ms, at most {:.0} ms; the device hangs: at \
                 most {longest:.0} ms with a deadline of {deadline:.0} ms and a head of {head:.1} ms on the CPU",
                most.unwrap_or_default()
            );
            assert!(deadline >= 50.0, "{name}: {said}");
            // The gap of that token holds a forward pass too; a busy machine adds to everything.
            assert!(longest < deadline + head + median + 2000.0, "{name}: {longest} ms: {said}");
        }
    }
}
