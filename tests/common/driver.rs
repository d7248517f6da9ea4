//! The program with a Vulkan driver that fails on request, over a software driver.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use twinband_protocol::manifest;

use super::gpu::{pids, worker};
use super::tiny::{Tiny, encode};

/// Tokens of a run.
pub const TOKENS: &str = "120";

/// A software driver.
#[derive(Clone, Debug)]
pub struct Software {
    pub name: &'static str,
    pub manifest: PathBuf,
    pub library: PathBuf,
}

/// Lavapipe, if it is installed or `TWINBAND_TEST_LVP` names its manifest.
pub fn lavapipe() -> Option<Software> {
    let named = std::env::var_os("TWINBAND_TEST_LVP").map(PathBuf::from);
    let usual = fs::read_dir("/usr/share/vulkan/icd.d").ok().and_then(|entries| {
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.to_string_lossy().contains("/lvp_icd")).min()
    });
    known("lavapipe", "TWINBAND_TEST_LVP", named.or(usual))
}

/// SwiftShader, if `TWINBAND_TEST_SWIFTSHADER` names its manifest.
pub fn swiftshader() -> Option<Software> {
    let name = "TWINBAND_TEST_SWIFTSHADER";
    known("SwiftShader", name, std::env::var_os(name).map(PathBuf::from))
}

pub fn drivers() -> Vec<Software> {
    lavapipe().into_iter().chain(swiftshader()).collect()
}

fn known(name: &'static str, variable: &str, manifest: Option<PathBuf>) -> Option<Software> {
    let Some(manifest) = manifest.filter(|path| path.exists()) else {
        println!(
            "skipped for want of {name}: scripts/setup.sh gpu gets it, or name its manifest in {variable}"
        );
        return None;
    };
    let library = manifest::read(&manifest).library.expect("a library");
    Some(Software { name, manifest, library })
}

/// The library of the driver that fails on request.
pub fn fake_icd() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let path = program.with_file_name("libtwinband_fake_icd.so");
    assert!(
        path.exists(),
        "{} is missing: test with `cargo test --workspace`, which builds it",
        path.display()
    );
    path
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    /// Null if it failed.
    pub json: Value,
    pub stderr: String,
    pub took: Duration,
    /// Every stage that the driver reached, in order.
    pub stages: Vec<String>,
}

impl Outcome {
    /// How often a stage was reached.
    pub fn count(&self, stage: &str) -> usize {
        self.stages.iter().filter(|s| *s == stage).count()
    }

    /// What each worker's driver went through, in order.
    pub fn lives(&self) -> impl Iterator<Item = &[String]> {
        self.stages.split(|stage| stage == "init").skip(1)
    }

    /// The jobs that each worker's driver was given.
    pub fn jobs(&self) -> Vec<u64> {
        self.lives().map(|life| life.iter().filter(|stage| *stage == "job").count() as u64).collect()
    }

    /// Whether answers came late. Nothing is wrong then but the machine is busy, and jobs and workers may be missing.
    pub fn busy(&self) -> bool {
        self.gpu()["late"].as_u64() > Some(0)
    }

    /// Whether every token but perhaps one had its job, as far as can be told.
    pub fn complete(&self) -> bool {
        if self.busy() {
            println!("jobs not counted, the machine is busy: {}", self.gpu());
        }
        self.busy() || self.gpu()["jobs"].as_u64().map(|jobs| jobs + 1) >= TOKENS.parse().ok()
    }

    pub fn gpu(&self) -> &Value {
        &self.json["gpu"]
    }

    /// The last fault that was reported, in the JSON or, when the program gave up, in its message.
    pub fn fault(&self) -> &str {
        if self.code == Some(0) { self.gpu()["last_fault"].as_str().unwrap_or("") } else { &self.stderr }
    }
}

/// A model of an odd vocabulary and a folder for everything that is written.
///
/// There is one at a time: deadlines come from the time that the CPU takes, which other tests must not stretch.
pub struct Place {
    _turn: MutexGuard<'static, ()>,
    dir: TempDir,
    pub model: PathBuf,
    pub cpu: Value,
}

impl Place {
    /// With a head in Q4_0 or Q8_0.
    pub fn new(head_q8: bool) -> Self {
        let encoded = move |t: &_| if head_q8 { encode::q8_0(t) } else { encode::q4_0(t) };
        let tiny = Tiny::new().n_vocab(1003).tied().with(|t| t.context = 4096).format(encoded);
        let mut place = Self::of(|dir| tiny.write(dir, "tiny.gguf"));
        place.cpu = place.finish(place.command(&[])).json;
        place
    }

    /// With a model of one's own; what the CPU makes of it is to be filled in.
    pub fn of(model: impl FnOnce(&Path) -> PathBuf) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("a folder");
        let model = model(dir.path());
        Self { _turn, dir, model, cpu: Value::Null }
    }

    /// A new folder for a cache and a log. The worker is told apart by the name in its environment.
    pub fn fresh(&self) -> PathBuf {
        let dir = TempDir::new_in(self.dir.path()).expect("a folder").keep();
        fs::create_dir(dir.join("cache")).expect("a folder");
        dir
    }

    /// `twinband run` on the model, without a device.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
        command.arg("run").arg(&self.model).args(["the hello and", "--ignore-eos"]);
        if !args.contains(&"--threads") {
            command.args(["--threads", "2"]);
        }
        if !args.contains(&"--stats") {
            command.arg("--json");
        }
        if !args.contains(&"-n") {
            command.args(["-n", TOKENS]);
        }
        command.args(args).stdin(Stdio::null()).env("XDG_CACHE_HOME", self.dir.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["VK_", "LP_", "LVP_", "MESA_", "TWINBAND_"].iter().any(|p| name.starts_with(p)) {
                command.env_remove(&*name);
            }
        }
        command
    }

    /// The same with the failing driver over a real one; `dir` is from [`Place::fresh`].
    pub fn with(&self, driver: &Software, dir: &Path, fault: &str, args: &[&str]) -> Command {
        let manifest = dir.join("fake.json");
        let text = format!(
            r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": "{}", "api_version": "1.3.0"}}}}"#,
            fake_icd().display()
        );
        // A verdict holds as long as the manifest is not changed.
        if !manifest.exists() {
            fs::write(&manifest, text).expect("space for a manifest");
        }
        let mut command = self.command(args);
        command
            .arg("--vk-icd")
            .arg(manifest)
            .arg("--worker")
            .arg(worker())
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .env("TWINBAND_ICD_REAL", &driver.library)
            .env("TWINBAND_ICD_FAULT", fault)
            .env("TWINBAND_ICD_LOG", dir.join("log"));
        command
    }

    /// Runs the program to its end and looks for what it may have left behind.
    pub fn finish(&self, mut command: Command) -> Outcome {
        let log = command.get_envs().find_map(|(name, value)| {
            (name == "TWINBAND_ICD_LOG").then(|| PathBuf::from(value.unwrap_or_default()))
        });
        let started = Instant::now();
        let output = command.output().expect("the program starts");
        let took = started.elapsed();
        if let Some(log) = &log {
            wait_until_none(log);
        }
        let stages = log.and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
        Outcome {
            code: output.status.code(),
            json: serde_json::from_slice(&output.stdout).unwrap_or(Value::Null),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took,
            stages: stages.lines().map(str::to_owned).collect(),
        }
    }

    /// A run with a fault and a cache of its own.
    pub fn run(&self, driver: &Software, fault: &str, args: &[&str]) -> Outcome {
        self.finish(self.with(driver, &self.fresh(), fault, args))
    }

    /// The same, again if the machine was so busy that an answer came late, and at last whatever came. Whatever is late,
    /// the text is right: that is asserted every time.
    pub fn run_in_time(&self, driver: &Software, fault: &str, args: &[&str]) -> Outcome {
        let mut tries = 0;
        loop {
            let outcome = self.run(driver, fault, args);
            tries += 1;
            if outcome.gpu()["late"].as_u64() == Some(0) || tries == 10 {
                self.same(&outcome, &format!("{} {fault}", driver.name));
                return outcome;
            }
            println!("{} {fault}: late, the machine is busy: {}", driver.name, outcome.gpu());
        }
    }

    /// Whether a run gave the CPU's text and logits.
    pub fn same(&self, outcome: &Outcome, what: &str) {
        assert_eq!(outcome.code, Some(0), "{what}: {}", outcome.stderr);
        for field in ["text", "tokens", "digest"] {
            assert_eq!(outcome.json[field], self.cpu[field], "{what}: {field}; {}", outcome.gpu());
        }
    }

    /// Runs the program, with `--stats`, to its end: the gaps between pieces of text, in ms and ascending, and what was
    /// said. The digest is the CPU's.
    pub fn gaps(&self, mut command: Command, what: &str) -> (Vec<f64>, String) {
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
        let digest = said.lines().find_map(|line| Some(line.strip_prefix("digest")?.trim()));
        assert_eq!(digest, self.cpu["digest"].as_str(), "{what}: {said}");
        (gaps, said)
    }
}

/// The running workers that log there.
pub fn workers(log: &Path) -> Vec<u32> {
    let wanted = format!("TWINBAND_ICD_LOG={}", log.display());
    let is_worker = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let ours = environment.split(|b| *b == 0).any(|v| v == wanted.as_bytes());
        ours && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("twinband-worker"))
    };
    pids().filter(is_worker).collect()
}

/// The program is gone: soon its workers are, too.
fn wait_until_none(log: &Path) {
    let started = Instant::now();
    while !workers(log).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(10), "still there: {:?}", workers(log));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a program when a test fails half-way.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
