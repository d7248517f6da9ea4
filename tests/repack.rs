//! `--repack`: the weights of a GGUF file in the order of a packed one, with the same logits, counted before it is taken.

mod common;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use common::place::{PROMPT, Place, digest, good, refused, twinband};
use common::tiny::{Tiny, encode};
use serde_json::Value;

/// What `bench` says; its prompt is longer than a batch, so that both ways of multiplying take part.
fn bench(model: &Path, options: &[&str]) -> Value {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![
        &"bench",
        &model,
        &"--json",
        &"--prefill",
        &"40",
        &"--decode",
        &"3",
        &"--reps",
        &"1",
        &"-b",
        &"16",
    ];
    args.extend(options.iter().map(|option| option as &dyn AsRef<OsStr>));
    serde_json::from_str(&good(&twinband(&args))).expect("one JSON object")
}

fn synth(folder: &Path, ty: &str) -> PathBuf {
    let path = folder.join(format!("{ty}.gguf"));
    good(&twinband(&[&"synth", &"tiny", &"--type", &ty, &"-o", &path]));
    path
}

#[test]
fn every_type_gives_the_same_digest() {
    let dir = tempfile::tempdir().expect("a folder");
    for ty in ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "F16"] {
        let model = synth(dir.path(), ty);
        let plain = bench(&model, &[]);
        for options in
            [&["--repack"][..], &["--repack", "-t", "3", "--isa", "scalar"], &["--repack", "--exact"]]
        {
            let exact = options.contains(&"--exact").then(|| bench(&model, &["--exact"]));
            let expected = exact.as_ref().unwrap_or(&plain);
            assert_eq!(bench(&model, options)["digest"], expected["digest"], "{ty} {options:?}");
        }
    }
}

/// Rows that are no whole number of groups, and the model that `run` reads its prompt with.
#[test]
fn rows_that_fill_no_group() {
    // 96, 12 and 72 rows, heads of 24.
    let tiny = Tiny::new()
        .with(|t| (t.dim, t.hidden_dim, t.n_heads, t.head_dim, t.n_kv_heads) = (96, 160, 8, 12, 1));
    let place = Place::new(&tiny.format(|t| if t.is_matrix() { encode::q4_0(t) } else { encode::f32(t) }));
    let mut run: Vec<&dyn AsRef<OsStr>> = vec![&"run", &place.source, &PROMPT, &"--json", &"--ignore-eos"];
    run.extend([&"-n" as &dyn AsRef<OsStr>, &"12", &"--pre", &"gpt-2", &"--repack", &"-v"]);
    let output = twinband(&run);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("rearranged weights ") && text.contains("weights rearranged: "), "{text}");
    let answer: Value = serde_json::from_str(&good(&output)).expect("one JSON object");
    assert_eq!(answer["digest"].as_str(), Some(&digest(&place.source)[..]));
    let packed = place.packed("a.g2bx", &[]);
    let output = twinband(&[&"run", &packed, &"the", &"--repack", &"-n", &"1", &"--pre", &"gpt-2"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("as in packed files"), "{text}");
}

#[test]
fn it_is_counted() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = synth(dir.path(), "Q8_0");
    let json = |args: &[&dyn AsRef<OsStr>]| -> Value {
        serde_json::from_str(&good(&twinband(args))).expect("one JSON object")
    };
    let with = json(&[&"fit", &model, &"--json", &"--repack"]);
    let without = json(&[&"fit", &model, &"--json"]);
    let copy = with["kv"][0]["repacked_bytes"].as_u64().expect("a number");
    let total = |report: &Value| report["kv"][0]["total_bytes"].as_u64().expect("a number");
    assert_eq!(
        (total(&with) - total(&without), without["kv"][0]["repacked_bytes"].as_u64()),
        (copy, Some(0))
    );
    // All matrices of the layers: the file without embedding, head and vectors.
    let weights = with["weight_bytes"].as_u64().expect("a number");
    assert!(copy > 0 && copy < weights, "{copy} of {weights}");
    let peak = |options: &[&str]| bench(&model, options)["rss_anon_peak_bytes"].as_u64().expect("a number");
    let more = peak(&["--repack"]).saturating_sub(peak(&[]));
    assert!(more.abs_diff(copy) < copy / 4 + 200_000, "{more} more, {copy} said");
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = synth(dir.path(), "Q8_0");
    let said = refused(&twinband(&[&"run", &model, &"a", &"--repack", &"--max-ram", &"8"]));
    assert!(said.contains("--max-ram 8 is too little for --repack"), "{said}");
    good(&twinband(&[&"run", &model, &"a", &"-n", &"1", &"--repack", &"--max-ram", &"2000"]));
}

#[test]
fn real_models_give_the_same_digest() {
    let Some(folder) = std::env::var_os("TWINBAND_MODELS").filter(|folder| !folder.is_empty()) else {
        eprintln!("skipped: TWINBAND_MODELS is not set");
        return;
    };
    for name in ["smollm2.gguf", "gemma3.gguf"] {
        let model = PathBuf::from(&folder).join(name);
        assert_eq!(bench(&model, &["--repack"])["digest"], bench(&model, &[])["digest"], "{name}");
    }
}
