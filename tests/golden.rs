//! Logits against those of an independent implementation.

mod common;

use common::golden::{self, ARCHS, floats, ids, json, numbers};
use std::path::Path;
use twinband::gguf::File;
use twinband::head::{Engine, EngineOptions, argmax};
use twinband::model::{KvType, Model};

/// What the exact path may differ by, as a part of the position's largest logit.
const EXACT: f32 = 1e-4;

/// Up to the first margin below this the int8 path must say what the oracle says.
const MARGIN: f64 = 0.3;

fn engine(file: &File, exact: bool) -> Engine<'_> {
    let model = Model::load(file).expect("a model");
    let options = EngineOptions { kv: KvType::F32, exact, ..EngineOptions::new(&model, 2) };
    Engine::new(model, &options).expect("memory")
}

fn all_logits(engine: &mut Engine<'_>, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    engine.truncate(0);
    engine.eval_each(ids, |_, logits| all.push(logits.to_vec())).expect("logits");
    all
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

#[test]
fn every_architecture_agrees_with_the_reference() {
    let index = json("archs/archs.json");
    let ids = ids(&index["tokens"]);
    for name in ARCHS {
        let file = golden::arch(name);
        let want = floats(&format!("archs/{name}.logits.f32"));
        let got = all_logits(&mut engine(&file, true), &ids);
        let best = numbers(&index["models"][name]["argmax"]);
        assert_eq!(got.len(), best.len());
        for (position, (got, want)) in got.iter().zip(want.chunks(128)).enumerate() {
            let largest = largest_difference(want, &[0.0; 128]);
            let error = largest_difference(got, want) / largest;
            assert!(error <= EXACT, "{name}, position {position}: off by {error} of the largest logit");
            assert_eq!(argmax(got), best[position], "{name}, position {position}");
        }
    }
}

/// A real model and what is known of it.
struct Real {
    name: &'static str,
    file: &'static str,
    /// What the exact path may differ by, as a part of the position's largest logit. The reference rounds GELU to f16, and
    /// with that rounding one changed bit anywhere moves Gemma's logits by some 3e-4: its oracle is no closer to itself.
    exact: f32,
    /// Positions, over all prompts, where the reference's int8 activations change the most likely token.
    reference_flips: usize,
}

const REAL: [Real; 2] = [
    Real { name: "smollm2-135m", file: "smollm2.gguf", exact: EXACT, reference_flips: 5 },
    Real { name: "gemma3-270m", file: "gemma3.gguf", exact: 1e-3, reference_flips: 3 },
];

/// One prompt of the golden data.
struct Prompt {
    tokens: Vec<u32>,
    argmax: Vec<usize>,
    last_top: Vec<(usize, f32)>,
    /// Id and margin over the second.
    greedy: Vec<(u32, f64)>,
}

fn prompts(name: &str) -> Vec<Prompt> {
    let all = json(&format!("real/{name}.f32.json"));
    let number = |v: &serde_json::Value| v.as_f64().expect("a number");
    let prompt = |p: &serde_json::Value| Prompt {
        tokens: ids(&p["tokens"]),
        argmax: numbers(&p["argmax"]),
        last_top: (p["last_top"].as_array().expect("an array").iter())
            .map(|pair| (number(&pair[0]) as usize, number(&pair[1]) as f32))
            .collect(),
        greedy: (p["greedy"].as_array().expect("an array").iter())
            .map(|g| (number(&g["id"]) as u32, number(&g["margin"])))
            .collect(),
    };
    all.as_array().expect("prompts").iter().map(prompt).collect()
}

/// What is known of the logits of the first prompt.
struct First {
    columns: Vec<usize>,
    oracle: Vec<Vec<f32>>,
    as_is: Vec<Vec<f32>>,
    oracle_lse: Vec<f64>,
    as_is_lse: Vec<f64>,
    oracle_max: Vec<f64>,
}

impl First {
    /// All columns if `TWINBAND_GOLDEN` names the folder that the committed data was cut from.
    fn read(name: &str) -> Self {
        let mut first = Self::read_columns(name);
        if let Some(folder) = std::env::var_os("TWINBAND_GOLDEN") {
            let vocab = json("real/prompt0.json")[name]["vocab"].as_u64().expect("a number") as usize;
            let rows = |kind: &str| -> Vec<Vec<f32>> {
                let path = Path::new(&folder).join(format!("real/{name}.{kind}.prompt0.f32"));
                let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                let numbers: Vec<f32> =
                    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
                numbers.chunks(vocab).map(<[f32]>::to_vec).collect()
            };
            (first.oracle, first.as_is) = (rows("f32"), rows("as-is"));
            first.columns = (0..vocab).collect();
        }
        first
    }

    fn read_columns(name: &str) -> Self {
        let columns: Vec<usize> =
            (golden::bytes(&format!("real/{name}.columns.u32")).as_chunks::<4>().0.iter())
                .map(|&b| u32::from_le_bytes(b) as usize)
                .collect();
        let rows = |kind: &str| -> Vec<Vec<f32>> {
            floats(&format!("real/{name}.{kind}.f32")).chunks(columns.len()).map(<[f32]>::to_vec).collect()
        };
        let whole = &json("real/prompt0.json")[name];
        let list = |key: &str| -> Vec<f64> {
            whole[key].as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        Self {
            oracle: rows("oracle"),
            as_is: rows("as-is"),
            oracle_lse: list("oracle_lse"),
            as_is_lse: list("as_is_lse"),
            oracle_max: list("oracle_max"),
            columns,
        }
    }

    fn cut(&self, logits: &[f32]) -> Vec<f32> {
        self.columns.iter().map(|&c| logits[c]).collect()
    }

    /// Distance of logits (at the columns) from the oracle's.
    fn distance(&self, rows: &[Vec<f32>], lse: &[f64]) -> Distance {
        let n = rows.len() as f64;
        let mut d = Distance { cosine: 0.0, largest: 0.0, kld: 0.0 };
        for (i, (row, oracle)) in rows.iter().zip(&self.oracle).enumerate() {
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            d.cosine += dot(row, oracle) / (dot(row, row) * dot(oracle, oracle)).sqrt() / n;
            d.largest = d.largest.max(largest_difference(row, oracle));
            let (mut p_rest, mut q_rest) = (1.0, 1.0);
            for (q, p) in row.iter().zip(oracle) {
                let (log_p, log_q) = (f64::from(*p) - self.oracle_lse[i], f64::from(*q) - lse[i]);
                d.kld += log_p.exp() * (log_p - log_q) / n;
                p_rest -= log_p.exp();
                q_rest -= log_q.exp();
            }
            // The columns we do not have count as one token.
            if p_rest > 1e-9 && q_rest > 1e-9 {
                d.kld += p_rest * (p_rest / q_rest).ln() / n;
            }
        }
        d
    }
}

#[derive(Debug)]
struct Distance {
    /// Mean over positions.
    cosine: f64,
    /// Largest difference of a logit.
    largest: f32,
    /// Mean Kullback-Leibler divergence.
    kld: f64,
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits[argmax(logits)]);
    max + logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

/// Greedy tokens until the first that is not the oracle's, and the least margin of those that are and of that one.
fn greedy(engine: &mut Engine<'_>, prompt: &Prompt) -> (usize, f64) {
    engine.truncate(0);
    engine.eval(&prompt.tokens).expect("a prompt");
    let mut least = f64::INFINITY;
    for (i, &(id, margin)) in prompt.greedy.iter().enumerate() {
        least = least.min(margin);
        if argmax(engine.logits().expect("logits")) != id as usize {
            return (i, least);
        }
        engine.eval(&[id]).expect("a token");
    }
    (prompt.greedy.len(), least)
}

#[test]
fn the_exact_path_agrees_with_the_oracle_on_real_models() {
    for Real { name, file, exact, .. } in REAL {
        let Some(file) = golden::model(file) else { continue };
        let mut engine = engine(&file, true);
        let first = First::read(name);
        for (i, prompt) in prompts(name).iter().enumerate() {
            let got = all_logits(&mut engine, &prompt.tokens);
            let best: Vec<usize> = got.iter().map(|l| argmax(l)).collect();
            assert_eq!(best, prompt.argmax, "{name}, prompt {i}");
            let last = got.last().expect("a position");
            let largest = prompt.last_top[0].1.abs();
            for &(id, logit) in &prompt.last_top {
                assert!(
                    (last[id] - logit).abs() <= exact * largest,
                    "{name}, prompt {i}: {id} has {}",
                    last[id]
                );
            }
            if i == 0 {
                for (position, got) in got.iter().enumerate() {
                    let error = largest_difference(&first.cut(got), &first.oracle[position]);
                    let bound = f64::from(exact) * first.oracle_max[position];
                    assert!(f64::from(error) <= bound, "{name}, position {position}: off by {error}");
                }
            }
        }
        // Two continuations are enough here: each token costs as much as the model is large.
        for (i, prompt) in prompts(name).iter().enumerate().take(2) {
            let (same, least) = greedy(&mut engine, prompt);
            assert!(same == prompt.greedy.len() || least < 1e-3, "{name}, prompt {i}: differs at {same}");
        }
    }
}

#[test]
fn the_int8_path_is_as_close_to_the_oracle_as_the_reference() {
    for Real { name, file, reference_flips, .. } in REAL {
        let Some(file) = golden::model(file) else { continue };
        let mut engine = engine(&file, false);
        let first = First::read(name);
        let mut flips = 0;
        for (i, prompt) in prompts(name).iter().enumerate() {
            let got = all_logits(&mut engine, &prompt.tokens);
            flips += got.iter().zip(&prompt.argmax).filter(|(l, best)| argmax(l) != **best).count();
            if i == 0 {
                let rows: Vec<Vec<f32>> = got.iter().map(|l| first.cut(l)).collect();
                let lse: Vec<f64> = got.iter().map(|l| log_sum_exp(l)).collect();
                let ours = first.distance(&rows, &lse);
                let reference = first.distance(&first.as_is, &first.as_is_lse);
                println!("{name}: {ours:?}, the reference {reference:?}");
                assert!(ours.cosine >= reference.cosine, "{name}: {ours:?}, the reference {reference:?}");
                assert!(ours.largest <= reference.largest, "{name}: {ours:?}, the reference {reference:?}");
                assert!(ours.kld <= reference.kld, "{name}: {ours:?}, the reference {reference:?}");
            }
            let (same, least) = greedy(&mut engine, prompt);
            assert!(
                same == prompt.greedy.len() || least < MARGIN,
                "{name}, prompt {i}: differs at token {same}, all margins to there are at least {least}"
            );
        }
        println!("{name}: {flips} flips, the reference has {reference_flips}");
        assert!(flips <= reference_flips, "{name}: {flips} flips, the reference has {reference_flips}");
    }
}
