//! The engine's side with the real worker program, which `cargo test --workspace` builds beside it: work that is right
//! to the bit, and every way to lose a worker. V01 to V45 name the kinds of fault that users of comparable engines report.

mod common;

use std::time::{Duration, Instant};

use common::gpu::{COLS, Fixture, LONG, ROWS};
use twinband::gpu::{
    Backend, Gpu, GpuOptions, Limits, Lost, Mode, Patience, State, Store, clear_verdicts, probe, verdicts,
};

/// What scheduling on a busy machine may add to a time limit.
const SLACK: Duration = Duration::from_millis(700);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One token: the worker gets all rows it has, and the answer is held against the definition. Returns what came, and
/// how long the caller was held up.
fn token(
    gpu: &mut Gpu,
    fixture: &Fixture,
    n: u64,
    deadline: Duration,
) -> (Option<Result<bool, Lost>>, Duration) {
    let input = fixture.input(n);
    let started = Instant::now();
    let rows = gpu.poll(started).rows.clone();
    let Some(ticket) = gpu.submit(&input.input(), rows.clone()) else { return (None, started.elapsed()) };
    let mut out = vec![0.0; rows.len()];
    let result = gpu.wait(ticket, started + deadline, &mut out);
    let took = started.elapsed();
    let right = || fixture.expected(&input, rows).iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits());
    (Some(result.map(|_| right())), took)
}

#[test]
fn rows_are_right_to_the_bit() {
    for format in [2, 8] {
        let fixture = Fixture::new(format);
        let mut gpu = Gpu::start(fixture.options(""), fixture.matrix(), 0.5);
        let status = gpu.settle(LONG).clone();
        assert_eq!((status.state, status.rows.clone()), (State::Calibrating, 448..ROWS), "{status:?}");
        assert_eq!(gpu.messages(), ["[gpu] worker ready: null device"]);
        gpu.calibrated();
        for (n, rows) in [448..ROWS, 448..449, 512..640, 960..ROWS, 640..640].into_iter().enumerate() {
            let input = fixture.input(n as u64);
            let ticket = gpu.submit(&input.input(), rows.clone()).expect("it is free");
            assert_eq!(gpu.status().state, State::Busy);
            let mut out = vec![f32::NAN; rows.len()];
            gpu.wait(ticket, Instant::now() + LONG, &mut out).expect("an answer");
            let expected = fixture.expected(&input, rows.clone());
            assert!(out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows:?}");
        }
        for n in 0..300 {
            assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)), "token {n}");
        }
        assert_eq!((gpu.status().jobs, gpu.status().state), (305, State::Ready));
        // Rows that are not loaded, not on a tile, or not there.
        let input = fixture.input(0);
        for rows in [0..64, 384..ROWS, 449..ROWS, 448..ROWS + 1] {
            assert!(gpu.submit(&input.input(), rows).is_none());
        }
    }
}

/// The cost of a job without work and of a small real one, for docs/BENCHMARKS.md.
#[test]
fn round_trips_are_short() {
    let fixture = Fixture::new(2);
    let mut gpu = Gpu::start(fixture.options(""), fixture.matrix(), 1.0);
    gpu.settle(LONG);
    let input = fixture.input(1);
    for rows in [0..0, 0..64, 0..ROWS] {
        let mut out = vec![0.0; rows.len()];
        let mut times: Vec<Duration> = (0..1000)
            .map(|_| {
                let ticket = gpu.submit(&input.input(), rows.clone()).expect("it is free");
                gpu.wait(ticket, Instant::now() + LONG, &mut out).expect("an answer").total
            })
            .collect();
        times.sort();
        println!("{} rows: p50 {:?}, p99 {:?}", rows.len(), times[500], times[990]);
        assert!(times[500] < ms(20), "{:?}", times[500]);
    }
}

#[test]
fn a_device_that_is_not_wanted_is_not_looked_at() {
    let fixture = Fixture::new(8);
    let log = fixture.path("log");
    let orders = format!("log={}", log.display());
    for (mode, share) in [(Mode::Off, 1.0), (Mode::On, 0.0)] {
        let options = GpuOptions { mode, ..fixture.options(&orders) };
        let mut gpu = Gpu::start(options, fixture.matrix(), share);
        assert_eq!(gpu.settle(ms(200)).state, State::Off);
        assert!(gpu.submit(&fixture.input(0).input(), 0..64).is_none());
        assert!(!log.exists());
    }
}

/// V07, V32: whatever a driver does at its start, nobody waits for it.
#[test]
fn a_start_holds_nobody_up() {
    let fixture = Fixture::new(8);
    for orders in ["open-slow=1500", "load-slow=1500", "open-hang"] {
        let started = Instant::now();
        let mut gpu = Gpu::start(fixture.options(orders), fixture.matrix(), 1.0);
        for n in 0..20 {
            let (came, took) = token(&mut gpu, &fixture, n, LONG);
            assert!(came.is_none() && took < SLACK, "{orders}: {took:?}");
        }
        assert!(started.elapsed() < ms(1500), "{orders}: {:?}", started.elapsed());
        assert_eq!(gpu.status().state, State::Starting, "{orders}");
    }
}

/// V01, V03, V05, V06, V07, V08, V24, V25, V42 as far as the engine sees them.
#[test]
fn every_failed_start_is_told_apart_and_bounded() {
    let cases = [
        // orders, state, how often it was opened, a word of the report, whether a verdict stays
        ("open-hang", State::GivenUp, 1, "did not answer", true),
        ("open-exit0", State::GivenUp, 1, "ended as if it had been asked to", true),
        ("open-abort", State::GivenUp, 1, "SIGABRT", true),
        ("load-hang", State::GivenUp, 1, "while it loaded", true),
        ("load-exit0", State::GivenUp, 1, "while it loaded", true),
        ("load-abort", State::GivenUp, 1, "SIGABRT", true),
        ("open-fail", State::Lost, 1, "failed to open", false),
        ("load-fail", State::Lost, 1, "failed to load", false),
        ("no-device", State::Lost, 1, "no device", false),
        ("no-fit", State::Lost, 1, "no device may be used", false),
        ("memory=0", State::GivenUp, 5, "not even for a few rows", false),
        ("dance", State::GivenUp, 0, "cannot follow", false),
    ];
    for (orders, state, opened, word, verdict) in cases {
        let fixture = Fixture::new(8);
        let log = fixture.path("log");
        let mut options = fixture.options(&format!("log={} {orders}", log.display()));
        options.patience = Patience { greeting: LONG, open: ms(800), load: ms(800) };
        let mut gpu = Gpu::start(options.clone(), fixture.matrix(), 1.0);
        let started = Instant::now();
        while !matches!(gpu.poll(Instant::now()).state, State::GivenUp | State::Lost)
            || fixture.size("log") < opened
        {
            assert!(started.elapsed() < LONG, "{orders}: {:?}", gpu.status());
            std::thread::sleep(ms(5));
        }
        let status = gpu.settle(LONG).clone();
        let fault = status.last_fault.clone().unwrap_or_default();
        assert_eq!((status.state, fixture.size("log")), (state, opened), "{orders}: {fault}");
        assert!(fault.contains(word), "{orders}: {fault}");
        let messages = gpu.messages();
        assert!(state == State::Lost || messages == [format!("[gpu] not used: {fault}")], "{messages:?}");
        drop(gpu);

        // V09: the next run does not try what is known to crash, until it is told to.
        let store = Store::new(options.cache_dir.as_deref());
        assert_eq!(verdicts(&store).len(), usize::from(verdict), "{orders}");
        if verdict {
            let mut gpu = Gpu::start(options.clone(), fixture.matrix(), 1.0);
            let fault = gpu.settle(LONG).last_fault.clone().unwrap_or_default();
            assert_eq!(
                (gpu.status().state, fixture.size("log")),
                (State::GivenUp, opened),
                "{orders}: {fault}"
            );
            assert!(fault.contains(word) && fault.contains("vkinfo --retry"), "{fault}");
            assert_eq!(clear_verdicts(&store), 1);
            let _gpu = Gpu::start(options, fixture.matrix(), 1.0);
            fixture.wait_for_size("log", opened + 1);
        }
    }
}

/// Programs that are no worker: V03 and worse.
#[test]
fn strangers_in_the_place_of_the_worker() {
    let cases = [
        ("/nonexistent/worker", "TWINBAND_WORKER"),
        ("/bin/false", "exit status: 1"),
        ("/bin/true", "ended as if it had been asked to"),
        ("/bin/cat", "sent Open where Ready"),
        ("/usr/bin/yes", "cannot be understood"),
        ("/usr/bin/wc", "did not answer within 500 ms while it started"),
    ];
    for (program, word) in cases {
        let fixture = Fixture::new(8);
        let mut options = GpuOptions { worker: Some(program.into()), ..fixture.options("") };
        options.patience.greeting = ms(500);
        let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
        let status = gpu.settle(LONG);
        let fault = status.last_fault.clone().unwrap_or_default();
        assert!(status.state == State::GivenUp && fault.contains(word), "{program}: {status:?}");
    }
}

/// V13, V16, V17, V34, V38, V42 at work: no token waits longer than its deadline, every answer that is taken is right,
/// and the number of workers is bounded.
#[test]
fn every_loss_at_work_costs_no_more_than_the_deadline() {
    const DEADLINE: Duration = Duration::from_millis(150);
    let cases = [
        ("hang@3", "", State::GivenUp),
        ("stop@3", "", State::GivenUp),
        ("exit0@3", "ended as if it had been asked to", State::GivenUp),
        ("abort@3", "SIGABRT", State::GivenUp),
        ("segv@3", "SIGSEGV", State::GivenUp),
        ("panic@3", "ordered at job 3", State::GivenUp),
        ("lost@3", "device was lost", State::GivenUp),
        ("garbage@3", "cannot be understood", State::GivenUp),
        ("slow=400@3", "again", State::GivenUp),
        ("idle-exit=1@3", "ended as if it had been asked to", State::GivenUp),
        ("exit0@1", "ended as if it had been asked to", State::GivenUp),
    ];
    for (orders, word, state) in cases {
        let fixture = Fixture::new(2);
        let mut options = fixture.options(&format!("log={} {orders}", fixture.path("log").display()));
        options.limits = Limits { losses: 2, backoff: ms(10), silence: ms(500), ..Limits::default() };
        let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
        let (mut longest, mut good, started) = (Duration::ZERO, 0, Instant::now());
        for n in 0.. {
            let (came, took) = token(&mut gpu, &fixture, n, DEADLINE);
            longest = longest.max(took);
            match came {
                Some(Ok(right)) => {
                    assert!(right, "{orders}: token {n}");
                    good += 1;
                }
                Some(Err(_)) => {}
                None if gpu.status().state == State::GivenUp => break,
                None => std::thread::sleep(ms(2)),
            }
            assert!(started.elapsed() < LONG * 2, "{orders}: {:?}", gpu.status());
        }
        println!("{orders}: longest token {longest:?}, deadline {DEADLINE:?}, {good} answers");
        let status = gpu.status();
        let fault = status.last_fault.clone().unwrap_or_default();
        assert!(longest < DEADLINE + SLACK, "{orders}: {longest:?}");
        assert_eq!((status.state, status.restarts, fixture.size("log")), (state, 2, 3), "{orders}: {fault}");
        assert!(fault.contains(word), "{orders}: {fault}");
        assert_eq!(status.pid, None);
    }
}

#[test]
fn a_lost_worker_is_replaced_and_the_new_one_works() {
    let fixture = Fixture::new(2);
    let orders = format!("once={} abort@4", fixture.path("once").display());
    let mut options = fixture.options(&orders);
    options.limits.backoff = ms(10);
    let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
    let first = gpu.settle(LONG).pid;
    for n in 0..3 {
        assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)));
    }
    assert!(matches!(token(&mut gpu, &fixture, 3, LONG), (Some(Err(Lost::Gone { .. })), _)));
    fixture.until(&mut gpu, |status| status.restarts == 1 && !status.rows.is_empty());
    assert_ne!(gpu.status().pid, first);
    for n in 4..50 {
        assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)), "token {n}");
    }
    assert_eq!(gpu.status().jobs, 49);
    assert!(
        gpu.status().last_fault.as_ref().is_some_and(|fault| fault.contains("SIGABRT")),
        "{:?}",
        gpu.status()
    );
}

#[test]
fn one_late_answer_is_thrown_away_and_forgiven() {
    let fixture = Fixture::new(2);
    let mut gpu = Gpu::start(fixture.options("slow=1200@3-3"), fixture.matrix(), 1.0);
    gpu.settle(LONG);
    for n in 0..2 {
        assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)));
    }
    let (came, took) = token(&mut gpu, &fixture, 2, ms(50));
    assert!(
        matches!(came, Some(Err(Lost::Late { .. }))) && (ms(50)..ms(50) + SLACK).contains(&took),
        "{took:?}"
    );
    // It still owes the answer: it gets nothing else to do, and nobody waits.
    assert!(matches!(token(&mut gpu, &fixture, 3, LONG), (None, _)));
    assert_eq!(gpu.status().state, State::Busy);
    fixture.until(&mut gpu, |status| status.state == State::Calibrating);
    for n in 4..40 {
        // Its results are in the same buffer, and are not taken for those of later jobs.
        assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)), "token {n}");
    }
    assert_eq!((gpu.status().late, gpu.status().restarts, gpu.status().jobs), (1, 0, 38));
}

/// V18: the caller compares; here it sees that its word ends the device's use for good.
#[test]
fn wrong_numbers_end_it_for_this_run_and_the_next() {
    for orders in ["corrupt=17@3", "nan=1002@3"] {
        let fixture = Fixture::new(2);
        let options = fixture.options(orders);
        let mut gpu = Gpu::start(options.clone(), fixture.matrix(), 1.0);
        gpu.settle(LONG);
        for n in 0..2 {
            assert!(matches!(token(&mut gpu, &fixture, n, LONG), (Some(Ok(true)), _)));
        }
        assert!(matches!(token(&mut gpu, &fixture, 2, LONG), (Some(Ok(false)), _)), "{orders}");
        gpu.mismatch("row 17 of token 3");
        assert!(gpu.submit(&fixture.input(0).input(), 0..64).is_none());
        fixture.until(&mut gpu, |status| status.state == State::GivenUp);
        assert_eq!((gpu.status().mismatches, gpu.status().restarts), (1, 0));
        let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
        let fault = gpu.settle(LONG).last_fault.clone().unwrap_or_default();
        assert!(gpu.status().state == State::GivenUp && fault.contains("row 17 of token 3"), "{fault}");
    }
}

/// V25, V36: memory that is refused halves the band until it fits.
#[test]
fn rows_that_do_not_fit_are_halved() {
    let fixture = Fixture::new(2);
    let mut gpu = Gpu::start(fixture.options("memory=300"), fixture.matrix(), 1.0);
    assert_eq!(gpu.settle(LONG).state, State::Calibrating, "who waits for it waits for the last try");
    let rows = gpu.status().rows.clone();
    assert!((100..=300).contains(&rows.len()) && rows.end == ROWS, "{rows:?}");
    assert!(matches!(token(&mut gpu, &fixture, 0, LONG), (Some(Ok(true)), _)));
}

#[test]
fn a_worker_that_is_no_longer_wanted_ends() {
    for orders in ["", "open-hang", "load-hang"] {
        let fixture = Fixture::new(2);
        let log = fixture.path("log");
        let mut gpu =
            Gpu::start(fixture.options(&format!("log={} {orders}", log.display())), fixture.matrix(), 1.0);
        fixture.wait_for_size("log", 1);
        let pids = common::gpu::workers_of(std::process::id(), &fixture);
        if orders.is_empty() {
            gpu.settle(LONG);
        }
        assert_eq!(pids.len(), 1, "{orders}");
        let started = Instant::now();
        drop(gpu);
        assert!(started.elapsed() < SLACK, "{orders}: {:?}", started.elapsed());
        common::gpu::wait_until_gone(pids[0], LONG);
        // A try that was broken off is not held against the driver.
        let store = Store::new(Some(&fixture.path("cache")));
        while !verdicts(&store).is_empty() {
            assert!(started.elapsed() < LONG, "{orders}: {:?}", verdicts(&store));
            std::thread::sleep(ms(5));
        }
    }
}

/// V37 and the worker's own limits, seen from outside.
#[test]
fn the_worker_has_limited_itself() {
    let fixture = Fixture::new(2);
    let mut gpu = Gpu::start(fixture.options(""), fixture.matrix(), 1.0);
    let pid = gpu.settle(LONG).pid.expect("a worker");
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("a process of ours");
    let limits = read("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    assert!(read("status").lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"])));
    let group = read("stat").rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2)?.parse().ok());
    assert_eq!(group, Some(pid));
    let environment = read("environ");
    let names: Vec<&str> = environment.split('\0').filter_map(|v| Some(v.split_once('=')?.0)).collect();
    assert!(names.contains(&"VK_LOADER_LAYERS_DISABLE") && names.contains(&"TWINBAND_ENGINE"), "{names:?}");
    let known = ["HOME", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "RUST_BACKTRACE", "TWINBAND_ENGINE"];
    let prefixes = ["XDG_", "VK_", "MESA_", "LP_", "LVP_", "TWINBAND_ICD_", "DISABLE_", "NODEVICE_"];
    for name in names {
        assert!(known.contains(&name) || prefixes.iter().any(|p| name.starts_with(p)), "{name}");
    }
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
    let open: Vec<String> = descriptors
        .map(|fd| std::fs::read_link(fd.expect("an entry").path()).expect("a link").display().to_string())
        .collect();
    let count = |part: &str| open.iter().filter(|target| target.contains(part)).count();
    // The two ends of the conversation, the one on watch, standard output and error; nothing of the engine's own.
    assert!(count("pipe:") <= 5 && count("/dev/null") == 1 && count("memfd:twinband") <= 1, "{open:?}");
    assert_eq!(open.len(), count("pipe:") + 1 + count("memfd:twinband") + count("model"), "{open:?}");
}

#[test]
fn a_probe_is_survived_whatever_it_meets() {
    let fixture = Fixture::new(2);
    let options = |orders: &str| {
        let mut options = fixture.options(orders);
        options.patience.open = ms(500);
        options
    };
    let report = probe(&options("")).expect("a report");
    assert_eq!(report.devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["null device"]);
    let report = probe(&options("no-device")).expect("a report");
    assert_eq!((report.devices.len(), report.troubles), (0, vec!["there is no device".to_owned()]));
    for (orders, word) in [
        ("open-abort", "SIGABRT"),
        ("open-hang", "did not answer within 500 ms"),
        ("open-exit0", "while it opened the device"),
    ] {
        let fault = probe(&options(orders)).expect_err("no report").to_string();
        assert!(fault.contains(word), "{orders}: {fault}");
    }
}

// ------------------------------------------------------------------------- tests that need an engine of their own

/// Runs this program's `helper` test in a process of its own.
fn engine(what: &str, fixture: &Fixture) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "helper", "--nocapture"])
        .env("TWINBAND_TEST_HELPER", what)
        .env("TWINBAND_TEST_DIR", fixture.path(""));
    command
}

/// Not a test of its own: the engine of the tests below.
#[test]
fn helper() {
    let Ok(what) = std::env::var("TWINBAND_TEST_HELPER") else { return };
    let dir = std::env::var_os("TWINBAND_TEST_DIR").expect("a folder");
    let fixture = Fixture::again(2, dir.as_ref());
    match what.as_str() {
        "kills" => twenty_kills(&fixture),
        orders => {
            let mut gpu = Gpu::start(fixture.options(orders), fixture.matrix(), 1.0);
            let pid = gpu.settle(LONG).pid.expect("a worker");
            println!("worker {pid}");
            for n in 0.. {
                let _ = token(&mut gpu, &fixture, n, LONG);
                std::thread::sleep(ms(1));
            }
        }
    }
}

fn twenty_kills(fixture: &Fixture) {
    let mut options = fixture.options("");
    options.limits = Limits { losses: 100, backoff: ms(1), ..Limits::default() };
    options.limits.look_again = ms(5);
    let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("a process").count();
    let mut before = 0;
    for kill in 0..20u32 {
        fixture.until(&mut gpu, |status| status.restarts == kill && !status.rows.is_empty());
        if kill == 2 {
            before = descriptors();
        }
        assert!(
            matches!(token(&mut gpu, fixture, kill.into(), LONG), (Some(Ok(true)), _)),
            "{:?}",
            gpu.status()
        );
        common::gpu::signal("KILL", gpu.status().pid.expect("a worker"));
    }
    fixture.until(&mut gpu, |status| status.restarts == 20 && !status.rows.is_empty());
    let started = Instant::now();
    loop {
        let (now, zombies) = (descriptors(), common::gpu::zombies_of(std::process::id()));
        if now <= before && zombies == 0 {
            break;
        }
        assert!(started.elapsed() < LONG, "{now} descriptors, {before} before; {zombies} zombies");
        std::thread::sleep(ms(5));
    }
    assert!(
        gpu.status().last_fault.as_ref().is_some_and(|fault| fault.contains("SIGKILL")),
        "{:?}",
        gpu.status()
    );
    println!("all well");
}

/// V37: no zombies, no descriptors that pile up.
#[test]
fn twenty_killed_workers_leave_nothing_behind() {
    let fixture = Fixture::new(2);
    let output = engine("kills", &fixture).output().expect("the helper runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("all well"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// V37: a worker does not outlive its engine, however that ends and whatever the worker is doing.
#[test]
fn the_worker_is_gone_a_second_after_the_engine_was_killed() {
    use std::io::BufRead as _;
    for orders in ["slow=1", "hang@5", "stop@5"] {
        let fixture = Fixture::new(2);
        let mut engine = self::engine(orders, &fixture)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("the helper runs");
        let lines = std::io::BufReader::new(engine.stdout.take().expect("a pipe")).lines();
        let pid = lines
            .map_while(Result::ok)
            .find_map(|line| line.rsplit_once("worker ")?.1.parse().ok())
            .expect("the worker's number");
        std::thread::sleep(ms(100));
        engine.kill().expect("it runs");
        let took = common::gpu::wait_until_gone(pid, LONG);
        engine.wait().expect("it has ended");
        println!("{orders}: gone after {took:?}");
        assert!(took < ms(1000), "{orders}: {took:?}");
    }
}

/// V16, V38: a worker that is stopped from outside.
#[test]
fn a_stopped_worker_is_replaced() {
    let fixture = Fixture::new(2);
    let mut options = fixture.options("");
    options.limits.backoff = ms(10);
    options.limits.silence = ms(300);
    let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
    let pid = gpu.settle(LONG).pid.expect("a worker");
    assert!(matches!(token(&mut gpu, &fixture, 0, LONG), (Some(Ok(true)), _)));
    common::gpu::signal("STOP", pid);
    let (came, took) = token(&mut gpu, &fixture, 1, ms(100));
    assert!(matches!(came, Some(Err(Lost::Late { .. }))) && took < ms(100) + SLACK, "{took:?}");
    fixture.until(&mut gpu, |status| status.restarts == 1 && !status.rows.is_empty());
    assert!(matches!(token(&mut gpu, &fixture, 2, LONG), (Some(Ok(true)), _)));
    common::gpu::wait_until_gone(pid, LONG);
    assert!(gpu.status().last_fault.as_ref().is_some_and(|fault| fault.contains("no sign of life")));
}

/// V12, V14: what a command says of a device that it was told to use.
#[test]
fn a_status_tells_what_happened() {
    let fixture = Fixture::new(2);
    let options = GpuOptions { backend: Backend::Null("no-device".to_owned()), ..fixture.options("") };
    let mut gpu = Gpu::start(options, fixture.matrix(), 1.0);
    let status = gpu.settle(LONG);
    assert_eq!((status.state, status.last_fault.as_deref()), (State::Lost, Some("there is no device")));
    assert_eq!(gpu.messages(), ["[gpu] not used: there is no device"]);
    assert_eq!(COLS % 32, 0);
}
