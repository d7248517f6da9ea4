//! Files that are damaged, cut short or made to hurt: opening ends in success or in a message that says what is wrong,
//! never in a panic, a hang or memory reserved on the word of the file.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use twinband::gguf::File;

/// A small file with every value type and tensors of many types; see tests/data/gguf/make.py.
const EVERY: &[u8] = include_bytes!("data/gguf/every.gguf");
/// Where its last tensor ends.
const EVERY_END: usize = 5840;

const U8: u32 = 0;
const U32: u32 = 4;
const I32: u32 = 5;
const BOOL: u32 = 7;
const STR: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

const F32: u32 = 0;
const Q8_0: u32 = 8;
const I8: u32 = 24;

fn string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

fn kv(key: &[u8], ty: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &ty.to_le_bytes(), value].concat()
}

fn array(ty: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}

fn tensor(name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    tensor_of(name, dims.len() as u32, dims, ty, offset)
}

fn tensor_of(name: &[u8], n_dims: u32, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    [&string(name)[..], &n_dims.to_le_bytes(), &dims, &ty.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// A file of these entries and `data` bytes of tensor data, aligned to 32.
fn file(kvs: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let counts = [(tensors.len() as u64).to_le_bytes(), (kvs.len() as u64).to_le_bytes()].concat();
    let mut out = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts, &kvs.concat(), &tensors.concat()].concat();
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

fn with_kv(kv: Vec<u8>) -> Vec<u8> {
    file(&[kv], &[], 64)
}

fn with_tensors(tensors: &[Vec<u8>]) -> Vec<u8> {
    file(&[], tensors, 128)
}

fn header(version: u32, n_tensors: u64, n_kv: u64) -> Vec<u8> {
    let mut out =
        [&b"GGUF"[..], &version.to_le_bytes(), &n_tensors.to_le_bytes(), &n_kv.to_le_bytes()].concat();
    out.resize(256, 0);
    out
}

/// The message of a file that must be refused.
fn refusal(bytes: &[u8]) -> String {
    match File::from_bytes(bytes.to_vec()) {
        Ok(_) => "(it was opened)".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn check(cases: &[(&str, Vec<u8>, &str)]) {
    for (name, bytes, expected) in cases {
        let text = refusal(bytes);
        assert!(text.contains(expected), "{name}: expected \"{expected}\" in: {text}");
    }
}

/// Opens the bytes and, if that succeeds, reads all that the file offers.
fn exercise(bytes: Vec<u8>) {
    let Ok(file) = File::from_bytes(bytes) else { return };
    let mut sum = 0u64;
    for (key, value) in file.meta().iter() {
        assert_eq!(file.meta().get(key).map(|v| v.ty()), Some(value.ty()));
        if let twinband::gguf::Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len(), "an array must be as long as it says");
        }
        let m = file.meta();
        let _ = (m.u64(key), m.u32(key), m.f32(key), m.bool(key), m.str(key), m.u64_at(key, 1));
        sum += m.strings(key).ok().flatten().map_or(0, |s| s.map(|s| s.len() as u64).sum::<u64>());
        sum += m.f32s(key).ok().flatten().map_or(0, |v| v.count() as u64);
        sum += m.i64s(key).ok().flatten().map_or(0, |v| v.count() as u64);
    }
    for tensor in file.tensors() {
        assert!(file.tensor(&tensor.name).is_some());
        if let Ok(data) = file.data(tensor) {
            assert_eq!(Some(data.len() as u64), tensor.bytes());
            sum += data.iter().map(|&b| u64::from(b)).sum::<u64>();
        }
        let _ = tensor.elements().max(tensor.rows());
    }
    std::hint::black_box(sum);
}

#[test]
fn what_is_not_gguf_is_named() {
    let safetensors = [&100u64.to_le_bytes()[..], b"{\"__metadata__\":{}}"].concat();
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n";
    check(&[
        ("empty", vec![], "empty"),
        ("html", b"\n<!DOCTYPE html><html>".to_vec(), "HTML page"),
        ("html", b"<HTML><body>".to_vec(), "HTML page"),
        ("lfs", lfs.to_vec(), "Git-LFS pointer"),
        ("zip", b"PK\x03\x04\x14\0\0\0".to_vec(), "zip archive"),
        ("gzip", b"\x1f\x8b\x08\0".to_vec(), "compressed"),
        ("safetensors", safetensors, "safetensors"),
        ("g2bx", b"G2BX\x03\0".to_vec(), "G2BX"),
        ("ggml", b"tjgg\x03\0\0\0".to_vec(), "before GGUF"),
        ("zeros", vec![0; 4096], "zeros"),
        ("text", b"Entry not found\x1b[2J".to_vec(), "begins with \"Entry not found\\u{1b}[2J\""),
        ("magic cut", b"GGU".to_vec(), "cut off"),
        ("header cut", b"GGUF\x03\0\0\0\0\0".to_vec(), "the file header at byte 0 needs 24 bytes"),
    ]);
}

#[test]
fn versions() {
    check(&[
        ("0", header(0, 0, 0), "GGUF version 0 is not supported"),
        ("1", header(1, 0, 0), "GGUF version 1 is not supported: versions 2 and 3 are; convert"),
        ("4", header(4, 0, 0), "GGUF version 4 is not supported"),
        ("byte-swapped", header(0x0300_0000, 0, 0), "big-endian"),
        ("byte-swapped", header(0x0200_0000, 0, 0), "big-endian"),
    ]);
    for version in [2, 3] {
        assert!(File::from_bytes(header(version, 0, 0)).is_ok());
    }
}

#[test]
fn counts_beyond_the_file() {
    let text = |len: u64| [&len.to_le_bytes()[..], b"abc"].concat();
    check(&[
        ("tensors", header(3, 1 << 62, 0), "4611686018427387904 tensors"),
        ("keys", header(3, 0, 1 << 62), "4611686018427387904 metadata keys"),
        ("tensors", header(3, 100, 0), "100 tensors declared at byte 8, which cannot fit"),
        ("string", with_kv(kv(b"k", STR, &text(1 << 63))), "9223372036854775808 bytes"),
        ("string", with_kv(kv(b"k", STR, &text(u64::MAX))), "18446744073709551615 bytes"),
        ("array", with_kv(kv(b"k", ARRAY, &array(U64, 1 << 40, &[]))), "1099511627776 array elements"),
        ("strings", with_kv(kv(b"k", ARRAY, &array(STR, 1 << 32, &[]))), "4294967296 array elements"),
        ("array", with_kv(kv(b"k", ARRAY, &array(U8, u64::MAX, &[]))), "18446744073709551615 array elements"),
        ("key", with_kv(text(1 << 63)), "metadata key of 9223372036854775808 bytes"),
    ]);
    // Possible, given the size of the file, but more than any model has.
    let mut many = header(3, 100_001, 0);
    many.resize(34 * 100_001, 0);
    check(&[("too many", many, "100001 tensors declared, at most 100000")]);
}

#[test]
fn metadata_rules() {
    let one = |ty: u32, value: &[u8]| with_kv(kv(b"k", ty, value));
    let twice = file(&[kv(b"k", U8, &[1]), kv(b"other", U8, &[1]), kv(b"k", U32, &[1, 0, 0, 0])], &[], 0);
    check(&[
        ("value type", one(13, &[0; 8]), "metadata key k: unknown value type 13"),
        ("value type", one(255, &[0; 8]), "unknown value type 255"),
        ("element type", one(ARRAY, &array(13, 1, &[0; 8])), "metadata key k: unknown value type 13"),
        ("bool", one(BOOL, &[7]), "metadata key k: a bool must be 0 or 1, found 7"),
        ("bools", one(ARRAY, &array(BOOL, 3, &[0, 1, 2])), "a bool must be 0 or 1, found 2"),
        ("nested", one(ARRAY, &array(ARRAY, 1, &array(U8, 1, &[1]))), "array of arrays"),
        ("duplicate", twice, "metadata key k occurs twice"),
        ("empty key", with_kv(kv(b"", U8, &[1])), "metadata key of 0 bytes"),
        ("long key", with_kv(kv(&[b'k'; 65536], U8, &[1])), "metadata key of 65536 bytes"),
        ("NUL in key", with_kv(kv(b"a\0b", U8, &[1])), "metadata key a\\u{0}b holds a NUL byte"),
        ("key not UTF-8", with_kv(kv(b"a\xff", U8, &[1])), "not UTF-8"),
        ("NUL in string", one(STR, &string(b"a\0b")), "metadata key k holds a NUL byte"),
        ("control in key", with_kv(kv(b"\x1b[2Jk", 99, &[])), "metadata key \\u{1b}[2Jk: unknown value type"),
    ]);
    for (name, value) in [
        ("token texts may hold NUL", kv(b"k", ARRAY, &array(STR, 1, &string(b"\0")))),
        ("an empty array", kv(b"k", ARRAY, &array(STR, 0, &[]))),
        ("a string of any bytes", kv(b"k", STR, &string(b"\xff"))),
    ] {
        assert!(File::from_bytes(with_kv(value)).is_ok(), "{name}");
    }
}

#[test]
fn deep_nesting_does_not_reach_the_stack() {
    let levels: Vec<u8> = (0..100_000).flat_map(|_| array(ARRAY, 1, &[])).collect();
    assert!(refusal(&with_kv(kv(b"k", ARRAY, &levels))).contains("array of arrays"));
}

#[test]
fn alignment() {
    let aligned = |ty: u32, value: &[u8], data: usize| {
        let mut out = file(&[kv(b"general.alignment", ty, value)], &[tensor(b"t", &[4], I8, 0)], 0);
        out.resize(out.len().next_multiple_of(data), 0);
        out.extend([1; 4]);
        out
    };
    for good in [8u32, 32, 64, 1 << 20] {
        let bytes = aligned(U32, &good.to_le_bytes(), good as usize);
        let opened = File::from_bytes(bytes).map(|f| f.alignment());
        assert_eq!(opened.map_err(|e| e.to_string()), Ok(good.into()));
    }
    let bad = |value: u32| aligned(U32, &value.to_le_bytes(), 32);
    check(&[
        ("0", bad(0), "general.alignment is 0: must be a power of two from 8"),
        ("1", bad(1), "general.alignment is 1:"),
        ("4", bad(4), "general.alignment is 4:"),
        ("24", bad(24), "general.alignment is 24:"),
        ("2^21", bad(1 << 21), "general.alignment is 2097152:"),
        ("2^31", bad(1 << 31), "general.alignment is 2147483648:"),
        ("2^32-1", bad(u32::MAX), "general.alignment is 4294967295:"),
        ("2^63", aligned(U64, &(1u64 << 63).to_le_bytes(), 32), "general.alignment is 9223372036854775808:"),
        ("-1", aligned(I32, &(-1i32).to_le_bytes(), 32), "general.alignment: expected a power of two"),
        (
            "string",
            aligned(STR, &string(b"32"), 32),
            "general.alignment: expected a power of two from 8 to 1048576, found string",
        ),
    ]);
    for (ty, value) in [(U8, &[64][..]), (I32, &[64, 0, 0, 0]), (U64, &[64, 0, 0, 0, 0, 0, 0, 0])] {
        assert!(File::from_bytes(aligned(ty, value, 64)).is_ok(), "a width that others do not write");
    }
}

#[test]
fn tensor_rules() {
    let one = |dims: &[u64], ty: u32, offset: u64| with_tensors(&[tensor(b"t", dims, ty, offset)]);
    let n_dims = |n: u32, dims: &[u64]| with_tensors(&[tensor_of(b"t", n, dims, F32, 0)]);
    let named = |name: &[u8]| with_tensors(&[tensor(name, &[1], F32, 0)]);
    let max = i32::MAX as u64;
    check(&[
        ("no dimensions", n_dims(0, &[]), "tensor t: has 0 dimensions, must be 1 to 4"),
        ("5 dimensions", n_dims(5, &[1; 5]), "tensor t: has 5 dimensions"),
        ("9 dimensions", n_dims(9, &[1; 9]), "tensor t: has 9 dimensions"),
        ("2^32-1 dimensions", n_dims(u32::MAX, &[]), "tensor t: has 4294967295 dimensions"),
        ("dimension 0", one(&[4, 0], F32, 0), "tensor t: dimension 1 is 0"),
        ("wraps to 0", one(&[(1 << 42) + 1, 4_194_304], F32, 0), "tensor t: dimension 0 is 4398046511105"),
        ("elements overflow", one(&[max, max, max], F32, 0), "too large"),
        ("bytes overflow", one(&[max, max, 4], F32, 0), "too large"),
        (
            "row",
            one(&[33], Q8_0, 0),
            "tensor t: rows of 33 elements are no whole number of Q8_0 blocks of 32",
        ),
        ("past the end", one(&[33], F32, 0), "truncated: tensor t ends at byte"),
        ("past the end", one(&[4], F32, 128), "truncated: tensor t ends at byte"),
        ("2^64-32", one(&[32], I8, 0u64.wrapping_sub(32)), "tensor t: offset 18446744073709551584"),
        ("2^63", one(&[1], F32, 1 << 63), "truncated: tensor t ends at byte 92233720368547758"),
        ("unaligned", one(&[4], F32, 1), "tensor t: offset 1 is no multiple of the alignment 32"),
        ("unknown type past the end", one(&[4], 200, 128), "truncated: tensor t"),
        ("empty name", named(b""), "tensor name of 0 bytes"),
        ("long name", named(&[b'n'; 128]), "tensor name of 128 bytes"),
        ("NUL in name", named(b"a\0b"), "tensor name a\\u{0}b holds a NUL byte"),
        ("name not UTF-8", named(b"\xc3("), "not UTF-8"),
    ]);
    assert!(File::from_bytes(named(&[b'n'; 127])).is_ok());

    let two = |a: Vec<u8>, b: Vec<u8>| with_tensors(&[a, b]);
    check(&[
        ("duplicate", two(tensor(b"t", &[4], F32, 0), tensor(b"t", &[4], F32, 32)), "tensor t occurs twice"),
        ("overlap", two(tensor(b"a", &[16], F32, 0), tensor(b"b", &[4], F32, 32)), "tensors a and b overlap"),
        (
            "same bytes",
            two(tensor(b"a", &[4], F32, 32), tensor(b"b", &[4], F32, 32)),
            "tensors a and b overlap",
        ),
        (
            "unknown within",
            two(tensor(b"a", &[16], F32, 0), tensor(b"b", &[4], 200, 32)),
            "tensors a and b overlap",
        ),
    ]);
    // Any order will do.
    let swapped = two(tensor(b"a", &[4], F32, 32), tensor(b"b", &[4], F32, 0));
    assert!(File::from_bytes(swapped).is_ok());
}

#[test]
fn types_we_do_not_run_still_list() {
    for code in [4, 5, 31, 36, 200] {
        let bytes = with_tensors(&[tensor(b"odd", &[256], code, 0), tensor(b"good", &[4], F32, 96)]);
        let file = File::from_bytes(bytes).expect("unknown types are no fault of the file");
        let tensor = |name| file.tensor(name).expect("both are listed");
        let error = file.data(tensor("odd")).expect_err("its layout is not known").to_string();
        assert!(error.contains("tensor odd") && error.contains(&format!("code {code}")), "{error}");
        assert_eq!(file.data(tensor("good")).map(<[u8]>::len).ok(), Some(16));
    }
    // Known layouts are served whether or not there is arithmetic for them: IQ2_XXS, IQ4_NL, BF16, MXFP4, I64.
    for (code, bytes) in [(16, 66), (20, 144), (30, 512), (39, 136), (27, 2048)] {
        let file = File::from_bytes(file(&[], &[tensor(b"t", &[256], code, 0)], 2048)).expect("a good file");
        assert_eq!(file.data(&file.tensors()[0]).map(<[u8]>::len).ok(), Some(bytes), "code {code}");
    }
}

#[test]
fn truncation_at_every_byte() {
    for len in 0..EVERY.len() {
        let text = refusal(&EVERY[..len]);
        if len >= EVERY_END {
            assert_eq!(text, "(it was opened)", "only padding is missing at {len}");
        } else {
            assert!(text.contains("download") || text.contains("cut"), "{len}: {text}");
        }
    }
}

#[test]
fn four_bytes_overwritten_at_every_offset() {
    for at in 0..EVERY.len() - 4 {
        for value in [0, u32::MAX, 0x7fff_ffff, 0x8000_0000] {
            let mut bytes = EVERY.to_vec();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            exercise(bytes);
        }
    }
}

#[test]
fn hostile_files_are_refused_at_once() {
    let levels: Vec<u8> = (0..100_000).flat_map(|_| array(ARRAY, 1, &[])).collect();
    let mut keys = header(3, 0, 100_000);
    keys.truncate(24);
    keys.extend((0..100_000u32).flat_map(|i| kv(format!("k{i}").as_bytes(), U8, &[1])));
    assert!(File::from_bytes(keys.clone()).is_ok_and(|f| f.meta().len() == 100_000));
    // The last is a legal file, and as much work as the limits allow.
    for (bytes, millis) in
        [(with_kv(kv(b"k", ARRAY, &levels)), 100), (header(3, 1 << 62, 1 << 62), 100), (keys, 500)]
    {
        let time = |_| {
            let bytes = bytes.clone();
            let start = Instant::now();
            drop(File::from_bytes(bytes));
            start.elapsed()
        };
        // The machine may be busy: one try of many must be fast.
        let in_time = (0..50).map(time).any(|t| t < Duration::from_millis(millis));
        assert!(in_time, "more than {millis} ms for {} bytes", bytes.len());
    }
}

#[test]
#[cfg(unix)]
fn a_pipe_is_named_and_not_waited_for() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("model.gguf");
    assert!(std::process::Command::new("mkfifo").arg(&path).status()?.success());
    let error = File::open(&path).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("is a pipe, not a model file"), "{error}");
    let error = File::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("is a directory"), "{error}");
    let error = File::open(Path::new("/nonexistent/m.gguf")).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("/nonexistent/m.gguf: cannot open: No such file"), "{error}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several bytes changed, most of them in the header, and sometimes the end cut off.
    #[test]
    fn random_mutations(
        edits in prop::collection::vec((0usize..1300, any::<u8>(), any::<bool>()), 1..12),
        len in prop_oneof![3 => Just(EVERY.len()), 1 => 0..EVERY.len()],
    ) {
        let mut bytes = EVERY.to_vec();
        for (at, value, small) in edits {
            bytes[at] = if small { bytes[at] ^ (1 << (value & 7)) } else { value };
        }
        bytes.truncate(len);
        exercise(bytes);
    }

    /// Any bytes after a good start.
    #[test]
    fn random_bytes(tail in prop::collection::vec(any::<u8>(), 0..300), keys in 0u64..4, tensors in 0u64..4) {
        let mut bytes = header(3, tensors, keys);
        bytes.truncate(24);
        bytes.extend(tail);
        exercise(bytes);
    }
}
