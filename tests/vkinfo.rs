//! `twinband vkinfo` looks at broken machines and lives to tell. The numbers in the text are the kinds of fault that
//! users of comparable engines report.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::driver::lavapipe;
use common::gpu::worker;
use common::place::{good, refused};
use serde_json::Value;
use tempfile::TempDir;
use twinband::gpu::{Store, Verdict};

/// A folder for manifests, libraries and records.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).expect("a file");
        self.path(name)
    }

    /// A manifest of this library.
    fn manifest(&self, name: &str, library: &str) -> PathBuf {
        let icd = format!(r#"{{"library_path":"{library}","api_version":"1.0.5"}}"#);
        self.write(name, &format!(r#"{{"file_format_version":"1.0.0","ICD":{icd}}}"#))
    }

    /// The manifest of a library that looks like a driver until it is called, when it does this.
    fn driver(&self, name: &str, does: &str) -> PathBuf {
        // A loader may ask for either first.
        let source = format!(
            "fn start() -> usize {{ {does} }}\n\
             #[unsafe(no_mangle)]\npub extern \"C\" fn vk_icdNegotiateLoaderICDInterfaceVersion() -> usize {{ start() }}\n\
             #[unsafe(no_mangle)]\npub extern \"C\" fn vk_icdGetInstanceProcAddr() -> usize {{ start() }}\n"
        );
        let source = self.write(&format!("{name}.rs"), &source);
        let library = self.path(&format!("lib{name}.so"));
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
            .args([&library, &source])
            .output()
            .expect("rustc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.manifest(&format!("{name}.json"), &library.display().to_string())
    }

    fn command(&self, manifests: &[&Path], args: &[&str]) -> Command {
        let list = std::env::join_paths(manifests).expect("paths without colons");
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
        command
            .arg("vkinfo")
            .arg("--worker")
            .arg(worker())
            .args(args)
            .env("VK_DRIVER_FILES", list)
            .env_remove("VK_ICD_FILENAMES")
            .env("XDG_CACHE_HOME", self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn text(&self, manifests: &[&Path], args: &[&str]) -> String {
        let output = self.command(manifests, args).output().expect("the program starts");
        good(&output)
    }

    fn json(&self, manifests: &[&Path], args: &[&str]) -> Value {
        let text = self.text(manifests, &[args, &["--json"]].concat());
        serde_json::from_str(&text).expect("one JSON value")
    }
}

/// The manifest of a driver that works without a GPU, if this machine has one.
fn software() -> Option<PathBuf> {
    lavapipe().map(|driver| driver.manifest)
}

/// The state of a manifest in a report, and what is said about it.
fn state<'a>(report: &'a Value, manifest: &Path) -> (&'a str, &'a str) {
    let manifests = report["manifests"].as_array().expect("a list");
    let of = manifests.iter().find(|m| m["path"].as_str() == manifest.to_str());
    let of = of.unwrap_or_else(|| panic!("{} is not among {manifests:?}", manifest.display()));
    (of["state"].as_str().expect("a state"), of["text"].as_str().expect("a text"))
}

/// V05: nothing there is an answer, and comes with what to check.
#[test]
fn no_driver_at_all() {
    let place = Place::new();
    let nowhere = Path::new("/nonexistent");
    for args in [&[][..], &["--vk-icd", "auto"], &["--vk-icd", "/nonexistent"]] {
        let report = place.json(&[nowhere], args);
        assert_eq!(report["devices"], Value::Array(vec![]));
        let (state, text) = state(&report, nowhere);
        assert_eq!(state, "broken");
        assert!(text.contains("No such file"), "{text}");
        let advice = report["advice"].as_array().expect("a list");
        assert!(
            advice.iter().any(|line| line.as_str().is_some_and(|l| l.starts_with("/nonexistent is not")))
        );
    }
    let text = place.text(&[nowhere], &[]);
    assert!(text.contains("devices       none") && text.contains("/nonexistent  broken"), "{text}");
}

/// V04: what is wrong with a manifest is said, and does not hide a driver that works.
#[test]
fn every_manifest_has_its_state() {
    let place = Place::new();
    let torn = place.write("torn.json", r#"{"ICD": {"library_pa"#);
    let empty = place.write("empty.json", "");
    let missing = place.manifest("missing.json", "./not-there.so");
    let other = place.manifest("other.json", "libc.so.6");
    let good = software();
    let mut all: Vec<&Path> = vec![&torn, &empty, &missing, &other];
    all.extend(good.as_deref());
    let report = place.json(&all, &[]);
    for (manifest, want, said) in [
        (&torn, "broken", "not JSON"),
        (&empty, "broken", "not JSON"),
        (&missing, "broken", "not-there.so"),
        (&other, "fails", "no Vulkan driver"),
    ] {
        let (state, text) = state(&report, manifest);
        assert_eq!(state, want, "{}: {text}", manifest.display());
        assert!(text.contains(said), "{text}");
    }
    if let Some(good) = good {
        assert_eq!(state(&report, &good).0, "works");
        assert_eq!(report["devices"].as_array().map(Vec::len), Some(1));
    }
}

/// V01, V03: drivers that take the worker with them.
#[test]
fn a_driver_that_crashes_costs_its_line() {
    let place = Place::new();
    let abort = place.driver("abort", "std::process::abort()");
    let exit = place.driver("exit", "std::process::exit(0)");
    let fault = place.driver("fault", "unsafe { std::ptr::null_mut::<i32>().write_volatile(1) }; 0");
    let good = software();
    let mut all: Vec<&Path> = vec![&abort, &exit, &fault];
    all.extend(good.as_deref());
    let report = place.json(&all, &[]);
    assert!(matches!(report["loader"]["state"].as_str(), Some("lost" | "fails")), "{}", report["loader"]);
    for (manifest, said) in
        [(&abort, "signal: 6"), (&exit, "ended as if it had been asked to"), (&fault, "signal: 11")]
    {
        let (state, text) = state(&report, manifest);
        assert_eq!(state, "lost", "{text}");
        assert!(text.contains(said), "{text}");
    }
    if let Some(good) = good {
        assert_eq!(state(&report, &good).0, "works");
        assert_eq!(report["devices"][0]["reached_by"], serde_json::json!([good]));
        let advice = report["advice"].to_string();
        assert!(advice.contains("--vk-icd auto"), "{advice}");
    }
}

/// V28: one device by two manifests is one device, and it computes the CPU's bits.
#[test]
fn a_device_is_listed_once_and_tested() {
    let Some(good) = software() else { return };
    let place = Place::new();
    let again = place.path("again.json");
    fs::copy(&good, &again).expect("a copy");
    let report = place.json(&[&good, &again], &[]);
    assert_eq!(report["loader"]["state"], "works");
    let devices = report["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 1, "{devices:?}");
    let device = &devices[0];
    assert_eq!(device["reached_by"], serde_json::json!(["loader", good, again]));
    assert_eq!(device["uuid"].as_str().map(str::len), Some(32));
    assert_eq!(device["kind"], "cpu");
    assert!(device["unfit"].is_string(), "a CPU is not used unasked");
    assert!(device["limits"]["maxStorageBufferRange"].as_u64() >= Some(1 << 27));
    let tests = device["self_test"].as_array().expect("a list");
    let formats: Vec<_> = tests.iter().map(|test| test["format"].as_str()).collect();
    assert_eq!(formats, [Some("Q4_0"), Some("Q8_0")]);
    for test in tests {
        assert_eq!((&test["bits_equal"], &test["trouble"]), (&true.into(), &Value::Null), "{test}");
        assert_eq!(test["rows"], 1024);
        for time in ["gbps", "device_us", "job_us", "empty_us", "empty_us_p99"] {
            assert!(test[time].as_f64() > Some(0.0), "{time}: {test}");
        }
    }
    let text = place.text(&[&good], &[]);
    assert!(text.contains("device 0") && text.contains("bits equal"), "{text}");
}

/// V45: settings of the whole system are shown as the worker sees them.
#[test]
fn variables_are_shown() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(&[Path::new("/nonexistent")], args);
        command
            .env("VK_INSTANCE_LAYERS", "VK_LAYER_x")
            .env("VK_LOADER_DEBUG", "error")
            .env("LVP_POISON_MEMORY", "1");
        good(&command.output().expect("the program starts"))
    };
    let text = run(&[]);
    for line in [
        "VK_INSTANCE_LAYERS=VK_LAYER_x",
        "VK_LOADER_DEBUG=error",
        "LVP_POISON_MEMORY=1",
        "VK_DRIVER_FILES=/nonexistent",
    ] {
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
    assert!(text.contains("VK_LOADER_LAYERS_DISABLE=~implicit~"), "{text}");
    assert!(!run(&["--vk-layers"]).contains("~implicit~"));
}

/// V09: what is held against drivers is listed until somebody clears it.
#[test]
fn verdicts_are_listed_and_cleared() {
    let place = Place::new();
    let store = Store::new(Some(&place.path("twinband")));
    let key = ["engine x".to_owned(), "manifest /a.json".to_owned()];
    let verdict = Verdict { cause: Some("it crashed".to_owned()), time: 1_700_000_000, boot: String::new() };
    store.save("verdict", &key, &verdict).expect("it is written");
    store.save("split", &["uuid".to_owned()], &4096usize).expect("it is written");
    let nowhere: &[&Path] = &[Path::new("/nonexistent")];

    let report = place.json(nowhere, &[]);
    assert_eq!(report["verdicts"][0]["cause"], "it crashed");
    assert_eq!(report["verdicts"][0]["about"][1], "manifest /a.json");
    assert_eq!(report["calibrations"][0]["value"], 4096);
    let text = place.text(nowhere, &[]);
    assert!(text.contains("manifest /a.json: it crashed") && text.contains("--retry"), "{text}");

    let report = place.json(nowhere, &["--retry"]);
    assert_eq!((&report["cleared"], &report["verdicts"]), (&1.into(), &Value::Array(vec![])));
    assert_eq!(report["calibrations"][0]["value"], 4096, "measurements are no verdicts");
    assert_eq!(place.json(nowhere, &[])["cleared"], 0);
}

/// Without a worker nothing can be looked at, and that is a failure.
#[test]
fn no_worker() {
    let output = Command::new(env!("CARGO_BIN_EXE_twinband"))
        .args(["vkinfo", "--worker", "/nonexistent/worker"])
        .output()
        .expect("the program starts");
    let text = refused(&output);
    assert!(text.contains("/nonexistent/worker") && text.contains("--worker"), "{text}");
}
