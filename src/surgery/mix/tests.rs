use super::*;
use crate::gguf::write::Writer;
use crate::gguf::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A model without its data, and what `llama-quantize` makes of it.
struct Expected {
    file: File,
    /// By mixture, and whether there is importance data: a type for every tensor but norms.
    mixes: BTreeMap<(String, bool), BTreeMap<String, GgmlType>>,
}

fn ty(name: &str) -> GgmlType {
    (0..64).map(GgmlType).find(|ty| ty.name() == Some(name)).unwrap_or_else(|| panic!("no type {name}"))
}

/// `a*3 b` is a, a, a, b.
fn runs<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let run = |word: &'a str| match word.split_once('*') {
        Some((value, n)) => vec![value; n.parse().expect("a number")],
        None => vec![word],
    };
    words.flat_map(run).collect()
}

fn names(pattern: &str, n: usize) -> Vec<String> {
    (0..n).map(|layer| pattern.replace('*', &layer.to_string())).collect()
}

fn expected(name: &str) -> Expected {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/mixes/{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut writer = Writer::new();
    let mut mixes: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let mut mix = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match (words[0], mix.clone()) {
            ("=", _) => mix = Some((words[1].to_owned(), words.get(2) == Some(&"importance"))),
            (pattern, Some(mix)) => {
                let types = runs(words[1..].iter().copied());
                let types = names(pattern, types.len()).into_iter().zip(types.into_iter().map(ty));
                mixes.entry(mix).or_default().extend(types);
            }
            ("general.architecture", None) => {
                writer.value(words[0], Value::Str(words[1].as_bytes()));
            }
            (key, None) if words.len() == 2 => {
                writer.u32(key, words[1].parse().expect("a number"));
            }
            (pattern, None) => {
                let (dims, types) = (runs(words[1..2].iter().copied()), runs(words[3..].iter().copied()));
                for ((name, dims), was) in names(pattern, dims.len()).iter().zip(dims).zip(types) {
                    let dims: Vec<u64> = dims.split('x').map(|d| d.parse().expect("a number")).collect();
                    writer.tensor(name, &dims, ty(was)).expect("a tensor");
                }
            }
        }
    }
    let mut header = Vec::new();
    drop(writer.begin(&mut header).expect("memory"));
    let file = File::from_map(Map::from_bytes(header), true).expect("a header");
    Expected { file, mixes }
}

#[test]
fn every_tensor_gets_what_llama_quantize_gives_it() {
    for model in ["smollm2", "gemma3", "dense", "experts"] {
        let Expected { file, mixes } = expected(model);
        assert!(mixes.len() >= Mix::all().count(), "{model}");
        for ((name, importance), types) in &mixes {
            let mix = Mix::all().find(|mix| mix.name == name).unwrap_or_else(|| panic!("no mixture {name}"));
            let found = mix.types(&file, None, *importance);
            for (tensor, found) in file.tensors().iter().zip(found) {
                let found = found.map_or(tensor.ty, |[_, ty]| ty);
                let wanted = types.get(&tensor.name).copied().unwrap_or(tensor.ty);
                assert_eq!(found, wanted, "{model}, {name}, importance {importance}: {}", tensor.name);
            }
        }
        // Where importance data changes nothing, it is not in the file.
        for mix in Mix::all().filter(|mix| !mixes.contains_key(&(mix.name.to_owned(), true))) {
            assert_eq!(mix.types(&file, None, true), mix.types(&file, None, false), "{model}, {}", mix.name);
        }
    }
}

#[test]
fn the_head_may_be_given_a_type() {
    for (model, head) in [("gemma3", "token_embd.weight"), ("dense", "output.weight")] {
        let Expected { file, .. } = expected(model);
        for mix in Mix::all() {
            let [with, without] = [Some(T::Q8_0), None].map(|head| mix.types(&file, head, false));
            for ((tensor, with), without) in file.tensors().iter().zip(with).zip(without) {
                let wanted = if tensor.name == head { Some([T::Q8_0; 2]) } else { without };
                assert_eq!(with, wanted, "{model}, {}: {}", mix.name, tensor.name);
            }
        }
    }
}

#[test]
fn rows_of_any_length_have_a_type() {
    for mix in Mix::all() {
        for (columns, block) in [(256, 256), (288, 32), (100, 1)] {
            let ty = fitting(mix.base, columns);
            let known = ty.geometry().is_some_and(|g| g.block <= block);
            assert!(known, "{}: {ty} for rows of {columns}", mix.name);
        }
    }
}

/// A model of these numbers and tensors (name, dimensions), all in F16, without its data.
fn model(arch: &str, numbers: &[(&str, u32)], tensors: &[(String, Vec<u64>)]) -> File {
    let mut writer = Writer::new();
    writer.value("general.architecture", Value::Str(arch.as_bytes()));
    for (key, value) in numbers {
        writer.u32(&format!("{arch}.{key}"), *value);
    }
    for (name, dims) in tensors {
        writer.tensor(name, dims, T::F16).expect("a tensor");
    }
    let mut header = Vec::new();
    drop(writer.begin(&mut header).expect("memory"));
    File::from_map(Map::from_bytes(header), true).expect("a header")
}

/// What a mixture makes of one of its tensors.
fn becomes(file: &File, mix: &str, name: &str) -> Option<GgmlType> {
    let mix = Mix::all().find(|known| known.name == mix).expect("a mixture");
    let at = file.tensors().iter().position(|t| t.name == name).expect("the tensor");
    mix.types(file, None, false)[at].map(|[wished, _]| wished)
}

#[test]
fn layers_are_counted_in_their_own_order() {
    let tensors: Vec<_> = (0..16).map(|l| (format!("blk.{l}.ffn_down.weight"), vec![512u64, 256])).collect();
    let backwards: Vec<_> = tensors.iter().rev().cloned().collect();
    let [one, other] = [tensors, backwards].map(|t| model("llama", &[("block_count", 16)], &t));
    for layer in 0..16 {
        let name = format!("blk.{layer}.ffn_down.weight");
        assert_eq!(becomes(&one, "Q4_K_M", &name), becomes(&other, "Q4_K_M", &name), "{name}");
    }
    // The first two of sixteen, the last two, and every third between.
    let better =
        |layer: i32| becomes(&other, "Q4_K_M", &format!("blk.{layer}.ffn_down.weight")) == Some(T::Q6_K);
    assert_eq!((0..16).filter(|&l| better(l)).collect::<Vec<_>>(), [0, 1, 4, 7, 10, 13, 14, 15]);
}

/// Layers without the matrix count where there are experts, whose layers are those of the names.
#[test]
fn experts_are_of_the_layer_that_their_name_says() {
    let only = "blk.5.ffn_up_exps.weight";
    let with = |experts| {
        let numbers = [("block_count", 16), ("expert_count", experts)];
        becomes(&model("llama", &numbers, &[(only.to_owned(), vec![256, 512, 4])]), "IQ3_XS", only)
    };
    assert_eq!((with(4), with(1)), (Some(T::IQ3_XXS), Some(T::IQ3_S)));
}

#[test]
fn values_of_models_of_80_layers_get_more() {
    let name = "blk.0.attn_v.weight";
    let of = |arch: &str, layers, kv_heads| {
        let numbers =
            [("block_count", layers), ("attention.head_count", 64), ("attention.head_count_kv", kv_heads)];
        becomes(&model(arch, &numbers, &[(name.to_owned(), vec![8192, 1024])]), "Q2_K_S", name)
    };
    assert_eq!(of("llama", 80, 8), Some(T::Q5_K));
    assert_eq!(of("qwen2", 80, 8), Some(T::Q5_K));
    assert_eq!(of("llama", 79, 8), Some(T::Q4_K));
    assert_eq!(of("qwen3", 80, 8), Some(T::Q4_K));
    assert_eq!(of("llama", 80, 64), Some(T::Q2_K));
}

#[test]
fn vectors_stay_what_they_are() {
    let tensors =
        [("rope_freqs.weight".to_owned(), vec![256]), ("blk.0.attn_q.weight".to_owned(), vec![256, 256])];
    let file = model("llama", &[("block_count", 16)], &tensors);
    for mix in Mix::all() {
        assert_eq!(becomes(&file, mix.name, "rope_freqs.weight"), None, "{}", mix.name);
        assert!(becomes(&file, mix.name, "blk.0.attn_q.weight").is_some(), "{}", mix.name);
    }
}
