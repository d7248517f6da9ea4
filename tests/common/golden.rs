//! The golden data and the models it belongs to.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::path::{Path, PathBuf};
use twinband::gguf::File;

/// A file of the golden data.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden").join(name)
}

/// Its bytes.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Its numbers.
pub fn floats(name: &str) -> Vec<f32> {
    bytes(name).as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// Its JSON.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The whole numbers of a JSON array.
pub fn numbers(value: &serde_json::Value) -> Vec<usize> {
    let array = value.as_array().expect("an array");
    array.iter().map(|n| n.as_u64().expect("a whole number") as usize).collect()
}

/// Token ids of a JSON array.
pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    numbers(value).into_iter().map(|n| n as u32).collect()
}

/// The tiny models of `archs/`.
pub const ARCHS: [&str; 5] = ["llama", "mistral3", "qwen2", "qwen3", "gemma3"];

/// One of them, put together from the shared tensors.
pub fn arch(name: &str) -> File {
    let index = &json("archs/archs.json")["models"][name];
    let weights = [bytes("archs/weights.0"), bytes("archs/weights.1")].concat();
    let mut file = bytes(&format!("archs/{name}.head"));
    file.resize(index["bytes"].as_u64().expect("a size") as usize, 0);
    for tensor in index["tensors"].as_array().expect("tensors") {
        let [to, len, from] = numbers(tensor)[..] else { panic!("{tensor} is no tensor") };
        file[to..to + len].copy_from_slice(&weights[from..from + len]);
    }
    File::from_bytes(file).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The file of a real model, if `TWINBAND_MODELS` names the folder it is in; otherwise says that the test is skipped.
pub fn model(file: &str) -> Option<File> {
    let Some(folder) = std::env::var_os("TWINBAND_MODELS") else {
        eprintln!("SKIPPED: TWINBAND_MODELS is not set, so {file} was not tested (scripts/test.sh sets it)");
        return None;
    };
    let path = Path::new(&folder).join(file);
    Some(File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}
