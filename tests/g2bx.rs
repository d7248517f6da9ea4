//! Our own container: packing keeps every number, and damage is found wherever it is.

mod common;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use common::legacy::crc32;
use common::place::{Place, digest, exercise, good, refused, second_opinion, twinband};
use common::tiny::{Plain, Tiny, encode};
use proptest::prelude::*;
use serde_json::Value;
use twinband::g2bx::verify::{Checked, verify_bytes};
use twinband::g2bx::{self, write::Writer};
use twinband::gguf;
use twinband::kernel::format::{self, GgmlType, Layout, Matrix};

/// Rows are 96, 12 and 72: groups of eight, and a rest of four; heads of 24.
fn odd_rows() -> Tiny {
    Tiny::new().with(|t| {
        t.dim = 96;
        t.hidden_dim = 160;
        t.n_heads = 8;
        t.head_dim = 12;
        t.n_kv_heads = 1;
    })
}

/// Same metadata and same tensors, byte for byte.
fn assert_same(a: &gguf::File, b: &gguf::File) {
    let keys = |file: &gguf::File| -> Vec<String> {
        file.meta().iter().map(|(key, value)| format!("{key} {value:?} {:?}", all(value))).collect()
    };
    assert_eq!(keys(a), keys(b));
    assert_eq!(a.tensors().len(), b.tensors().len());
    for (s, t) in a.tensors().iter().zip(b.tensors()) {
        assert_eq!((&s.name, s.dims, s.n_dims, s.ty), (&t.name, t.dims, t.n_dims, t.ty));
        let (s_bytes, t_bytes) = (a.data(s).expect("data"), b.data(t).expect("data"));
        assert!(s.layout == t.layout && s_bytes == t_bytes, "{}", s.name);
    }
}

fn all(value: gguf::Value<'_>) -> Vec<String> {
    if let gguf::Value::Array(a) = value { a.iter().map(|v| format!("{v:?}")).collect() } else { vec![] }
}

#[test]
fn packed_and_unpacked_a_model_is_what_it_was() {
    for tiny in [Tiny::new().tied(), odd_rows(), Tiny::new().format(encode::f16)] {
        let place = Place::new(&tiny);
        let packed = place.packed("a.g2bx", &[]);
        let again = place.path("b.gguf");
        good(&twinband(&[&"unpack", &packed, &again]));
        let original = gguf::File::open(&place.source).expect("a GGUF");
        assert_same(&original, &gguf::File::open(&again).expect("a GGUF"));
        // And from one packed file to another with the rows apart.
        let flat = place.path("flat.g2bx");
        good(&twinband(&[&"pack", &packed, &flat, &"--no-interleave", &"--keep"]));
        assert_same(&original, &g2bx::open(&flat).expect("a G2BX"));
    }
}

#[test]
fn the_digest_does_not_know_the_container() {
    for tiny in [
        odd_rows(),
        Tiny::new().tied().format(|t| if t.is_matrix() { encode::q4_0(t) } else { encode::f32(t) }),
    ] {
        let place = Place::new(&tiny);
        let expected = digest(&place.source);
        let packed = place.packed("a.g2bx", &[]);
        let file = g2bx::open(&packed).expect("a G2BX");
        let layout = |name: &str| file.tensor(name).map(|t| t.layout);
        assert_eq!(layout("blk.1.attn_k.weight"), Some(Layout::Rows8));
        assert_eq!(layout("blk.1.attn_norm.weight"), Some(Layout::Rows));
        assert_eq!(layout("token_embd.weight"), Some(Layout::Rows));
        assert_eq!(digest(&packed), expected);
        assert_eq!(digest(&place.packed("b.g2bx", &[&"--no-interleave"])), expected);
        let shown = good(&twinband(&[&"info", &packed, &"--tensors"]));
        assert!(shown.contains("(G2BX version 4, ") && shown.contains("  interleaved\n"), "{shown}");
        let said = good(&twinband(&[&"verify", &packed]));
        assert!(said.contains("good; G2BX version 4") && said.contains("every checksum holds"), "{said}");
        assert!(said.contains("every weight is a finite number"), "{said}");
    }
}

/// The file read again by nothing but its specification.
#[test]
fn the_bytes_are_those_of_the_specification() {
    let place = Place::new(&odd_rows());
    let original = gguf::File::open(&place.source).expect("a GGUF");
    let bytes = std::fs::read(place.packed("a.g2bx", &[])).expect("the file");
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    assert_eq!(&bytes[..8], b"G2BX\x04\0\0\0");
    let (header_size, data_start, file_size) = (u64_at(8), u64_at(16), u64_at(24));
    assert_eq!((data_start % 4096, file_size), (0, bytes.len()));
    assert!(header_size <= data_start && data_start < header_size + 4096);
    assert_eq!((u64_at(32), u64_at(40)), (original.meta().len(), original.tensors().len()));
    assert_eq!(bytes[48..60], [0; 12]);
    assert_eq!(u32_at(60), crc32(&[&bytes[..60], &bytes[64..header_size]].concat()));

    // The metadata are the bytes that GGUF has for them, and the directory ends the header.
    let source = std::fs::read(&place.source).expect("the file");
    let entry = |t: &gguf::TensorInfo| 8 + t.name.len() + 4 + 8 * t.n_dims + 4 + 8 + 8 + 4 + 4;
    let mut at = header_size - original.tensors().iter().map(entry).sum::<usize>();
    assert!(bytes[64..at] == source[24..24 + at - 64]);
    let mut interleaved = 0;
    for tensor in original.tensors() {
        let n = tensor.name.len();
        assert_eq!((u64_at(at), &bytes[at + 8..at + 8 + n]), (n, tensor.name.as_bytes()));
        at += 8 + n;
        assert_eq!(u32_at(at) as usize, tensor.n_dims);
        at += 4;
        for (i, &dim) in tensor.dims[..tensor.n_dims].iter().enumerate() {
            assert_eq!(u64_at(at + 8 * i) as u64, dim);
        }
        at += 8 * tensor.n_dims;
        let (ty, offset, size, layout, sum) =
            (u32_at(at), u64_at(at + 4), u64_at(at + 12), u32_at(at + 20), u32_at(at + 24));
        at += 28;
        let (data, plain) = (&bytes[data_start + offset..][..size], original.data(tensor).expect("data"));
        assert_eq!((ty, offset % 64, size, sum), (tensor.ty.0, 0, plain.len(), crc32(data)));
        if layout == 0 {
            assert!(data == plain);
            continue;
        }
        interleaved += 1;
        let geometry = tensor.ty.geometry().expect("a known type");
        let (rows, blocks) = (tensor.rows() as usize, tensor.dims[0] as usize / geometry.block);
        for row in 0..rows {
            let (g, i) = (row / 8, row % 8);
            let r = (rows - 8 * g).min(8);
            for b in 0..blocks {
                let block = |data: &[u8], at: usize| data[at * geometry.bytes..][..geometry.bytes].to_vec();
                let (found, expected) =
                    (block(data, 8 * g * blocks + b * r + i), block(plain, row * blocks + b));
                assert_eq!(found, expected, "{} row {row} block {b}", tensor.name);
            }
        }
    }
    assert_eq!((at, interleaved), (header_size, 2 * 7));
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_split_set_becomes_one_file() {
    let place = Place::new(&Tiny::new());
    let whole = gguf::File::open(&place.source).expect("a GGUF");
    let n = whole.tensors().len();
    for (no, range) in [(0, 0..5), (1, 5..n)] {
        let mut w = gguf::write::Writer::new();
        for (key, value) in whole.meta().iter().filter(|_| no == 0) {
            w.value(key, value);
        }
        w.u32("split.no", no).u32("split.count", 2).u32("split.tensors.count", n as u32);
        for t in &whole.tensors()[range.clone()] {
            w.tensor(&t.name, &t.dims[..t.n_dims], t.ty).expect("a good tensor");
        }
        let mut data = w.begin(Vec::new()).expect("a good header");
        for t in &whole.tensors()[range] {
            data.tensor(whole.data(t).expect("data")).expect("all of it");
        }
        let name = format!("s-0000{}-of-00002.gguf", no + 1);
        std::fs::write(place.path(&name), data.finish().expect("all tensors")).expect("a file");
    }
    let (second, packed) = (place.path("s-00002-of-00002.gguf"), place.path("s.g2bx"));
    good(&twinband(&[&"pack", &second, &packed, &"--no-interleave"]));
    assert_same(&whole, &g2bx::open(&packed).expect("a G2BX"));
}

#[test]
fn nothing_is_overwritten_unasked() {
    let place = Place::new(&Tiny::new());
    let packed = place.packed("a.g2bx", &[]);
    let before = std::fs::read(&packed).expect("the file");
    assert!(refused(&twinband(&[&"pack", &place.source, &packed])).contains("--force"));
    good(&twinband(&[&"pack", &place.source, &packed, &"--force", &"--no-interleave"]));
    assert!(std::fs::read(&packed).expect("the file") != before);
    for command in ["pack", "unpack"] {
        let output = twinband(&[&command, &place.source, &place.source, &"--force"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("is the input"), "{said}");
    }
    // A source that is cut short gives no file at all.
    let source = std::fs::read(&place.source).expect("the file");
    let (cut, out) = (place.path("cut.gguf"), place.path("cut.g2bx"));
    std::fs::write(&cut, &source[..source.len() - 1]).expect("a file");
    assert!(refused(&twinband(&[&"pack", &cut, &out])).contains("truncated"));
    assert!(!out.exists());
}

/// A GGUF file of one F32 matrix with rows of 4096 zeros, which takes no room on the disk.
fn sparse(place: &Place, rows: u64) -> PathBuf {
    let path = place.path("sparse.gguf");
    let mut writer = gguf::write::Writer::new();
    writer.tensor("blk.0.ffn_up.weight", &[4096, rows], GgmlType::F32).expect("a good tensor");
    let file = std::fs::File::create(&path).expect("a file");
    // The header is written when writing begins.
    drop(writer.begin(&file).expect("a good header"));
    let header = file.metadata().expect("a file").len();
    file.set_len(header + 4 * 4096 * rows).expect("a file system with sparse files");
    path
}

#[test]
#[cfg(target_os = "linux")]
fn memory_stays_flat() {
    let place = Place::new(&Tiny::new());
    // 256 MiB of numbers, 144 MiB of which anything could be allocated.
    let (source, out) = (sparse(&place, 16384), place.path("a.g2bx"));
    for option in ["--q4", "--q4s", "--keep"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -d 147456; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_twinband"), "pack"]);
        good(&shell.args([&source, &out]).args([option, "--force"]).output().expect("sh starts"));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn interrupted_it_leaves_nothing_behind() {
    let place = Place::new(&Tiny::new());
    // 32 GiB of numbers: there is always enough left to do.
    let (source, out) = (sparse(&place, 1 << 21), place.path("a.g2bx"));
    let files = || std::fs::read_dir(place.dir.path()).expect("the folder").count();
    let before = files();
    let mut pack = Command::new(env!("CARGO_BIN_EXE_twinband"));
    let mut child = pack.arg("pack").args([&source, &out]).arg("--q4").spawn().expect("the program starts");
    while files() == before && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Its handler is in place before the file is begun.
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill starts").success());
    assert_eq!(child.wait().expect("a child").code(), Some(130));
    assert_eq!(files(), before);
}

// --------------------------------------------------------------------------------------------------- conversion

/// The numbers of a tensor.
fn decoded(file: &gguf::File, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("the tensor");
    let format = format::of(tensor.ty).expect("a type that runs");
    let (rows, cols) = (tensor.rows() as usize, tensor.dims[0] as usize);
    let matrix = Matrix::new(format, file.data(tensor).expect("data"), rows, cols).expect("a matrix");
    let matrix = matrix.with_layout(tensor.layout).expect("a layout");
    let mut out = vec![0.0; rows * cols];
    out.chunks_mut(cols).enumerate().for_each(|(r, out)| matrix.decode_row(r, out));
    out
}

fn type_of(file: &gguf::File, name: &str) -> String {
    file.tensor(name).map(|t| t.ty.to_string()).unwrap_or_default()
}

/// Every number of a block is within `part` of its largest from what it was.
fn assert_close(file: &gguf::File, plain: &Plain, block: usize, part: f32) {
    let got = decoded(file, &plain.name);
    for (i, (got, was)) in got.chunks(block).zip(plain.values.chunks(block)).enumerate() {
        // And half of the smallest f16.
        let bound = part * was.iter().fold(0f32, |m, x| m.max(x.abs())) + 3e-8;
        let worst = got.iter().zip(was).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= bound, "{} block {i}: {worst} of {bound}", plain.name);
    }
}

#[test]
fn matrices_are_converted_and_the_embedding_is_spared() {
    let tiny = Tiny::new().format(encode::f32).with(|t| {
        t.dim = 256;
        t.hidden_dim = 512;
        t.n_layers = 1;
        t.head_dim = 64;
    });
    let place = Place::new(&tiny);
    let weights = tiny.weights();
    let plain = |name: &str| weights.iter().find(|t| t.name == name).expect("the tensor");
    // The largest error is where a code ends before the largest number does: half a step more than a step.
    for (options, ty, block, part) in [
        (&["--q4"][..], "Q4_0", 32, 0.126),
        (&["--q4s"], "Q4_0S", 256, 0.3),
        (&["--psy"], "Q4_0S_PSY", 128, 0.3),
        (&["--vvc"], "Q4_VVC", 256, 0.6),
        (&["--type", "q5_1", "--pure"], "Q5_1", 32, 0.04),
        (&["--type", "Q8_0", "--pure"], "Q8_0", 32, 0.005),
        (&["--type", "Q4_K", "--pure"], "Q4_K", 256, 0.1),
        (&["--type", "Q6_K", "--pure"], "Q6_K", 256, 0.03),
        (&["--type", "F16", "--pure"], "F16", 1, 0.001),
    ] {
        let mut all: Vec<&dyn AsRef<OsStr>> = options.iter().map(|o| o as &dyn AsRef<OsStr>).collect();
        all.push(&"--force");
        let packed = place.packed("a.g2bx", &all);
        let file = g2bx::open(&packed).expect("a G2BX");
        for name in ["attn_q", "attn_k", "ffn_down"].map(|part| format!("blk.0.{part}.weight")) {
            assert_eq!(type_of(&file, &name), ty);
            assert_close(&file, plain(&name), block, part);
        }
        let spared = if ty == "F16" { "F16" } else { "Q8_0" };
        for name in ["token_embd.weight", "output.weight"] {
            assert_eq!(type_of(&file, name), spared, "{ty}");
            assert_close(&file, plain(name), if ty == "F16" { 1 } else { 32 }, 0.005);
        }
        assert_eq!(type_of(&file, "output_norm.weight"), "F32");
        let number = file.meta().u64("general.file_type").ok().flatten();
        let expected = [("Q4_0", 2), ("Q5_1", 9), ("Q8_0", 7), ("Q4_K", 14), ("Q6_K", 18), ("F16", 1)]
            .into_iter()
            .find(|(name, _)| *name == ty);
        assert_eq!(number, expected.map(|(_, number)| number));
        // It runs, and as GGUF says the same.
        let plain = place.path("plain.gguf");
        good(&twinband(&[&"unpack", &packed, &plain, &"--force"]));
        assert_eq!(digest(&plain), digest(&packed), "{ty}");
    }
}

#[test]
fn mixtures_give_more_bits_to_what_needs_them() {
    let tiny = Tiny::new().format(encode::f32).with(|t| {
        t.dim = 256;
        t.hidden_dim = 512;
        t.n_layers = 2;
        t.head_dim = 64;
    });
    let place = Place::new(&tiny);
    let types = |options: &[&str]| {
        let mut all: Vec<&dyn AsRef<OsStr>> = options.iter().map(|o| o as &dyn AsRef<OsStr>).collect();
        all.push(&"--force");
        let file = g2bx::open(&place.packed("a.g2bx", &all)).expect("a G2BX");
        let number = file.meta().u64("general.file_type").ok().flatten();
        let names =
            ["token_embd", "output", "blk.0.attn_v", "blk.1.attn_v", "blk.1.ffn_down", "blk.1.ffn_up"];
        (names.map(|name| type_of(&file, &format!("{name}.weight"))).join(" "), number)
    };
    // What `llama-quantize` gives them, and its number for such files.
    for (options, expected, number) in [
        (&["--type", "Q4_K_M"][..], "Q4_K Q6_K Q4_K Q6_K Q6_K Q4_K", Some(15)),
        (&["--type", "q4_k"], "Q4_K Q6_K Q4_K Q6_K Q6_K Q4_K", Some(15)),
        (&["--type", "Q4_K_M", "--head", "Q8_0"], "Q4_K Q8_0 Q4_K Q6_K Q6_K Q4_K", Some(15)),
        (&["--type", "Q3_K_L"], "Q3_K Q6_K Q5_K Q5_K Q5_K Q3_K", Some(13)),
        (&["--type", "Q2_K"], "Q2_K Q6_K Q3_K Q3_K Q3_K Q2_K", Some(10)),
        (&["--type", "Q8_0"], "Q8_0 Q8_0 Q8_0 Q8_0 Q8_0 Q8_0", Some(7)),
        (&["--type", "Q4_K_M", "--pure"], "Q8_0 Q8_0 Q4_K Q4_K Q4_K Q4_K", Some(14)),
        (&["--type", "Q4_0S"], "Q8_0 Q8_0 Q4_0S Q4_0S Q4_0S Q4_0S", None),
    ] {
        assert_eq!(types(options), (expected.to_owned(), number), "{options:?}");
    }
    let out = place.path("b.g2bx");
    let output = twinband(&[&"pack", &place.source, &out, &"--type", &"IQ2_XXS"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("is to become IQ2_XXS, which is of no use without importance data: give --imatrix F"),
        "{said}"
    );
    assert!(!out.exists());
}

#[test]
fn heads_have_a_type_of_their_own_and_stay_tied() {
    let tied = Place::new(&Tiny::new().tied().format(encode::f32));
    let file = g2bx::open(&tied.packed("a.g2bx", &[&"--type", &"Q5_0", &"--head", &"Q4_0"])).expect("a G2BX");
    assert!(file.tensor("output.weight").is_none());
    assert_eq!(
        [type_of(&file, "token_embd.weight"), type_of(&file, "blk.0.attn_q.weight")],
        ["Q4_0", "Q5_0"]
    );
    let apart = Place::new(&Tiny::new().format(encode::f32));
    let file = g2bx::open(&apart.packed("a.g2bx", &[&"--head", &"Q4_1"])).expect("a G2BX");
    let types =
        ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"].map(|name| type_of(&file, name));
    assert_eq!(types, ["F32", "Q4_1", "F32"]);
}

#[test]
fn rows_that_do_not_fit_are_named_and_bad_numbers_refused() {
    // Rows of 96 and 160 are no blocks of 256.
    let place = Place::new(&odd_rows());
    let (out, source) = (place.path("a.g2bx"), &place.source);
    let said = refused(&twinband(&[&"pack", source, &out, &"--q4s", &"--strict"]));
    assert!(said.contains("14 tensors (") && said.contains("no whole blocks of Q4_0S"), "{said}");
    assert!(!out.exists());
    let output = twinband(&[&"pack", source, &out, &"--q4s"]);
    good(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("they become Q4_0"), "{said}");
    assert_eq!(type_of(&g2bx::open(&out).expect("a G2BX"), "blk.0.ffn_down.weight"), "Q4_0");

    let mut values = vec![0.5; 64 * 64];
    values[64 * 9 + 3] = f32::INFINITY;
    let bad = Place::new(&Tiny::new().format(encode::f32).tensor("blk.1.attn_q.weight", &[64, 64], values));
    let out = bad.path("a.g2bx");
    let said = refused(&twinband(&[&"pack", &bad.source, &out, &"--q4"]));
    assert!(said.contains("tensor blk.1.attn_q.weight, row 9: element 3 is inf"), "{said}");
    assert!(!out.exists());
    let both = twinband(&[&"pack", &bad.source, &out, &"--q4", &"--keep"]);
    assert_eq!(both.status.code(), Some(2));
}

/// The same of every tensor as `info` says, and the bytes that the source has.
#[test]
fn a_reader_written_from_the_document_agrees() {
    for tiny in [
        odd_rows(),
        Tiny::new().tied().format(|t| if t.is_matrix() { encode::q4_0(t) } else { encode::f16(t) }),
    ] {
        let place = Place::new(&tiny);
        let packed = place.packed("a.g2bx", &[]);
        let Some(theirs) = second_opinion(&packed) else { return };
        let theirs = theirs.expect("a good file");
        let ours = good(&twinband(&[&"info", &packed, &"--json"]));
        let ours: Value = serde_json::from_str(&ours).expect("JSON");
        let source = gguf::File::open(&place.source).expect("a GGUF");
        let (theirs_of, ours_of) = (theirs["tensors"].as_array(), ours["tensors"].as_array());
        let (theirs_of, ours_of) = (theirs_of.expect("tensors"), ours_of.expect("tensors"));
        assert_eq!((theirs_of.len(), ours_of.len()), (source.tensors().len(), source.tensors().len()));
        for (theirs, ours) in theirs_of.iter().zip(ours_of) {
            for field in ["name", "code", "dims", "layout", "bytes", "offset"] {
                assert_eq!(theirs[field], ours[field], "{field}: {theirs} {ours}");
            }
            let tensor = source.tensor(theirs["name"].as_str().expect("a name")).expect("the tensor");
            assert_eq!(theirs["crc32"], crc32(source.data(tensor).expect("data")), "{theirs}");
        }
        let keys: Vec<&str> = source.meta().iter().map(|(key, _)| key).collect();
        let metadata = theirs["metadata"].as_object().expect("metadata");
        assert_eq!(metadata.keys().collect::<Vec<_>>(), keys);
        let tokens = source.meta().strings("tokenizer.ggml.tokens").ok().flatten().expect("tokens");
        assert_eq!(metadata["tokenizer.ggml.tokens"]["values"], tokens.len());

        // In the header, in the padding behind it, in a tensor.
        let bytes = std::fs::read(&packed).expect("the file");
        let end = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")) as usize;
        for (at, what) in [(100, "header"), (end, "padding"), (bytes.len() - 1, "damaged")] {
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            let damaged = place.path("damaged.g2bx");
            std::fs::write(&damaged, bytes).expect("a file");
            let said = second_opinion(&damaged).expect("there is Python").expect_err("a flipped bit");
            assert!(said.contains(what), "{what}: {said}");
        }
    }
}

// ------------------------------------------------------------------------------------------------------- damage

/// A small file with gaps between header, data and tensors, and both layouts.
fn small() -> Vec<u8> {
    let mut meta = gguf::write::Writer::new();
    meta.str("general.architecture", "none").u32("n", 7).strings("s", &["a", "bc"]);
    let mut writer = Writer::new(meta);
    let tensors: [(&str, &[u64], GgmlType, Layout); 4] = [
        ("f", &[3], GgmlType::F32, Layout::Rows),
        ("q", &[64, 9], GgmlType::Q4_0, Layout::Rows8),
        ("r", &[32, 2, 2], GgmlType::Q8_0, Layout::Rows),
        ("i", &[5], GgmlType(24), Layout::Rows),
    ];
    let mut sizes = Vec::new();
    for (name, dims, ty, layout) in tensors {
        writer.tensor(name, dims, ty, layout).expect("a good tensor");
        let row = ty.geometry().and_then(|g| g.row_bytes(dims[0] as usize)).expect("whole blocks");
        sizes.push(row * dims[1..].iter().product::<u64>() as usize);
    }
    let mut data = writer.begin(std::io::Cursor::new(Vec::new())).expect("a good header");
    for (i, size) in sizes.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|b| (b * 31 + i) as u8 & 0x3f).collect();
        bytes.chunks(100).for_each(|part| data.part(part).expect("it fits"));
    }
    data.finish().expect("all tensors").into_inner()
}

#[test]
fn no_flipped_bit_and_no_cut_goes_unnoticed() {
    let good = small();
    assert!(verify_bytes(good.clone()).is_ok_and(|v| v.checked == Checked::All));
    let mut bytes = good.clone();
    for at in 0..good.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            assert!(verify_bytes(bytes.clone()).is_err(), "bit {bit} of byte {at}");
            // Nor does opening alone panic.
            drop(g2bx::from_bytes(bytes.clone()));
            bytes[at] ^= 1 << bit;
        }
    }
    for end in 0..good.len() {
        assert!(verify_bytes(good[..end].to_vec()).is_err(), "cut at {end}");
        assert!(g2bx::from_bytes(good[..end].to_vec()).is_err(), "cut at {end}");
    }
    assert!(verify_bytes([&good[..], b"\0"].concat()).is_err());
}

/// A file with its header's checksum put right.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = usize::try_from(u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"))).unwrap_or(0);
    if (64..=bytes.len()).contains(&end) {
        let sum = crc32(&[&bytes[..60], &bytes[64..end]].concat());
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    /// Checksums do not keep out who can compute them.
    #[test]
    fn headers_made_to_hurt(changes in prop::collection::vec((0usize..420, any::<u8>()), 1..4), end in 64usize..6000) {
        let mut bytes = small();
        for (at, value) in changes {
            bytes[at] = value;
        }
        exercise(summed(bytes.clone()));
        bytes.truncate(end);
        exercise(summed(bytes));
    }
}

#[test]
fn each_broken_rule_is_named() {
    let good = small();
    // The directory: name, n_dims, dims, type, offset, size, layout, checksum.
    let entry = |name: &str| {
        let key = [&1u64.to_le_bytes()[..], name.as_bytes()].concat();
        // The last: "n" and "s" are keys too.
        good.windows(9).rposition(|w| w == key).expect("the entry") + 9 + 4
    };
    let (f, q, r) = (entry("f") + 8, entry("q") + 16, entry("r") + 24);
    let put = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        summed(bytes)
    };
    let number = |at: usize, new: u64| put(at, &new.to_le_bytes());
    let code = |at: usize, new: u32| put(at, &new.to_le_bytes());
    let size = good.len() as u64;
    let mut last_bit = good.clone();
    last_bit[size as usize - 1] ^= 1;
    let header = u64::from_le_bytes(good[8..16].try_into().expect("eight bytes"));
    let cases: Vec<(Vec<u8>, String)> = vec![
        (put(4, &[5, 0]), "G2BX version 5 is not supported".to_owned()),
        (put(4, &[0, 0]), "G2BX version 0 is not supported".to_owned()),
        (put(7, &[1]), "flags at byte 7 is 1: must be 0".to_owned()),
        (put(50, &[9]), "reserved bytes at byte 50 is 9".to_owned()),
        (number(8, 63), "the size of the header at byte 8 is 63: must be from 64 up".to_owned()),
        (number(8, 1 << 60), "the header at byte 0 needs 1152921504606846976 bytes".to_owned()),
        (number(8, header - 1), "checksum".to_owned()),
        (number(8, header + 1), format!("is {}: must be {header}, where the directory ends", header + 1)),
        (number(16, 8192), "the start of the data at byte 16 is 8192: must be 4096".to_owned()),
        (number(24, size - 1), format!("should end at byte {} but has {size}", size - 1)),
        (number(24, size + 1), format!("ends at byte {size} but should have {}", size + 1)),
        (number(32, 1 << 40), "metadata keys declared at byte 32".to_owned()),
        (number(40, u64::MAX), "tensors declared at byte 40".to_owned()),
        (number(40, 3), "where the directory ends".to_owned()),
        (code(f, 31), "tensor f has Q4_0_4_4".to_owned()),
        (code(f, 200), "tensor f has type 200 (code 200)".to_owned()),
        (number(q + 4, 65), "tensor q: offset 65 is no multiple of the alignment 64".to_owned()),
        (number(q + 4, u64::MAX - 63), "too large for any file".to_owned()),
        (number(q + 4, 0), "overlap".to_owned()),
        (number(r + 4, 1 << 20), "where the last tensor ends".to_owned()),
        (number(q + 12, 325), "324, which is what type and dimensions of q give".to_owned()),
        (code(q + 20, 2), "tensor q has layout 2, which is not known here".to_owned()),
        (code(f + 20, 1), "tensor f: F32 has no blocks that could lie in groups".to_owned()),
        (put(f - 8 - 4 - 1, b"q"), "tensor q occurs twice".to_owned()),
    ];
    for (bytes, expected) in cases {
        let said = match g2bx::from_bytes(bytes) {
            Ok(_) => "(it was opened)".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(&expected), "expected \"{expected}\" in: {said}");
    }
    // What only verify sees, with the place.
    let said = |bytes: Vec<u8>| verify_bytes(bytes).map(drop).map_err(|e| e.to_string());
    let found = said(last_bit).expect_err("a flipped bit");
    assert!(found.contains(&format!("tensor i (bytes {} to {size}) is damaged", size - 5)), "{found}");
    let found = said(put(header as usize, &[3])).expect_err("a byte in the padding");
    assert!(found.contains(&format!("byte {header} is 3, in padding")), "{found}");
    let found = said(code(q + 24, 1)).expect_err("another checksum");
    assert!(found.contains("tensor q (bytes") && found.contains("should be 00000001"), "{found}");
}

#[test]
fn verify_says_what_is_wrong_and_where() {
    let place = Place::new(&Tiny::new());
    let packed = place.packed("a.g2bx", &[]);
    let mut bytes = std::fs::read(&packed).expect("the file");
    let at = {
        let file = g2bx::open(&packed).expect("a G2BX");
        file.tensor("blk.0.ffn_up.weight").expect("a tensor").offset() as usize
    };
    bytes[at + 100] ^= 0x10;
    let damaged = place.path("damaged.g2bx");
    std::fs::write(&damaged, &bytes).expect("a file");
    let said = refused(&twinband(&[&"verify", &damaged]));
    assert!(
        said.contains("damaged.g2bx")
            && said.contains("blk.0.ffn_up.weight")
            && said.contains(&at.to_string()),
        "{said}"
    );

    std::fs::write(&damaged, &bytes[..bytes.len() - 1]).expect("a file");
    let out = place.path("out");
    for args in [&["verify"][..], &["run"], &["pack", "OUT"]] {
        let (command, rest) = args.split_first().expect("a command");
        let mut all: Vec<&dyn AsRef<OsStr>> = vec![command, &damaged];
        all.extend(rest.iter().map(|_| &out as &dyn AsRef<OsStr>));
        let said = refused(&twinband(&all));
        assert!(said.contains("truncated: it ends at byte"), "{said}");
    }
    let shown = good(&twinband(&[&"info", &damaged]));
    assert!(shown.contains("can run       no: the file is not complete"), "{shown}");

    // GGUF files: what has no checksum is looked at all the same.
    let said = good(&twinband(&[&"verify", &place.source]));
    assert!(said.contains("good; GGUF version 3") && said.contains("no checksums"), "{said}");
    let norm: Vec<u8> = (0..64).flat_map(|i| if i == 9 { f32::NAN } else { 1.0f32 }.to_le_bytes()).collect();
    let mut embedding =
        encode::q8_0(&Plain { name: String::new(), dims: vec![64, 300], values: vec![0.5; 64 * 300] }).1;
    // The scale of the second block of row 7: infinite.
    embedding[(2 * 7 + 1) * 34 + 1] = 0x7c;
    embedding[(2 * 7 + 1) * 34] = 0;
    for (tiny, expected) in [
        (
            Tiny::new().raw_tensor("output_norm.weight", &[64], GgmlType::F32, norm),
            "output_norm.weight, row 0, element 9 is NaN",
        ),
        (
            Tiny::new().raw_tensor("token_embd.weight", &[64, 300], GgmlType::Q8_0, embedding),
            "token_embd.weight, row 7, element 32 is inf",
        ),
        (Tiny::new().without_tensor("blk.1.attn_q.weight"), "missing tensor blk.1.attn_q.weight"),
    ] {
        let path = tiny.write(place.dir.path(), "bad.gguf");
        let said = refused(&twinband(&[&"verify", &path]));
        assert!(said.contains(expected), "{said}");
    }
    let cut = place.path("cut.gguf");
    let source = std::fs::read(&place.source).expect("the file");
    std::fs::write(&cut, &source[..source.len() - 1]).expect("a file");
    assert!(refused(&twinband(&[&"verify", &cut])).contains("truncated: tensor"));
}
