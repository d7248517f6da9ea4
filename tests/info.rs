//! `twinband info` on whole files, files that cannot be run, and the beginnings of files.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::tiny::{Tiny, encode};
use twinband::kernel::format::GgmlType;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn info(args: &[&str], file: &Path) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_twinband")).arg("info").args(args).arg(file).output()
}

fn text(args: &[&str], file: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let output = info(args, file)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn json(args: &[&str], file: &Path) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_str(&text(&[args, &["--json"]].concat(), file)?)?)
}

#[test]
fn a_good_file() -> Outcome {
    let dir = tempfile::tempdir()?;
    let model = Tiny::new();
    let file = model.write(dir.path(), "tiny.gguf");
    let parameters: usize = model.weights().iter().map(|t| t.values.len()).sum();

    let shown = text(&[], &file)?;
    for part in [
        "architecture  llama",
        "layers 2, dim 64, hidden 128, heads 4, kv heads 2, head dim 16, vocabulary 300, context 256",
        "gpt2 (gpt-2), 300 tokens, a chat template",
        // 2 layers x 2 heads x (16 + 16) elements x 2 bytes x 1024 tokens.
        "262 kB per 1024 tokens",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }

    let json = json(&[], &file)?;
    assert_eq!(json["parameters"], parameters);
    assert_eq!(json["kv_bytes_per_1k_tokens"], 262_144);
    assert_eq!(json["bytes"], std::fs::metadata(&file)?.len());
    assert_eq!(json["dimensions"]["head_dim"], 16);
    assert_eq!(json["types"][0]["type"], "F32");
    // 2 norms a layer and the last one, 64 floats each.
    assert_eq!((&json["types"][0]["tensors"], &json["types"][0]["bytes"]), (&5.into(), &(5 * 256).into()));
    assert_eq!(json["types"][1]["type"], "Q8_0");
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(model.weights().len()));
    assert_eq!(json["tokenizer"]["chat_template"], true);
    assert_eq!(json["metadata"]["llama.rope.freq_base"], 10_000.0);
    assert_eq!(json["metadata"]["llama.attention.layer_norm_rms_epsilon"], 1e-5);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["length"], 300);
    assert_eq!(json["incomplete"], serde_json::Value::Null);
    assert_eq!((&json["can_run"], &json["obstacles"]), (&true.into(), &serde_json::json!([])));
    Ok(())
}

#[test]
fn lists_tensors_and_metadata() -> Outcome {
    let dir = tempfile::tempdir()?;
    let file = Tiny::new().write(dir.path(), "tiny.gguf");
    let shown = text(&["--tensors", "--metadata"], &file)?;
    let has_line = |start: &str, end: &str| shown.lines().any(|l| l.starts_with(start) && l.ends_with(end));
    assert!(has_line("blk.0.attn_k.weight ", "Q8_0             2176 B  64 x 32"), "{shown}");
    assert!(has_line("output_norm.weight ", "F32               256 B  64"), "{shown}");
    assert!(has_line("general.name = \"Tiny\"", ""), "{shown}");
    assert!(has_line("tokenizer.ggml.token_type = 300 x i32: [1, 1,", ", ...]"), "{shown}");
    let whole = json(&["--metadata"], &file)?;
    assert_eq!(whole["metadata"]["tokenizer.ggml.tokens"].as_array().map(Vec::len), Some(300));
    Ok(())
}

#[test]
fn files_that_cannot_be_run() -> Outcome {
    let dir = tempfile::tempdir()?;
    let model = Tiny::new()
        .with(|t| t.arch = "nosuch")
        .put("bad", |w, key| {
            w.str(key, "\u{1b}[2Jcleared\u{202e}");
        })
        .raw_tensor("blk.0.attn_q.weight", &[256], GgmlType(15), vec![0; 292]);
    let file = model.write(dir.path(), "tiny.gguf");
    let shown = text(&["--metadata", "--tensors"], &file)?;
    assert!(shown.contains("architecture 'nosuch' is not supported"), "{shown}");
    assert!(shown.contains("1 tensors of type Q8_K, the first blk.0.attn_q.weight"), "{shown}");
    assert!(shown.contains("bad = \"\\u{1b}[2Jcleared\\u{202e}\""), "{shown}");
    assert!(!shown.contains('\u{1b}'), "control characters must not reach the terminal");

    // A type that nobody knows.
    let mut bytes = model.build();
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).ok_or("no such tensor")?;
    bytes[at + name.len() + 4 + 8] = 200;
    std::fs::write(&file, bytes)?;
    let json = json(&[], &file)?;
    assert_eq!(json["can_run"], false);
    let unknown = json["types"].as_array().and_then(|t| t.last()).ok_or("no types")?;
    assert_eq!((&unknown["code"], &unknown["bytes"]), (&200.into(), &serde_json::Value::Null));
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Outcome {
    let dir = tempfile::tempdir()?;
    for (model, expected) in [
        (Tiny::new().without_tensor("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"),
        (Tiny::new().without_key("llama.embedding_length"), "llama.embedding_length"),
        (Tiny::new().without_key("general.architecture"), "general.architecture"),
        (Tiny::new().without_key("tokenizer.ggml.merges"), "tokenizer.ggml.merges"),
    ] {
        let shown = text(&[], &model.write(dir.path(), "tiny.gguf"))?;
        let verdict = shown.lines().find(|l| l.starts_with("can run")).ok_or("no verdict")?;
        assert!(verdict.contains("no: ") && verdict.contains(expected), "{shown}");
    }
    Ok(())
}

#[test]
fn the_beginning_of_a_download() -> Outcome {
    let dir = tempfile::tempdir()?;
    let bytes = Tiny::new().format(encode::f16).build();
    let file = dir.path().join("part.gguf");
    std::fs::write(&file, &bytes[..bytes.len() / 2])?;
    let output = info(&[], &file)?;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(output.status.success() && out.contains("50.0 % of"), "{out}{err}");
    assert!(out.contains("no: the file is not complete"), "{out}");
    assert!(err.contains("truncated: tensor output_norm.weight ends at byte"), "{err}");
    let json = json(&[], &file)?;
    assert_eq!(json["expected_bytes"], bytes.len());
    assert_eq!(json["bytes"], bytes.len() / 2);

    // Not even the header is whole.
    std::fs::write(&file, &bytes[..3000])?;
    let output = info(&[], &file)?;
    let err = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("part.gguf") && err.contains("incomplete download"), "{err}");
    Ok(())
}

/// Counts that ask for gigabytes, in a process that may have little: a message, not an abort.
#[test]
#[cfg(target_os = "linux")]
fn huge_counts_reserve_nothing() -> Outcome {
    let dir = tempfile::tempdir()?;
    let entry = |ty: u32, value: &[u8]| [&1u64.to_le_bytes()[..], b"k", &ty.to_le_bytes(), value].concat();
    let header = |tensors: u64, keys: u64, rest: &[u8]| {
        let mut out = [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &keys.to_le_bytes(), rest].concat();
        out.resize(160, 0);
        out
    };
    let array = |ty: u32, len: u64| [&ty.to_le_bytes()[..], &len.to_le_bytes()].concat();
    for (name, bytes) in [
        ("tensors", header(1 << 62, 0, &[])),
        ("keys", header(0, 1 << 62, &[])),
        ("string", header(0, 1, &entry(8, &(1u64 << 63).to_le_bytes()))),
        ("array", header(0, 1, &entry(9, &array(4, 1 << 40)))),
        ("strings", header(0, 1, &entry(9, &array(8, 1 << 32)))),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes)?;
        let limited = "ulimit -v 300000 && exec \"$0\" info \"$1\"";
        let exe = env!("CARGO_BIN_EXE_twinband");
        let output = Command::new("sh").args(["-c", limited, exe]).arg(&file).output()?;
        let err = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{name}: {err}");
        assert!(err.contains("bytes left") || err.contains("cut short"), "{name}: {err}");
    }
    Ok(())
}
