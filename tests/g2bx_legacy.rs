//! G2BX files of versions 1 to 3: they compute what the GGUF file of the same weights does, and hostile ones are refused.

mod common;

use common::legacy::{Legacy, Slot, crc32};
use common::place::{Place, digest, exercise, good, second_opinion, twinband};
use common::tiny::{Encoded, Plain, Tiny, encode};
use proptest::prelude::*;
use serde_json::Value;
use twinband::g2bx;
use twinband::g2bx::verify::{Checked, verify_bytes};
use twinband::gguf;
use twinband::head::{Engine, EngineOptions};
use twinband::kernel::format::GgmlType;
use twinband::model::Model;

/// One layer, rows of 256 for the formats that need them.
fn old() -> Tiny {
    Tiny::new().with(|t| {
        t.dim = 64;
        t.n_layers = 1;
    })
}

fn legacy(tiny: &Tiny, version: u16) -> Legacy {
    Legacy::of(&gguf::File::from_bytes(tiny.build()).expect("a GGUF"), version)
}

/// Blocks of any bytes around a small scale at each of the places where a block has one.
fn blocks(ty: GgmlType, scales: &'static [usize]) -> impl Fn(&Plain) -> Encoded {
    move |t| {
        if !t.is_matrix() {
            return encode::f32(t);
        }
        let geometry = ty.geometry().expect("a known type");
        let mut bytes: Vec<u8> = (0..t.values.len() / geometry.block * geometry.bytes)
            .map(|i| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(t.values[0].to_bits()) as u64)
            .map(|x| (x >> 13) as u8)
            .collect();
        for block in bytes.chunks_exact_mut(geometry.bytes) {
            for &at in scales {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
            }
        }
        (ty, bytes)
    }
}

fn logits(file: &gguf::File) -> Vec<f32> {
    let model = Model::load(file).expect("a model");
    let options = EngineOptions { ctx: 16, ..EngineOptions::new(&model, 1) };
    let mut engine = Engine::new(model, &options).expect("memory");
    let mut all = Vec::new();
    engine.eval_each(&[1, 20, 300, 7], |_, l| all.extend_from_slice(l)).expect("logits");
    all
}

/// The same names, shapes and bytes as the model that was written has, by a reader that knows the document alone.
#[test]
fn a_reader_written_from_the_document_agrees() {
    let place = Place::new(&old());
    let source = gguf::File::open(&place.source).expect("a GGUF");
    for version in 1..=3 {
        let path = place.path("old.g2bx");
        std::fs::write(&path, legacy(&old(), version).build()).expect("a file");
        let Some(listing) = second_opinion(&path) else { return };
        let listing = listing.expect("a good file");
        assert_eq!(listing["version"], version);
        let tensors = listing["tensors"].as_array().expect("tensors");
        assert_eq!(tensors.len(), source.tensors().len());
        for found in tensors {
            let tensor = source.tensor(found["name"].as_str().expect("a name")).expect("the tensor");
            let dims: Vec<u64> = tensor.dims[..tensor.n_dims].to_vec();
            assert!(found["code"] == tensor.ty.0 && found["dims"] == Value::from(dims), "{found}");
            assert_eq!(found["crc32"], crc32(source.data(tensor).expect("data")), "{found}");
        }
        let tokens = source.meta().strings("tokenizer.ggml.tokens").ok().flatten().expect("tokens");
        assert_eq!(listing["tokenizer"]["tokens"], tokens.len());
    }
}

#[test]
fn old_files_of_every_version_and_type_compute_the_same() {
    let wide = || {
        Tiny::new().n_vocab(301).with(|t| {
            t.dim = 256;
            t.hidden_dim = 256;
            t.n_layers = 1;
            t.head_dim = 64;
        })
    };
    let types: [(GgmlType, &'static [usize]); 20] = [
        (GgmlType::Q4_0, &[0]),
        (GgmlType::Q4_1, &[0, 2]),
        (GgmlType::Q5_0, &[0]),
        (GgmlType::Q5_1, &[0, 2]),
        (GgmlType::Q8_0, &[0]),
        (GgmlType::Q2_K, &[80, 82]),
        (GgmlType::Q3_K, &[108]),
        (GgmlType::Q4_K, &[0, 2]),
        (GgmlType::Q5_K, &[0, 2]),
        (GgmlType::Q6_K, &[208]),
        (GgmlType(16), &[0]),
        (GgmlType(17), &[0]),
        (GgmlType(18), &[0]),
        (GgmlType(19), &[0]),
        (GgmlType::IQ4_NL, &[0]),
        (GgmlType(21), &[0]),
        (GgmlType(22), &[0]),
        (GgmlType::IQ4_XS, &[0]),
        (GgmlType(128), &[0]),
        (GgmlType(129), &[0, 2]),
    ];
    let mut models: Vec<Tiny> = types.into_iter().map(|(ty, at)| wide().format(blocks(ty, at))).collect();
    models.push(wide().format(blocks(GgmlType(130), &[0])));
    models.extend([wide().format(encode::f32), wide().format(encode::f16), wide().format(encode::bf16)]);
    models.push(wide().tied());
    for tiny in models {
        let parent = gguf::File::from_bytes(tiny.build()).expect("a GGUF");
        let expected = logits(&parent);
        for version in 1..=3 {
            let bytes = Legacy::of(&parent, version).build();
            let checked = verify_bytes(bytes.clone()).expect("a good file").checked;
            assert_eq!(checked, if version == 3 { Checked::All } else { Checked::Structure });
            let file = g2bx::from_bytes(bytes).expect("a good file");
            assert_eq!((file.container(), file.version()), (gguf::Container::G2bx, version.into()));
            let ty = file.tensor("blk.0.attn_q.weight").map(|t| t.ty);
            assert!(
                logits(&file).iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ty:?} v{version}"
            );
        }
    }
}

#[test]
fn old_files_of_every_architecture_run() {
    let ones = |n: usize| (0..n).map(|i| 1.0 + (i % 7) as f32 / 16.0).collect::<Vec<_>>();
    let qwen2 = Tiny::new()
        .with(|t| t.arch = "qwen2")
        .put("tokenizer.ggml.pre", |w, k| {
            w.str(k, "qwen2");
        })
        .tensor("blk.0.attn_q.bias", &[64], ones(64))
        .tensor("blk.0.attn_k.bias", &[32], ones(32))
        .tensor("blk.1.attn_v.bias", &[32], ones(32));
    let mut qwen3 = Tiny::new().tied().with(|t| t.arch = "qwen3").put("tokenizer.ggml.pre", |w, k| {
        w.str(k, "qwen2");
    });
    for layer in 0..2 {
        for part in ["q", "k"] {
            qwen3 = qwen3.tensor(&format!("blk.{layer}.attn_{part}_norm.weight"), &[16], ones(16));
        }
    }
    for tiny in [Tiny::new(), qwen2, qwen3] {
        let place = Place::new(&tiny);
        let expected = digest(&place.source);
        let parent = gguf::File::open(&place.source).expect("a GGUF");
        for version in 1..=3 {
            let path = place.path(&format!("v{version}.g2bx"));
            std::fs::write(&path, Legacy::of(&parent, version).build()).expect("a file");
            assert_eq!(digest(&path), expected, "version {version}");
            assert!(good(&twinband(&[&"verify", &path])).contains(&format!("G2BX version {version}")));
            // It can be packed anew and unpacked, and still says the same.
            let (new, plain) =
                (place.path(&format!("{version}.g2bx")), place.path(&format!("{version}.gguf")));
            good(&twinband(&[&"pack", &path, &new]));
            good(&twinband(&[&"unpack", &path, &plain]));
            assert_eq!((digest(&new), digest(&plain)), (expected.clone(), expected.clone()));
        }
    }
}

#[test]
fn old_tokenizers_come_with_their_ids_and_odd_bytes() {
    let parent = gguf::File::from_bytes(Tiny::new().build()).expect("a GGUF");
    let old = Legacy::of(&parent, 2).with(|l| {
        l.tokens[5] = vec![];
        l.tokens[6] = vec![0xff, 0x41];
        l.ids = [3, -1, 9];
    });
    let file = g2bx::from_bytes(old.build()).expect("a good file");
    let tokens: Vec<&[u8]> =
        file.meta().strings("tokenizer.ggml.tokens").ok().flatten().expect("tokens").collect();
    assert_eq!((tokens.len(), tokens[5], tokens[6]), (300, &b""[..], &b"\xff\x41"[..]));
    assert_eq!(file.meta().u64("tokenizer.ggml.bos_token_id").ok(), Some(Some(3)));
    assert_eq!(file.meta().u64("tokenizer.ggml.eos_token_id").ok(), Some(None));
    assert_eq!(file.meta().u64("tokenizer.ggml.unknown_token_id").ok(), Some(Some(9)));
    // Without merges it is no byte-pair vocabulary, and without tokens none at all.
    let spm =
        g2bx::from_bytes(Legacy::of(&parent, 2).with(|l| l.merges.clear()).build()).expect("a good file");
    assert_eq!(spm.meta().str("tokenizer.ggml.model").ok().flatten(), Some("llama"));
    let none =
        g2bx::from_bytes(Legacy::of(&parent, 3).with(|l| l.tokens.clear()).build()).expect("a good file");
    assert!(none.meta().get("tokenizer.ggml.model").is_none());
}

#[test]
fn old_files_that_cannot_be_are_refused() {
    type Change = fn(&mut Legacy);
    let changes: [(Change, &str); 23] = [
        (|l| l.arch = 3, "architecture lfm2 (code 3)"),
        (|l| l.arch = 4, "architecture qwen35 (code 4)"),
        (|l| l.arch = 77, "code 77"),
        (|l| l.flags = 8, "the flags at byte 7 is 8"),
        (|l| l.ints[0] = -64, "the model's dimension at byte 8 is -64: must be from 1 to 65536"),
        (|l| l.ints[0] = 70_000, "the model's dimension"),
        (|l| l.ints[1] = 1 << 21, "the hidden dimension"),
        (|l| l.ints[2] = 1025, "the number of layers"),
        (
            |l| l.ints[4] = 3,
            "the number of key-value heads at byte 24 is 3: must be a divisor of the 4 heads",
        ),
        (|l| l.ints[4] = 0, "the number of key-value heads"),
        (|l| l.ints[5] = i32::MAX, "the vocabulary"),
        (|l| l.ints[6] = 0, "the context"),
        (|l| l.ints[7] = 2000, "the heads' dimension"),
        (|l| l.eps = f32::NAN, "the epsilon of norms"),
        (|l| l.theta = -1.0, "the base of the rotation"),
        (|l| l.slots.clear(), "the number of slots"),
        (|l| l.slots[0].role = 17, "(role 17, layer 65535): no llama or qwen model has such a tensor"),
        (|l| l.slots[0].layer = 0, "belongs to no layer"),
        (|l| l.slots[5].layer = 1, "of a model of 1 layers"),
        (|l| l.slots[0].ty = 24, "type 24 is not known"),
        (|l| l.slots[0].bytes.truncate(100), "the slot has 100"),
        (|l| l.slots.retain(|s| s.role != 2), "neither an output matrix"),
        (|l| l.slots.push(l.slots[3].clone()), "occurs twice"),
    ];
    let tiny = old();
    for version in 1..=3 {
        for (change, expected) in &changes {
            let bytes = legacy(&tiny, version).with(change).build();
            let said = g2bx::from_bytes(bytes).expect_err("it must be refused").to_string();
            assert!(said.contains(expected), "version {version}: expected \"{expected}\" in: {said}");
        }
        let made = legacy(&tiny, version);
        let (table, good) = (made.table_at(), made.build());
        let put = |at: usize, new: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + new.len()].copy_from_slice(new);
            g2bx::from_bytes(bytes).map(drop).expect_err("it must be refused").to_string()
        };
        for (said, expected) in [
            (put(table - 4, &u32::MAX.to_le_bytes()), "from 1 to 1048576"),
            (put(table - 4, &(1u32 << 20).to_le_bytes()), "the table of slots"),
            (put(table + 8, &2u64.to_le_bytes()), "offset 2 is no multiple of 4"),
            (put(table + 8, &(u64::MAX - 3).to_le_bytes()), "truncated"),
            (put(table + 8, &(1u64 << 40).to_le_bytes()), "truncated"),
            (put(table + 4, &u32::MAX.to_le_bytes()), "truncated"),
        ] {
            assert!(said.contains(expected), "expected \"{expected}\" in: {said}");
        }
        // Types 25 to 27 were our own before version 3, and 128 to 130 are since.
        for (ty, name) in [(25, "Q4_0S"), (128, "Q4_0S")] {
            let said = g2bx::from_bytes(legacy(&tiny, version).with(|l| l.slots[0].ty = ty).build())
                .expect_err("rows of 64 are no blocks of 256")
                .to_string();
            let known = (version < 3) == (ty == 25);
            let expected = if known {
                format!("no whole number of {name} blocks")
            } else {
                format!("type {ty} is not known")
            };
            assert!(said.contains(&expected), "{said}");
        }
        // Every cut is an error, but for those that leave old files without a tokenizer.
        let tokenizer =
            good.windows(8).rposition(|w| w == [300u32.to_le_bytes(), 41u32.to_le_bytes()].concat());
        let tokenizer = tokenizer.expect("the tokenizer");
        for end in (0..good.len()).step_by(7).chain(good.len() - 8..good.len()) {
            let opens = g2bx::from_bytes(good[..end].to_vec()).is_ok();
            assert!(
                !opens || version < 3 && (tokenizer - 63..=tokenizer + 20).contains(&end),
                "v{version} cut at {end}"
            );
        }
    }
    // A role from the future is passed over; a flipped bit of version 3 is found by verify alone.
    let future =
        legacy(&tiny, 3).with(|l| l.slots.push(Slot { role: 99, layer: 5, ty: 250, bytes: vec![1; 10] }));
    let mut bytes = future.build();
    assert!(g2bx::from_bytes(bytes.clone()).is_ok() && verify_bytes(bytes.clone()).is_ok());
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    assert!(g2bx::from_bytes(bytes.clone()).is_ok());
    let said = verify_bytes(bytes.clone()).map(drop).expect_err("a flipped bit").to_string();
    assert!(said.contains(&format!("the file (bytes 0 to {}) is damaged", bytes.len() - 8)), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn old_files_made_to_hurt(
        version in 1u16..4,
        changes in prop::collection::vec((4usize..800, any::<u8>()), 1..4),
        end in 0usize..40_000,
    ) {
        let mut bytes = legacy(&old(), version).build();
        for (at, value) in changes {
            bytes[at] = value;
        }
        exercise(bytes.clone());
        bytes.truncate(end);
        exercise(bytes);
    }
}
