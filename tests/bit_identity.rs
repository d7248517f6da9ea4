//! One answer everywhere: the bits of a logit do not depend on how tokens are cut into batches, on the number of
//! threads or on the instruction set.

mod common;

use common::golden::{self, ARCHS, ids, json};
use common::tiny::{Encoded, Plain, Tiny, encode};
use twinband::gguf::File;
use twinband::head::{Engine, EngineOptions};
use twinband::kernel::isa::Isa;
use twinband::model::{KvType, Model};

/// One way to run a model.
#[derive(Clone, Copy, Debug)]
struct Way {
    isa: Isa,
    threads: usize,
    /// Tokens computed at once.
    batch: usize,
}

/// The bits of the logits at every position.
fn bits(file: &File, exact: bool, kv: KvType, way: Way, ids: &[u32]) -> Vec<Vec<u32>> {
    let model = Model::load(file).expect("a model");
    let Way { isa, threads, batch } = way;
    let options = EngineOptions { ctx: ids.len(), kv, exact, threads, batch, isa };
    let mut engine = Engine::new(model, &options).expect("memory");
    let mut all = Vec::new();
    engine
        .eval_each(ids, |_, logits| all.push(logits.iter().map(|x| x.to_bits()).collect()))
        .expect("logits");
    all
}

/// The definition: scalar code, one thread, one token at a time.
const DEFINITION: Way = Way { isa: Isa::Scalar, threads: 1, batch: 1 };

fn same_in_every_way(name: &str, file: &File, kv: KvType, exact: bool, ways: &[Way], ids: &[u32]) {
    let want = bits(file, exact, kv, DEFINITION, ids);
    for &way in ways {
        let got = bits(file, exact, kv, way, ids);
        for (position, (got, want)) in got.iter().zip(&want).enumerate() {
            let first = got.iter().zip(want).position(|(g, w)| g != w);
            assert_eq!(first, None, "{name}, {kv:?}, exact {exact}, {way:?}: position {position}");
        }
    }
}

#[test]
fn tiny_models_of_every_architecture() {
    let ids = ids(&json("archs/archs.json")["tokens"]);
    for name in ARCHS {
        let file = golden::arch(name);
        for kv in [KvType::F16, KvType::F32, KvType::Q8, KvType::K8V4] {
            let mut ways = Vec::new();
            for isa in Isa::all() {
                let all = [(1, 64), (2, 3), (3, 7), (2, 64), (3, 1), (1, 1)];
                // Enough for types that differ in how numbers are stored and read only.
                let some = if matches!(kv, KvType::F16 | KvType::F32) { &all[..] } else { &all[..3] };
                for &(threads, batch) in some {
                    ways.push(Way { isa, threads, batch });
                }
            }
            same_in_every_way(name, &file, kv, false, &ways, &ids);
        }
    }
}

#[test]
fn int8_models_with_an_odd_vocabulary() {
    let ids: Vec<u32> = (0..40).map(|i| (i * 97) % 1003).collect();
    type Format = fn(&Plain) -> Encoded;
    let formats: [(&str, Format); 2] = [("Q8_0", encode::q8_0), ("Q4_0", encode::q4_0)];
    for (name, format) in formats {
        let file = File::from_bytes(Tiny::new().n_vocab(1003).format(format).build()).expect("a GGUF");
        let mut ways = Vec::new();
        for isa in Isa::all() {
            for (threads, batch) in [(1, 40), (2, 1), (2, 7), (3, 64), (16, 3)] {
                ways.push(Way { isa, threads, batch });
            }
        }
        same_in_every_way(name, &file, KvType::F16, false, &ways, &ids);
    }
}

#[test]
fn real_models() {
    for (name, file, prompt) in [("smollm2-135m", "smollm2.gguf", 12), ("gemma3-270m", "gemma3.gguf", 11)] {
        let Some(file) = golden::model(file) else { continue };
        let ids = ids(&json(&format!("real/{name}.f32.json"))[prompt]["tokens"]);
        let fast = Isa::detect();
        let int8 = [
            Way { isa: fast, threads: 1, batch: 1 },
            Way { isa: fast, threads: 2, batch: 3 },
            Way { isa: fast, threads: 2, batch: 64 },
            Way { isa: fast, threads: 3, batch: 7 },
        ];
        for kv in [KvType::F16, KvType::F32, KvType::Q8, KvType::K8V4] {
            same_in_every_way(name, &file, kv, false, &int8, &ids[..ids.len().min(16)]);
        }
        let exact = [Way { isa: fast, threads: 2, batch: 3 }, Way { isa: fast, threads: 2, batch: 64 }];
        same_in_every_way(name, &file, KvType::F16, true, &exact, &ids[..6]);
    }
}

#[test]
fn a_prefix_that_is_kept_gives_the_bits_of_one_that_is_computed_again() {
    let ids = ids(&json("archs/archs.json")["tokens"]);
    for name in ARCHS {
        let file = golden::arch(name);
        let model = Model::load(&file).expect("a model");
        let options = EngineOptions { ctx: 64, ..EngineOptions::new(&model, 2) };
        let mut engine = Engine::new(model, &options).expect("memory");
        engine.eval(&ids).expect("tokens");
        let want = engine.logits().expect("logits").to_vec();
        engine.truncate(20);
        assert!(engine.logits().is_err(), "the last token was forgotten");
        // Other tokens in between leave no trace.
        engine.eval(&ids[..30]).expect("tokens");
        engine.truncate(20);
        engine.eval(&ids[20..]).expect("tokens");
        assert_eq!(engine.position(), 64);
        assert_eq!(engine.logits().expect("logits"), want, "{name}");
    }
}
