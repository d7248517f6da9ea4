//! The program with Vulkan drivers that fail: the real program, worker and software driver, and between them a driver
//! that forwards every call and fails on request (tests/icd). Whatever happens, the text and every bit of the logits are
//! those of the CPU alone, the time is bounded, and no process is left.
//!
//! V01 to V45 name the kinds of fault that users of comparable engines report; docs/FAULTS.md lists them all.

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::driver::{Outcome, Place, drivers, fake_icd, lavapipe, workers};
use common::gpu::{LONG, signal};

/// A device that takes part from the first token on, or the program says why not.
const ON: [&str; 4] = ["--gpu", "on", "--gpu-share", "0.5"];
/// The same without an obligation: the first tokens do not wait, a device that cannot be had is no error.
const AUTO: [&str; 4] = ["--gpu", "auto", "--gpu-share", "0.5"];

#[test]
fn a_driver_without_faults_changes_no_bit() {
    for q8 in [false, true] {
        let mut place = Place::new(q8);
        for sampling in [&["--temp", "0"][..], &["--temp", "1.5", "--seed", "7"]] {
            place.cpu = place.finish(place.command(sampling)).json;
            for driver in drivers() {
                for share in ["0.01", "0.5", "0.99"] {
                    let args = [&["--gpu", "on", "--gpu-share", share][..], sampling].concat();
                    let both = place.run_in_time(&driver, "", &args);
                    let what = format!("{} q8={q8} {sampling:?} {share}", driver.name);
                    assert!(both.complete(), "{what}: {}", both.gpu());
                    assert_eq!(both.gpu()["mismatches"], 0, "{what}: {}", both.gpu());
                    // Answers that are late twice cost a worker.
                    assert!(both.busy() || both.gpu()["restarts"] == 0, "{what}: {}", both.gpu());
                }
            }
        }
    }
}

/// V01, V03, V05, V25, V42: a device that was asked for and cannot be had is an error that names the cause; the same
/// device is no more than a line where it was not asked for.
#[test]
fn a_driver_that_fails_at_its_start() {
    let place = Place::new(false);
    let cases = [
        ("init=segv", "SIGSEGV"),
        ("init=abort", "SIGABRT"),
        ("init=exit0", "ended as if it had been asked to"),
        ("init=fail", "ERROR_INITIALIZATION_FAILED"),
        ("instance=segv", "SIGSEGV"),
        ("instance=fail", "cannot create an instance: VK_ERROR_INITIALIZATION_FAILED"),
        ("enumerate=abort", "SIGABRT"),
        ("enumerate=fail", "list devices"),
        ("device=segv", "SIGSEGV"),
        ("device=exit0", "ended as if it had been asked to"),
        ("device=fail", "open the device"),
        ("alloc=abort", "SIGABRT"),
        ("alloc=exit0", "ended as if it had been asked to"),
        ("alloc=fail", "not even for a few rows"),
        ("alloc-max=65536", "not even for a few rows"),
        ("pipe=abort", "SIGABRT"),
        ("pipe=segv", "SIGSEGV"),
        ("pipe=exit0", "ended as if it had been asked to"),
        ("pipe=fail", "compile a shader"),
        ("submit=segv", "SIGSEGV"),
        ("submit=lost", "DEVICE_LOST"),
        ("wait=exit0", "ended as if it had been asked to"),
        ("wait=lost", "DEVICE_LOST"),
    ];
    let Some(driver) = lavapipe() else { return };
    for (fault, word) in cases {
        let on = place.run(&driver, fault, &ON);
        assert_eq!(on.code, Some(1), "{fault}: {on:?}");
        assert!(on.stderr.contains(word) && on.stderr.contains("--gpu auto"), "{fault}: {}", on.stderr);
        let auto = place.run(&driver, &format!("type=discrete,{fault}"), &AUTO);
        place.same(&auto, fault);
        assert_eq!(auto.gpu()["jobs"], 0, "{fault}");
        // Unless the tokens were faster than the driver's end.
        assert!(auto.gpu()["state"] == "starting" || auto.fault().contains(word), "{fault}: {}", auto.gpu());
    }
}

/// V07, V16, V32: nobody waits for a driver that hangs, or that takes its time, at its start.
#[test]
fn a_driver_that_hangs_at_its_start() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    for fault in ["init=hang", "enumerate=hang", "device=hang", "alloc=hang", "pipe=slow:20000", "wait=hang"]
    {
        let auto = place.run(&driver, &format!("type=discrete,{fault}"), &AUTO);
        place.same(&auto, fault);
        assert_eq!(auto.gpu()["jobs"], 0, "{fault}");
        // Such a start is waited for for 30 seconds; the tokens take less than one.
        assert!(auto.took < Duration::from_secs(15), "{fault}: {:?}", auto.took);
    }
}

/// V09: what crashes is not tried again and again, by this process or the next, until something has changed.
#[test]
fn a_driver_that_crashes_is_started_once() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let dir = place.fresh();
    for run in 0..5 {
        let on = place.finish(place.with(&driver, &dir, "device=segv", &ON));
        assert_eq!((on.code, on.count("init")), (Some(1), 1), "run {run}: {}", on.stderr);
        assert!(on.stderr.contains("SIGSEGV"), "run {run}: {}", on.stderr);
        assert!(run == 0 || on.stderr.contains("vkinfo --retry"), "run {run}: {}", on.stderr);
    }
    // A change of its manifest, as a new version brings: it is tried again, and works.
    let text = fs::read_to_string(dir.join("fake.json")).expect("the manifest");
    fs::write(dir.join("fake.json"), text).expect("space");
    let on = place.finish(place.with(&driver, &dir, "", &ON));
    place.same(&on, "after all");
    assert_eq!(on.count("init"), 2);
}

/// V13, V16, V17, V18, V42 at the first token, the seventh and the hundredth.
#[test]
fn a_driver_that_fails_at_work() {
    let place = Place::new(false);
    for driver in drivers() {
        for at in [1, 7, 100] {
            for action in ["segv", "abort", "exit0", "fail", "lost", "hang", "timeout", "corrupt"] {
                // The first tokens of a device that was forced are waited for for seconds: once is enough.
                if at == 1 && action == "timeout" {
                    continue;
                }
                let fault = format!("job={action}@{at}");
                let what = format!("{} {fault}", driver.name);
                let hangs = matches!(action, "hang" | "timeout");
                let both = if hangs {
                    place.run(&driver, &fault, &ON)
                } else {
                    place.run_in_time(&driver, &fault, &ON)
                };
                place.same(&both, &what);
                let (gpu, jobs) = (both.gpu(), both.jobs());
                assert!(!both.fault().is_empty(), "{what}: {gpu}");
                // The fault hits this very job, and no worker gets beyond it.
                let late = gpu["late"].as_u64().unwrap_or(0);
                let last = jobs.iter().max() == Some(&at);
                // A machine so busy that answers were late may have lost workers before.
                assert!(last || late > 1, "{what}: {jobs:?}, {gpu}");
                match action {
                    _ if !last => println!("{what}: the machine is so busy that no worker gets that far"),
                    "corrupt" => {
                        assert_eq!(gpu["mismatches"], 1, "{what}: {gpu}");
                        // The last token may come before the worker is put away for good.
                        let over = gpu["state"] == "given-up" || gpu["state"] == "lost";
                        assert!(over, "{what}: {gpu}");
                        assert!(both.count("init") == 1 || late > 1, "{what}: {gpu}");
                    }
                    "hang" | "timeout" => assert!(late >= 1, "{what}: {gpu}"),
                    // Every job before it was answered, by every worker.
                    _ => {
                        let due: u64 = jobs.iter().map(|n| *n.min(&(at - 1))).sum();
                        let answered = gpu["jobs"].as_u64().unwrap_or(0);
                        assert!(answered <= due && due <= answered + late, "{what}: {jobs:?}, {gpu}");
                        assert!(late > 0 || jobs[0] == at, "{what}: {jobs:?}, {gpu}");
                    }
                }
                // One worker and three losses, each at most seconds late.
                assert!(both.count("init") <= 4, "{what}: {:?}", both.count("init"));
                assert!(both.took < 2 * LONG, "{what}: {:?}", both.took);
            }
        }
        for action in ["segv", "exit0", "fail", "lost"] {
            // Long after the upload, whatever number of submissions that takes.
            let fault = format!("submit={action}@60");
            let both = place.run_in_time(&driver, &fault, &ON);
            let met = both.count("submit") >= 60 || both.busy();
            assert!(!both.fault().is_empty() && met, "{fault}: {}", both.gpu());
        }
    }
}

/// V17: a driver that comes back at once without a result does not keep a core busy.
#[test]
fn a_wait_that_times_out_at_once_is_not_repeated_in_a_loop() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let both = place.run(&driver, "job=timeout@1", &ON);
    place.same(&both, "timeout");
    let waits: usize = both
        .lives()
        .map(|life| life.iter().skip_while(|stage| *stage != "job").filter(|stage| *stage == "wait").count())
        .sum();
    // Ten a second, for as long as there was a worker.
    assert!(waits <= 10 * (both.took.as_secs() as usize + 2), "{waits} waits in {:?}", both.took);
    assert!(waits >= 2, "{waits}");
}

/// V25, V36: memory that runs out at work costs rows, then the device. The jobs themselves allocate none.
#[test]
fn a_driver_that_runs_out_of_memory_at_work() {
    let place = Place::new(false);
    for driver in drivers() {
        let plain = place.run_in_time(&driver, "", &ON);
        let at_work = |outcome: &Outcome, stage: &str| {
            let life = outcome.lives().next().unwrap_or_default();
            life.iter().skip_while(|s| *s != "job").filter(|s| *s == stage).count()
        };
        assert!(at_work(&plain, "job") >= 1, "{}: {:?}", driver.name, plain.jobs());
        assert_eq!(at_work(&plain, "alloc"), 0, "{}: {:?}", driver.name, plain.stages);
        // The upload makes one pool, the first job of a range of rows another.
        let both = place.run_in_time(&driver, "pool=fail@2", &ON);
        assert_eq!(both.gpu()["jobs"], 0, "{}", both.gpu());
        // With half of the rows every time, for as long as there are tokens.
        let fault = both.fault();
        assert!(fault.contains("OUT_OF_HOST_MEMORY"), "{}: {}", driver.name, both.gpu());
        // A fast machine may be done before the next driver is greeted.
        let next = both.count("init") >= 2 || both.gpu()["state"] == "starting";
        assert!(next, "{}: {}", driver.name, both.gpu());
    }
}

/// V36: what a driver says of its memory is not believed; allocations are tried.
#[test]
fn a_driver_that_reports_absurd_memory() {
    let place = Place::new(false);
    for driver in drivers() {
        for heap in ["heap=0", "heap=1", "heap=18446744073709551615"] {
            let both = place.run_in_time(&driver, heap, &ON);
            assert!(both.complete(), "{} {heap}: {}", driver.name, both.gpu());
        }
    }
}

/// V22, V23, V24: limits are obeyed, or the device is declined by name.
#[test]
fn a_driver_with_small_limits() {
    let place = Place::new(false);
    for driver in drivers() {
        for limits in
            ["wg-count=3", "ssbo-range=1048576", "wg-inv=128,smem=16384", "wg-count=2,ssbo-range=1048576"]
        {
            let both = place.run_in_time(&driver, limits, &ON);
            let what = format!("{} {limits}", driver.name);
            assert!(both.complete(), "{what}: {}", both.gpu());
        }
        for limits in ["wg-inv=16", "smem=64", "ssbo-range=16384", "wg-count=0"] {
            let on = place.run(&driver, limits, &ON);
            let what = format!("{} {limits}", driver.name);
            match on.code {
                Some(0) => place.same(&on, &what),
                code => assert!(
                    code == Some(1) && on.stderr.contains("the GPU cannot be used"),
                    "{what}: {}",
                    on.stderr
                ),
            }
            place.same(&place.run(&driver, &format!("type=discrete,{limits}"), &AUTO), &what);
        }
    }
}

/// V11, V30: a software driver is not used unless named; one that poses as hardware is measured and left alone.
#[test]
fn a_slow_device_gets_no_rows() {
    const ENOUGH: [&str; 2] = ["-n", "1000"];
    let mut place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    place.cpu = place.finish(place.command(&ENOUGH)).json;
    // By way of the loader: to name a driver is to ask for it.
    let mut command = place.command(&[&["--gpu", "auto"][..], &ENOUGH].concat());
    command.env("VK_DRIVER_FILES", &driver.manifest).env("VK_ICD_FILENAMES", &driver.manifest);
    let auto = place.finish(command);
    assert_eq!(auto.code, Some(0), "{}", auto.stderr);
    println!("auto, a software driver alone: {}", auto.gpu());
    assert_eq!(auto.gpu()["jobs"], 0, "{}", auto.gpu());
    for fault in ["type=discrete,name=Fast GPU", "type=integrated,wait=slow:30"] {
        let on = place.run(&driver, fault, &[&["--gpu", "on"][..], &ENOUGH].concat());
        place.same(&on, fault);
        assert_eq!(on.gpu()["share"], 0.0, "{fault}: {}", on.gpu());
        assert!(on.gpu()["jobs"].as_u64() >= Some(1), "{fault} was measured: {}", on.gpu());
        let auto = place.run(&driver, fault, &[&["--gpu", "auto"][..], &ENOUGH].concat());
        place.same(&auto, fault);
        // A device that starts late may still be measured with the last token, and has rows then.
        let measured = auto.gpu()["state"] == "calibrating" || auto.gpu()["state"] == "busy";
        println!("{fault}, still measured: {measured}: {}", auto.gpu());
        assert!(measured || auto.gpu()["share"] == 0.0, "{fault}: {}", auto.gpu());
    }
}

/// V34: a device that gets slow is dropped, even one whose share was forced.
#[test]
fn a_device_that_gets_slow_is_dropped() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let both = place.run(&driver, "job=slow:3000@20", &ON);
    place.same(&both, "slow");
    assert!(
        both.gpu()["late"].as_u64() >= Some(1) && both.gpu()["jobs"].as_u64() < Some(119),
        "{}",
        both.gpu()
    );
}

/// V39: two programs with the same device at the same time.
#[test]
fn two_programs_share_a_device() {
    let place = Place::new(true);
    for driver in drivers() {
        let both: Vec<Outcome> = std::thread::scope(|scope| {
            let one = || place.run(&driver, "", &ON);
            let threads = [scope.spawn(one), scope.spawn(one)];
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        for outcome in both {
            place.same(&outcome, driver.name);
            assert!(outcome.gpu()["jobs"].as_u64() >= Some(1), "{}", outcome.gpu());
        }
    }
}

/// V40: a crash while the device is torn down hurts nobody.
#[test]
fn a_driver_that_fails_at_its_end() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    for fault in ["end=segv", "end=abort", "end=hang"] {
        let both = place.run_in_time(&driver, fault, &ON);
        assert!(both.took < Duration::from_secs(15), "{fault}: {:?}", both.took);
        assert!(both.busy() || both.gpu()["last_fault"].is_null(), "{fault}: {}", both.gpu());
    }
}

/// V37, V38: the worker is killed or stopped by somebody else in the middle of the work.
#[test]
fn a_worker_that_is_killed_or_stopped() {
    let mut place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let long = ["-n", "1500"];
    place.cpu = place.finish(place.command(&long)).json;
    for name in ["KILL", "STOP"] {
        let dir = place.fresh();
        let log = dir.join("log");
        let outcome = std::thread::scope(|scope| {
            let run = scope.spawn(|| place.finish(place.with(&driver, &dir, "", &[&ON[..], &long].concat())));
            // Not before it is at work.
            let started = Instant::now();
            let at_work = || fs::read_to_string(&log).is_ok_and(|text| text.matches("job").count() > 30);
            while !at_work() && !run.is_finished() {
                assert!(started.elapsed() < LONG, "it does not get to work");
                std::thread::sleep(Duration::from_millis(1));
            }
            for pid in workers(&log) {
                signal(name, pid);
            }
            run.join().expect("no panic")
        });
        place.same(&outcome, name);
        println!("SIG{name}: {}", outcome.gpu());
        assert!(!outcome.fault().is_empty() || outcome.gpu()["late"] != 0, "{name}: {}", outcome.gpu());
    }
}

/// V16: what a hanging device costs, seen by the user.
#[test]
fn the_longest_gap_between_two_tokens() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let gap = |fault: &str, args: &[&str]| {
        let command = place.with(&driver, &place.fresh(), fault, &[args, &["--stats"]].concat());
        let longest = place.gaps(command, fault).0.last().copied().unwrap_or_default();
        Duration::from_secs_f64(longest / 1e3)
    };
    println!("CPU only: {:?}", gap("", &["--gpu", "off"]));
    println!("no fault: {:?}", gap("", &ON));
    for fault in ["hang", "lost", "segv"] {
        let longest = gap(&format!("job={fault}@20"), &ON);
        println!("{fault} at token 20: {longest:?}");
        // The deadline is four times what the device took before, at least 20 ms; a busy machine adds to that.
        assert!(longest < Duration::from_secs(3), "{fault}: {longest:?}");
    }
}

/// V02: a layer of somebody else's that crashes every Vulkan program is not loaded, unless that is asked for.
#[test]
fn a_layer_that_crashes() {
    let place = Place::new(false);
    let Some(driver) = lavapipe() else { return };
    let dir = place.fresh();
    let layers = dir.join("data/vulkan/implicit_layer.d");
    fs::create_dir_all(&layers).expect("a folder");
    let manifest = format!(
        r#"{{"file_format_version": "1.1.2", "layer": {{"name": "VK_LAYER_TEST_bad", "type": "GLOBAL",
        "library_path": "{}", "api_version": "1.3.0", "implementation_version": "1", "description": "crashes",
        "disable_environment": {{"DISABLE_TEST_BAD": "1"}}}}}}"#,
        fake_icd().display()
    );
    fs::write(layers.join("bad.json"), manifest).expect("space");
    let run = |more: &[&str]| {
        let mut command = place.command(&[&ON[..], more].concat());
        command
            .arg("--worker")
            .arg(common::gpu::worker())
            .env("VK_DRIVER_FILES", &driver.manifest)
            .env("VK_ICD_FILENAMES", &driver.manifest)
            .env("XDG_DATA_HOME", dir.join("data"))
            .env("XDG_CACHE_HOME", dir.join("cache"));
        place.finish(command)
    };
    let without = run(&[]);
    place.same(&without, "without layers");
    assert!(without.complete(), "{}", without.gpu());
    let with = run(&["--vk-layers"]);
    if with.code == Some(0) {
        println!("skipped in part: there is no Vulkan loader, so no layer either");
        return place.same(&with, "no loader");
    }
    assert!(with.code == Some(1) && with.stderr.contains("SIGABRT"), "{with:?}");
}

/// V06, V10: a run on the CPU opens nothing of Vulkan's, not even to see what there is.
#[test]
fn without_a_gpu_no_vulkan_file_is_opened() {
    let place = Place::new(false);
    let trace = |args: &[&str]| {
        let command = place.command(args);
        let file = place.fresh().join("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=openat,open,execve", "-o"]).arg(&file).arg(command.get_program());
        strace.args(command.get_args()).stdin(Stdio::null());
        let status = strace.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
        // Without the right to trace, strace fails.
        status.success().then(|| fs::read_to_string(&file).ok()).flatten()
    };
    let Some(off) = trace(&["--gpu", "off"]) else {
        println!("skipped: no strace that may trace");
        return;
    };
    assert!(off.contains("tiny.gguf"), "{off}");
    let vulkan = |line: &&str| {
        ["vulkan", "icd.d", "libEGL", "libGL", "twinband-worker"].iter().any(|w| line.contains(w))
    };
    let opened: Vec<&str> = off.lines().filter(vulkan).collect();
    assert!(opened.is_empty(), "{opened:#?}");
    // The same look finds it where there is something to find.
    let worker = common::gpu::worker();
    let on = trace(&["--gpu", "auto", "--worker", &worker.to_string_lossy()]).expect("as before");
    assert!(on.lines().any(|line| line.contains("twinband-worker")), "{on}");
}
