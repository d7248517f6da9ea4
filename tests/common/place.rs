//! Model files and the program run on them.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use twinband::g2bx::{self, verify::verify_bytes};
use twinband::gguf;
use twinband::kernel::format::Layout;
use twinband::model::Model;

use super::tiny::Tiny;

pub const PROMPT: &str = "the hello and";

pub fn twinband(args: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
    command.args(args.iter().map(|arg| arg.as_ref())).output().expect("the program starts")
}

#[track_caller]
pub fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// What a command that must fail with code 1 says.
#[track_caller]
pub fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

pub fn digest(model: &Path) -> String {
    let output =
        twinband(&[&"run", &model, &PROMPT, &"--json", &"--ignore-eos", &"-n", &"12", &"--pre", &"gpt-2"]);
    let json: serde_json::Value = serde_json::from_str(&good(&output)).expect("JSON");
    assert_eq!(json["tokens"].as_array().map(Vec::len), Some(12));
    json["digest"].as_str().expect("a digest").to_owned()
}

/// A folder with a model in it.
pub struct Place {
    pub dir: TempDir,
    pub source: PathBuf,
}

impl Place {
    pub fn new(tiny: &Tiny) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let source = tiny.write(dir.path(), "tiny.gguf");
        Self { dir, source }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn packed(&self, name: &str, options: &[&dyn AsRef<OsStr>]) -> PathBuf {
        let path = self.path(name);
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"pack", &self.source, &path];
        args.extend(options);
        good(&twinband(&args));
        path
    }
}

/// The model of another file in our own container, with every tensor of blocks interleaved, its head too: as a writer may have
/// them that is not ours.
pub fn interleaved(source: &Path, to: &Path) {
    let file = g2bx::open(source).expect("a model");
    let mut meta = gguf::write::Writer::new();
    for (key, value) in file.meta().iter() {
        meta.value(key, value);
    }
    let mut writer = g2bx::write::Writer::new(meta);
    let layout = |t: &gguf::TensorInfo| match t.ty.geometry() {
        Some(geometry) if geometry.block > 1 => Layout::Rows8,
        _ => Layout::Rows,
    };
    for t in file.tensors() {
        writer.tensor(&t.name, &t.dims[..t.n_dims], t.ty, layout(t)).expect("a good tensor");
    }
    let mut data = writer.begin(std::fs::File::create(to).expect("a file")).expect("a good header");
    for t in file.tensors() {
        let sink = |bytes: &[u8]| {
            data.part(bytes).expect("it fits");
            Ok::<(), gguf::Error>(())
        };
        g2bx::layout::read(&file, t, layout(t), sink).expect("the tensor");
    }
    data.finish().expect("all tensors");
}

/// What the reader that was written from the document alone (scripts/read_g2bx.py) says of a file: its listing, or what is wrong.
/// `None`, saying so, where there is no Python.
pub fn second_opinion(model: &Path) -> Option<Result<serde_json::Value, String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/read_g2bx.py");
    let Ok(output) = Command::new("python3").arg(script).arg(model).output() else {
        println!("skipped: there is no python3 for scripts/read_g2bx.py");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("Traceback"), "{said}");
    Some(if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).expect("one JSON value"))
    } else {
        Err(said)
    })
}

/// Whatever can be asked of an open file.
pub fn exercise(bytes: Vec<u8>) {
    drop(verify_bytes(bytes.clone()).map(drop));
    let Ok(file) = g2bx::from_bytes(bytes) else { return };
    for tensor in file.tensors() {
        let len = file.data(tensor).map(<[u8]>::len).ok();
        assert_eq!(len.map(|n| n as u64), tensor.bytes());
        drop(g2bx::layout::read(&file, tensor, Layout::Rows, |_| Ok::<(), gguf::Error>(())));
    }
    drop(Model::load(&file).map(drop));
}
