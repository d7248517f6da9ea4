//! The engine's side of the conversation, for tests that need no engine.

pub mod reference;

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use twinband_protocol::frame::{receive, send};
use twinband_protocol::shm::{Layout, Part, Shared};
use twinband_protocol::{Device, Driver, Fault, Hello, Job, Load, Loaded, Message, Open, Report};

/// A worker process that was greeted.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    seq: u64,
}

/// What a worker computes with: the shared buffer and the file with the rows.
pub struct Data {
    pub shared: Shared,
    pub model: tempfile::NamedTempFile,
}

impl Data {
    pub fn new(layout: Layout, model: &[u8]) -> Self {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(model).expect("space");
        Self { shared: Shared::create(layout).expect("a buffer"), model: file }
    }

    pub fn results(&self, slot: u32, rows: usize) -> Vec<f32> {
        let mut bytes = vec![0; rows * 4];
        self.shared.read(slot, Part::Results, 0, &mut bytes);
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

impl Worker {
    /// Starts a worker with these environment variables and nothing else that matters to a driver.
    pub fn start(env: &[(&str, &str)], data: Option<&Data>) -> Self {
        // The shell puts the descriptors where the worker looks for them.
        let mut command = Command::new("/bin/sh");
        let program = env!("CARGO_BIN_EXE_twinband-worker");
        match data {
            Some(data) => {
                let buffer = format!("/proc/{}/fd/{}", std::process::id(), data.shared.fd().as_raw_fd());
                command.args(["-c", r#"exec "$0" 3<>"$1" 4<"$2""#, program, &buffer]).arg(data.model.path());
            }
            None => {
                command.args(["-c", r#"exec "$0""#, program]);
            }
        }
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["VK_", "LP_", "LVP_", "MESA_", "XDG_", "TWINBAND_"].iter().any(|p| name.starts_with(p)) {
                command.env_remove(&*name);
            }
        }
        let mut child = command
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let mut worker = Self { child, input, output, seq: 0 };
        assert_eq!(worker.ask(Message::Hello(Hello::ours())), Message::Hello(Hello::ours()));
        worker
    }

    pub fn ask(&mut self, message: Message) -> Message {
        self.seq += 1;
        send(&mut self.input, self.seq, &message).expect("the worker reads");
        let (seq, answer) = receive(&mut self.output).expect("the worker answers");
        assert_eq!(seq, self.seq);
        answer
    }

    pub fn open(&mut self, open: Open) -> Result<Device, Fault> {
        match self.ask(Message::Open(open)) {
            Message::Ready(device) => Ok(*device),
            Message::Fault(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    pub fn load(&mut self, load: Load) -> Result<Loaded, Fault> {
        match self.ask(Message::Load(load)) {
            Message::Loaded(loaded) => Ok(loaded),
            Message::Fault(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    pub fn run(&mut self, job: Job) -> Result<u64, Fault> {
        match self.ask(Message::Job(job)) {
            Message::Done(done) => Ok(done.micros),
            Message::Fault(fault) => Err(fault),
            other => panic!("{other:?}"),
        }
    }

    pub fn probe(&mut self, open: Open) -> Report {
        match self.ask(Message::Probe(open)) {
            Message::Report(report) => report,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = send(&mut self.input, 0, &Message::Bye);
        let _ = self.output.read_to_end(&mut Vec::new());
        let _ = self.child.wait();
    }
}

/// A driver that these tests can use: a name and its manifest, empty for the way through the loader.
#[derive(Clone, Debug)]
pub struct Software {
    pub name: &'static str,
    pub manifest: String,
}

impl Software {
    /// Opens it, past the loader if it can, as the software device that it is.
    pub fn open(&self) -> Open {
        let driver = match &*self.manifest {
            "" => Driver::Loader,
            manifest => Driver::Manifest(manifest.to_owned()),
        };
        Open { driver, software: true, ..Open::default() }
    }
}

/// Lavapipe, if it is installed or `TWINBAND_TEST_LVP` names its manifest.
pub fn lavapipe() -> Option<Software> {
    let named = std::env::var_os("TWINBAND_TEST_LVP").map(PathBuf::from);
    let usual = ["/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "/usr/share/vulkan/icd.d/lvp_icd.json"];
    let usual = usual.iter().map(PathBuf::from);
    let found = named.into_iter().chain(usual).find(|p| p.exists());
    known("lavapipe", "TWINBAND_TEST_LVP", found.as_deref())
}

/// SwiftShader, if `TWINBAND_TEST_SWIFTSHADER` names its manifest.
pub fn swiftshader() -> Option<Software> {
    let named = std::env::var_os("TWINBAND_TEST_SWIFTSHADER").map(PathBuf::from).filter(|p| p.exists());
    known("SwiftShader", "TWINBAND_TEST_SWIFTSHADER", named.as_deref())
}

fn known(name: &'static str, variable: &str, manifest: Option<&Path>) -> Option<Software> {
    let Some(manifest) = manifest else {
        eprintln!("SKIPPED for {name}: it is not installed, and {variable} does not name its manifest");
        return None;
    };
    Some(Software { name, manifest: manifest.display().to_string() })
}

/// Every software driver there is.
pub fn drivers() -> Vec<Software> {
    lavapipe().into_iter().chain(swiftshader()).collect()
}

/// The files of a folder.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|e| e.expect("an entry").path()).collect()
}
