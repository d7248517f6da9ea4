//! Real models with part of the head on a Vulkan device, as users run them: the program, its worker, a software driver,
//! and between the last two a driver that fails on request (tests/icd). The text and every bit of the logits are those of
//! the CPU alone. V numbers name kinds of fault, see docs/FAULTS.md.

mod common;

use std::path::{Path, PathBuf};

use common::driver::{Outcome, Place, Software, lavapipe, swiftshader};

const GREEDY: [&str; 2] = ["--temp", "0"];
const SAMPLED: [&str; 4] = ["--temp", "0.8", "--seed", "7"];

/// A share so small that a software driver costs next to nothing.
const SMALL: [&str; 4] = ["--gpu", "on", "--gpu-share", "0.005"];

/// On a busy machine threads that wait for each other take longer than one, and the driver has threads of its own. No
/// number of them changes a bit; tests/driver_faults.rs has two.
const ONE: [&str; 2] = ["--threads", "1"];

/// Tokens of a run: 200 where it is cheap or `TWINBAND_TEST_LONG` is set, which takes some ten minutes more; else as many
/// as show the same.
fn tokens(enough: u64) -> u64 {
    if std::env::var_os("TWINBAND_TEST_LONG").is_some() { 200 } else { enough }
}

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

/// Has the CPU alone answer, to hold others to it.
fn ask_cpu(place: &mut Place, args: &[&str]) {
    place.cpu = place.finish(place.command(args)).json;
    assert_eq!(place.cpu["gpu"]["mode"], "off");
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
fn shares(name: &str, place: &mut Place, driver: &Software, shares: &[f64], tokens: u64, sampling: &[&str]) {
    let n = tokens.to_string();
    let args = [&["-n", &n], &ONE[..], sampling].concat();
    ask_cpu(place, &args);
    for share in shares {
        let text = share.to_string();
        let both = place.run(driver, "", &[&["--gpu", "on", "--gpu-share", &text], &args[..]].concat());
        let what = format!("{name}, {}, share {text}, {args:?}", driver.name);
        tell(&what, &both);
        place.same(&both, &what);
        let (gpu, late) = (both.gpu(), both.gpu()["late"].as_u64());
        assert_eq!(gpu["mismatches"], 0, "{what}: {gpu}");
        // All of them, unless the machine is so busy that answers come late.
        assert!(gpu["jobs"] == tokens || late > Some(0), "{what}: {gpu}");
        assert!(gpu["jobs"].as_u64() >= Some(1), "{what}: {gpu}");
        let got = gpu["share"].as_f64().unwrap_or(0.0);
        assert!(late > Some(0) || (got - share).abs() < 0.01, "{what}: {gpu}");
    }
}

#[test]
fn every_share_of_a_device_gives_the_same_text() {
    let Some(driver) = lavapipe() else { return };
    for (name, model) in models() {
        let mut place = Place::of(|_| model.clone());
        for sampling in [&GREEDY[..], &SAMPLED] {
            shares(name, &mut place, &driver, &[0.01], 200, sampling);
            // With its vocabulary of 262144 most of a head takes lavapipe half a second.
            let most = if name == "gemma3" { tokens(30) } else { 200 };
            shares(name, &mut place, &driver, &[0.5, 0.99], most, sampling);
        }
    }
}

/// It takes some four times as long as the other driver: a few tokens have to do.
#[test]
fn another_driver_gives_the_same_text() {
    let Some(driver) = swiftshader() else { return };
    for (name, model) in models() {
        let mut place = Place::of(|_| model.clone());
        shares(name, &mut place, &driver, &[0.01, 0.5], tokens(16), &SAMPLED);
    }
}

/// A run with a fault at the job of token `at`; again where the machine was so busy that a worker was lost before,
/// because its answers came late, and none if that goes on.
fn with_fault(place: &Place, driver: &Software, fault: &str, at: u64, args: &[&str]) -> Option<Outcome> {
    for _ in 0..3 {
        let dir = place.fresh();
        let mut order = format!("job={fault}@{at}");
        // What somebody does to a process from outside does not happen to the next one.
        if matches!(fault, "kill" | "stop") {
            order += &format!(",once={}", dir.join("once").display());
        }
        let both = place.finish(place.with(driver, &dir, &order, args));
        place.same(&both, &order);
        if both.jobs().into_iter().any(|jobs| jobs >= at) {
            return Some(both);
        }
        assert!(both.gpu()["late"].as_u64() > Some(0), "{order} is not met: {}", both.gpu());
    }
    None
}

/// V13, V16, V18, V37, V38 at the first token, the seventh and the hundredth.
#[test]
fn no_fault_changes_the_text_of_a_real_model() {
    let Some(driver) = lavapipe() else { return };
    for (name, model) in models() {
        let mut place = Place::of(|_| model.clone());
        for at in [1, 7, 100] {
            // The tokens after the fault are to show that the CPU or a new worker goes on.
            let n = tokens(at + 40).to_string();
            ask_cpu(&mut place, &[&["-n", &n], &ONE[..]].concat());
            for fault in ["lost", "corrupt", "kill", "stop"] {
                let what = format!("{name}, {fault} at token {at}");
                let args = [&SMALL[..], &ONE, &["-n", &n, "-v"]].concat();
                let Some(both) = with_fault(&place, &driver, fault, at, &args) else {
                    println!("skipped: {what}: the machine is so busy that no worker gets that far");
                    continue;
                };
                let first = both.jobs()[0];
                tell(&format!("{what} (the first worker had {first} jobs)"), &both);
                let gpu = both.gpu();
                // On a busy machine an answer may be late after that, which is then the last fault.
                let why = format!("{}\n{}", both.fault(), both.stderr);
                let (late, restarts) = (gpu["late"].as_u64(), gpu["restarts"].as_u64());
                // No worker has more than this job. One that was late was lost before.
                assert!(first == at || late > Some(0), "{what}: {first}, {gpu}");
                // A fast machine may be done before the pause is over.
                let replaced = restarts >= Some(1) || gpu["state"] == "lost" || gpu["state"] == "starting";
                match fault {
                    "lost" => assert!(why.contains("DEVICE_LOST") && replaced, "{what}: {gpu}"),
                    "corrupt" => {
                        assert!(why.contains("wrong number"), "{what}: {gpu}");
                        assert_eq!(gpu["mismatches"], 1, "{what}: {gpu}");
                        assert!(restarts == Some(0) || late > Some(1), "{what}: {gpu}");
                        assert!(gpu["jobs"] == at || late > Some(0), "{what}: {gpu}");
                    }
                    "kill" => assert!(why.contains("SIGKILL") && replaced, "{what}: {gpu}"),
                    _ => {
                        assert!(late >= Some(1), "{what}: {gpu}");
                        let named = ["did not answer", "no sign of life"].iter().any(|w| why.contains(w));
                        assert!(named, "{what}: {gpu}");
                    }
                }
            }
        }
    }
}

/// V16: what a user sees of a device that hangs: the longest gap is the usual one, the deadline, and one head on the CPU.
#[test]
fn the_longest_gap_when_the_device_hangs() {
    let Some(driver) = lavapipe() else { return };
    let tokens = [&["-n", "40"][..], &ONE].concat();
    for (name, model) in models() {
        let mut place = Place::of(|_| model.clone());
        ask_cpu(&mut place, &tokens);
        for share in ["0.005", "0.2"] {
            let run = |fault: &str| {
                let args = [&["--gpu", "on", "--gpu-share", share, "--stats"], &tokens[..]].concat();
                let command = place.with(&driver, &place.fresh(), fault, &args);
                place.gaps(command, &format!("{name}, {fault}"))
            };
            let (usual, _) = run("");
            let median = usual[usual.len() / 2];
            // Whatever else runs on the machine adds to every gap: a limit that is missed is tried again.
            for last_try in [false, false, true] {
                let (with_fault, said) = run("job=hang@20");
                let waiting = said.lines().find(|line| line.starts_with("waiting")).unwrap_or_default();
                let number = |after: &str| {
                    let rest = waiting.split_once(after).map_or("", |(_, rest)| rest);
                    rest.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(f64::NAN)
                };
                let (deadline, head) = (number("deadline of "), number("takes "));
                let longest = with_fault.last().copied().unwrap_or_default();
                println!(
                    "{name}, share {share}: gaps without a fault {median:.0} ms, at most {:.0} ms; the device hangs: \
                     at most {longest:.0} ms with a deadline of {deadline:.0} ms and a head of {head:.1} ms on the CPU",
                    usual.last().copied().unwrap_or_default()
                );
                assert!(deadline >= 50.0, "{name}: {said}");
                // The gap of that token holds a forward pass too. The deadline is a few times what a job takes.
                if longest < deadline + head + median + 1000.0 && deadline < 10_000.0 {
                    break;
                }
                assert!(!last_try, "{name}: {longest} ms: {said}");
            }
        }
    }
}
