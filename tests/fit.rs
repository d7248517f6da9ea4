//! `twinband fit`: what it says from a header against what a run then takes.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::tiny::Tiny;
use serde_json::Value;

fn twinband(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_twinband")).args(args).output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path")
}

/// Many layers and wide key heads: 16 KiB of f16 keys and values a token, and buffers of some megabytes.
fn deep() -> Tiny {
    Tiny::new().with(|t| {
        (t.n_layers, t.n_heads, t.n_kv_heads, t.head_dim) = (16, 4, 4, 64);
        (t.hidden_dim, t.context) = (2048, 2048);
    })
}

#[test]
fn sizes_are_those_of_the_shape() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = deep().write(dir.path(), "deep.gguf");
    let fit = json(&twinband(&["fit", path(&model), "-c", "1000", "-t", "2", "--json"]));
    let f16 = &fit["kv"][0];
    assert_eq!(
        (f16["type"].as_str(), f16["kv_bytes"].as_u64()),
        (Some("f16"), Some(1000 * 16 * 2 * 256 * 2))
    );
    assert_eq!((fit["ctx"].as_u64(), fit["trained_ctx"].as_u64()), (Some(1000), Some(2048)));
    // Two norms a layer and the last one, of 64 floats each.
    assert_eq!(f16["vector_bytes"].as_u64(), Some(33 * 64 * 4));
    let parts = ["program_bytes", "tokenizer_bytes", "vector_bytes", "buffer_bytes", "kv_bytes"];
    assert_eq!(
        f16["total_bytes"].as_u64(),
        parts.map(|part| f16[part].as_u64().expect("a number")).iter().sum::<u64>().into()
    );
    // Gate and up of 128 tokens alone.
    assert!(f16["buffer_bytes"].as_u64() > Some(2 * 128 * 2048 * 4));
    let text = twinband(&["fit", path(&model)]);
    let text = String::from_utf8_lossy(&text.stdout);
    for part in ["weights ", "tokenizer ", "buffers ", "KV f16 ", "for 2048 tokens", "fits"] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

/// Every kind of cache, with the context filled to the end.
#[test]
#[cfg(target_os = "linux")]
fn a_run_takes_what_was_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = deep().write(dir.path(), "deep.gguf");
    let fit = json(&twinband(&["fit", path(&model), "-c", "1024", "-t", "2", "--json"]));
    let prompt = "the".to_owned() + &" the".repeat(899);
    for kind in fit["kv"].as_array().expect("kinds") {
        let name = kind["type"].as_str().expect("a name");
        let run = [
            "run",
            path(&model),
            &prompt,
            "-c",
            "1024",
            "-t",
            "2",
            "--kv",
            name,
            "-n",
            "-1",
            "--ignore-eos",
            "--json",
        ];
        let run = json(&twinband(&run));
        assert_eq!(
            (run["prompt_tokens"].as_u64(), run["stop_reason"].as_str()),
            (Some(900), Some("context"))
        );
        let said = kind["total_bytes"].as_f64().expect("a number");
        let took = run["rss_anon_peak_bytes"].as_f64().expect("a number");
        assert!((said / took - 1.0).abs() < 0.05, "{name}: said {said}, took {took}");
    }
}

/// A model without the end of its file, as G2BX and as GGUF, gives the same answer but for how much of it is there.
#[test]
fn the_beginning_of_a_file_is_enough() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = Tiny::new().write(dir.path(), "tiny.gguf");
    let packed = dir.path().join("tiny.g2bx");
    assert!(twinband(&["pack", path(&model), path(&packed)]).status.success());
    let fit = |file: &Path| {
        let mut fit = json(&twinband(&["fit", path(file), "--json"]));
        let bytes = [fit["bytes"].as_u64(), fit["expected_bytes"].as_u64()];
        for key in ["file", "bytes", "expected_bytes", "available_bytes"] {
            assert!(fit.as_object_mut().expect("an object").remove(key).is_some());
        }
        (fit, bytes)
    };
    let (whole, [size, expected]) = fit(&model);
    assert_eq!(size, expected);
    for file in [&model, &packed] {
        let bytes = std::fs::read(file).expect("the file");
        let header = twinband::g2bx::open_header(file).expect("a header").header_size() as usize;
        let cut = dir.path().join("cut");
        std::fs::write(&cut, &bytes[..header]).expect("a file");
        let (part, [size, expected]) = fit(&cut);
        assert_eq!(part, whole);
        assert_eq!((size, expected), (Some(header as u64), Some(bytes.len() as u64)));
        let text = twinband(&["fit", path(&cut)]);
        assert!(String::from_utf8_lossy(&text.stdout).contains(" are there"));
        // Half a header is an error.
        std::fs::write(&cut, &bytes[..header / 2]).expect("a file");
        let output = twinband(&["fit", path(&cut)]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("cut"), "{}", stderr(&output));
    }
}

#[test]
fn what_cannot_fit_or_run_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = deep().put("llama.context_length", |w, key| {
        w.u32(key, 1 << 30);
    });
    let model = model.write(dir.path(), "tiny.gguf");
    // 17 TB in f16.
    let output = twinband(&["fit", path(&model), "-c", "1073741824"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("does not fit; "));
    assert!(said.contains("does not fit: it takes at least") && said.contains("up to --ctx"), "{said}");
    for (ctx, code) in
        [("0", 2), ("-1", 2), ("x", 2), ("99999999999999999999", 2), ("9999999999999999999", 1)]
    {
        let output = twinband(&["fit", path(&model), "-c", ctx]);
        assert_eq!(output.status.code(), Some(code), "{ctx}: {}", stderr(&output));
    }
    for (model, part) in [
        (Tiny::new().without_tensor("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"),
        (Tiny::new().with(|t| t.arch = "nosuch"), "nosuch"),
        (Tiny::new().without_key("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
    ] {
        let output = twinband(&["fit", path(&model.write(dir.path(), "bad.gguf"))]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    }
}
