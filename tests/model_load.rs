//! What a model file may lack or ask for, and what is said about it.

mod common;

use common::tiny::{Tiny, encode};
use twinband::gguf::File;
use twinband::head::{Engine, EngineOptions};
use twinband::kernel::format::GgmlType;
use twinband::model::{EvalError, KvType, Model, StateError};

fn load_error(tiny: &Tiny) -> String {
    let file = File::from_bytes(tiny.build()).expect("a GGUF");
    match Model::load(&file) {
        Ok(_) => panic!("it loads"),
        Err(e) => e.to_string(),
    }
}

/// The logits at every position for ten tokens.
fn logits(tiny: &Tiny) -> Vec<Vec<f32>> {
    let file = File::from_bytes(tiny.build()).expect("a GGUF");
    let model = Model::load(&file).expect("a model");
    let options = EngineOptions { ctx: 16, exact: true, ..EngineOptions::new(&model, 1) };
    let mut engine = Engine::new(model, &options).expect("memory");
    let mut all = Vec::new();
    let ids: Vec<u32> = (0..10).map(|i| (i * 7) % 250).collect();
    engine.eval_each(&ids, |_, l| all.push(l.to_vec())).expect("logits");
    all
}

#[test]
fn architectures_and_keys_are_refused_by_name() {
    let arch = Tiny::new().put("general.architecture", |w, k| {
        w.str(k, "qwen9moe");
    });
    let said = load_error(&arch);
    assert!(said.contains("'qwen9moe'") && said.contains("llama, mistral3, qwen2, qwen3, gemma3"), "{said}");
    let rope = Tiny::new().put("llama.rope.scaling.type", |w, k| {
        w.str(k, "longrope");
    });
    let said = load_error(&rope);
    assert!(said.contains("llama.rope.scaling.type") && said.contains("longrope"), "{said}");
    for (key, value) in [
        ("llama.logit_scale", 0.25),
        ("llama.attn_logit_softcapping", 20.0),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.attention.temperature_scale", 0.1),
        ("llama.residual_scale", 0.5),
    ] {
        let said = load_error(&Tiny::new().put(key, move |w, k| {
            w.f32(k, value);
        }));
        assert!(said.contains(key) && said.contains(&value.to_string()), "{said}");
    }
    let experts = Tiny::new().put("llama.expert_count", |w, k| {
        w.u32(k, 8);
    });
    assert!(load_error(&experts).contains("llama.expert_count is 8"));
    let none = Tiny::new().without_key("llama.attention.layer_norm_rms_epsilon");
    assert!(load_error(&none).contains("llama.attention.layer_norm_rms_epsilon is missing"));
}

#[test]
fn tensors_are_checked_one_by_one() {
    let said =
        load_error(&Tiny::new().without_tensor("blk.1.ffn_up.weight").without_tensor("output_norm.weight"));
    assert!(said.contains("output_norm.weight, blk.1.ffn_up.weight"), "{said}");
    let said = load_error(&Tiny::new().tensor("blk.0.attn_k.weight", &[64, 7], vec![0.0; 64 * 7]));
    assert!(said.contains("blk.0.attn_k.weight has shape [64, 7], must be [64, "), "{said}");
    let said =
        load_error(&Tiny::new().raw_tensor("blk.0.attn_q.weight", &[64, 64], GgmlType(24), vec![0; 64 * 64]));
    assert!(said.contains("blk.0.attn_q.weight has type I8"), "{said}");
    let said = load_error(&Tiny::new().format(encode::f32).with(|t| t.seed = 3).tensor(
        "rope_freqs.weight",
        &[8],
        vec![0.0; 8],
    ));
    assert!(said.contains("rope_freqs.weight: element 0 is 0"), "{said}");
}

#[test]
fn tensors_that_nothing_needs_are_named_once() {
    let tiny =
        Tiny::new().tensor("blk.0.new.weight", &[64], vec![1.0; 64]).tensor("other", &[64], vec![1.0; 64]);
    let file = File::from_bytes(tiny.build()).expect("a GGUF");
    let model = Model::load(&file).expect("a model");
    assert_eq!(model.warnings.len(), 1);
    assert!(model.warnings[0].contains("blk.0.new.weight, other"), "{:?}", model.warnings);
}

#[test]
fn rope_factors_of_one_change_nothing_and_larger_ones_only_later_positions() {
    let plain = logits(&Tiny::new());
    assert_eq!(logits(&Tiny::new().tensor("rope_freqs.weight", &[8], vec![1.0; 8])), plain);
    let slow = logits(&Tiny::new().tensor("rope_freqs.weight", &[8], vec![8.0; 8]));
    assert_eq!(slow[0], plain[0]);
    assert!(slow[1..].iter().zip(&plain[1..]).all(|(a, b)| a != b));
}

#[test]
fn linear_scaling_by_two_halves_the_positions() {
    let scaled = |by: f32| {
        logits(&Tiny::new().put("llama.rope.scaling.factor", move |w, k| {
            w.f32(k, by);
        }))
    };
    let plain = logits(&Tiny::new());
    assert_eq!(scaled(1.0), plain);
    assert_eq!(scaled(2.0)[0], plain[0]);
    assert_ne!(scaled(2.0)[5], plain[5]);
    // The same as factors of two in a tensor.
    assert_eq!(scaled(2.0), logits(&Tiny::new().tensor("rope_freqs.weight", &[8], vec![2.0; 8])));
}

#[test]
fn the_head_may_be_the_embedding_whatever_its_type() {
    for format in [encode::f32, encode::f16, encode::bf16, encode::q8_0, encode::q4_0] {
        let all = logits(&Tiny::new().tied().format(format));
        assert!(all.iter().flatten().all(|x| x.is_finite()));
        assert_eq!(all[0].len(), 300);
    }
}

#[test]
fn an_embedding_may_be_longer_than_the_vocabulary_but_not_shorter() {
    let tokens = |n: usize| {
        Tiny::new().put("tokenizer.ggml.tokens", move |w, k| {
            let names: Vec<String> = (0..n).map(|i| format!("t{i}")).collect();
            w.strings(k, &names);
        })
    };
    assert_eq!(logits(&tokens(293))[0].len(), 300);
    let said = load_error(&tokens(301));
    assert!(said.contains("300 rows for a vocabulary of 301"), "{said}");
}

#[test]
fn bad_requests_are_errors_and_leave_the_state_as_it_was() {
    let file = File::from_bytes(Tiny::new().build()).expect("a GGUF");
    let model = Model::load(&file).expect("a model");
    let options = EngineOptions { ctx: 4, ..EngineOptions::new(&model, 2) };
    let no_ctx = Engine::plan(&model.outline, &EngineOptions { ctx: 0, ..options });
    assert!(matches!(no_ctx, Err(StateError::Context { ctx: 0, .. })));
    let too_much = Engine::plan(&model.outline, &EngineOptions { ctx: usize::MAX, ..options });
    assert!(matches!(too_much, Err(StateError::Context { .. })));
    let mut engine = Engine::new(model, &options).expect("memory");
    assert_eq!(engine.logits().err(), Some(EvalError::NoToken));
    engine.eval(&[1, 2, 3]).expect("tokens");
    assert_eq!(engine.eval(&[300]), Err(EvalError::Token { id: 300, vocab: 300 }));
    assert_eq!(engine.eval(&[1, 2]), Err(EvalError::ContextFull { asked: 2, position: 3, ctx: 4 }));
    assert_eq!(engine.position(), 3);
    engine.eval(&[5]).expect("the last that fits");
}

#[test]
fn memory_of_the_cache_follows_from_its_type() {
    let of = |head_dim: u64, kv: KvType| {
        let file = File::from_bytes(Tiny::new().with(|t| t.head_dim = head_dim).build()).expect("a GGUF");
        let model = Model::load(&file).expect("a model");
        let options = EngineOptions { ctx: 100, kv, ..EngineOptions::new(&model, 1) };
        Engine::plan(&model.outline, &options).map(|plan| plan.kv_bytes)
    };
    // 2 layers, 100 positions, 2 heads of 64 numbers: 4 blocks of keys and as many of values.
    let position =
        [(KvType::F32, 8 * 128), (KvType::F16, 4 * 128), (KvType::Q8, 8 * 34), (KvType::K8V4, 4 * (34 + 18))];
    for (kv, bytes) in position {
        assert_eq!(of(64, kv), Ok(200 * bytes), "{kv:?}");
    }
    for kv in [KvType::Q8, KvType::K8V4] {
        assert_eq!(of(48, kv), Err(StateError::Heads { len: 48, block: 32 }));
    }
}

#[test]
fn memory_that_cannot_be_had_is_an_error() {
    let file = File::from_bytes(Tiny::new().build()).expect("a GGUF");
    let model = Model::load(&file).expect("a model");
    let options = EngineOptions { ctx: 1 << 45, ..EngineOptions::new(&model, 1) };
    assert!(Engine::plan(&model.outline, &options).is_ok());
    let Err(error) = Engine::new(model, &options) else { panic!("a petabyte") };
    assert!(error.to_string().contains("no memory for"), "{error}");
}

#[test]
fn a_weight_that_is_not_finite_is_reported_with_its_place() {
    let nan = |t: &common::tiny::Plain| {
        let mut values =
            common::tiny::Plain { name: t.name.clone(), dims: t.dims.clone(), values: t.values.clone() };
        if t.name == "blk.1.attn_v.weight" {
            values.values[70] = f32::NAN;
        }
        encode::f32(&values)
    };
    let file = File::from_bytes(Tiny::new().format(nan).build()).expect("a GGUF");
    for exact in [false, true] {
        let model = Model::load(&file).expect("a model");
        let options = EngineOptions { exact, ..EngineOptions::new(&model, 2) };
        let mut engine = Engine::new(model, &options).expect("memory");
        let error = engine.eval(&[1, 2]).expect_err("a NaN");
        assert_eq!(error, EvalError::NonFinite { position: 0, layer: Some(1), place: "attention" });
        assert_eq!(engine.position(), 0);
        assert!(error.to_string().contains("attention of position 0 in layer 1"), "{error}");
    }
}
