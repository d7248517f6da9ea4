//! The tiny model that other tests use is what it claims to be.

mod common;

use common::tiny::{EOS, Tiny, encode};
use twinband::gguf::File;
use twinband::kernel::format::GgmlType;
use twinband::tokenizer::{Options, Special, Tokenizer};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[test]
fn is_small_and_always_the_same() -> Outcome {
    let bytes = Tiny::new().build();
    assert!(bytes.len() < 300_000, "{}", bytes.len());
    assert!(bytes == Tiny::new().build());
    assert!(bytes != Tiny::new().with(|t| t.seed = 2).build());
    let file = File::from_bytes(bytes)?;
    assert_eq!(file.meta().u64("llama.block_count")?, Some(2));
    assert_eq!(file.meta().strings("tokenizer.ggml.tokens")?.map(|t| t.len()), Some(300));
    let output = file.tensor("output.weight").ok_or("no head")?;
    assert_eq!((output.dims, output.ty), ([64, 300, 1, 1], GgmlType::Q8_0));
    Ok(())
}

#[test]
fn knobs() -> Outcome {
    let model = Tiny::new()
        .n_vocab(1003)
        .tied()
        .format(encode::f16)
        .put("llama.block_count", |w, key| {
            w.str(key, "two");
        })
        .put("new.key", |w, key| {
            w.u32(key, 9);
        })
        .without_key("tokenizer.chat_template")
        .without_tensor("blk.1.ffn_up.weight")
        .tensor("rope_freqs.weight", &[8], vec![1.0; 8])
        .raw_tensor("blk.0.attn_q.weight", &[256], GgmlType::Q6_K, vec![0; 210]);
    let file = File::from_bytes(model.build())?;
    assert_eq!(file.meta().str("llama.block_count")?, Some("two"));
    assert_eq!(file.meta().u32("new.key")?, Some(9));
    assert!(file.meta().get("tokenizer.chat_template").is_none());
    assert_eq!(file.meta().strings("tokenizer.ggml.merges")?.map(|m| m.len()), Some(1003 - 259));
    assert!(file.tensor("output.weight").is_none() && file.tensor("blk.1.ffn_up.weight").is_none());
    assert_eq!(file.tensor("token_embd.weight").map(|t| t.dims[1]), Some(1003));
    assert_eq!(file.tensor("rope_freqs.weight").map(|t| t.ty), Some(GgmlType::F16));
    assert_eq!(file.tensor("blk.0.attn_q.weight").map(|t| t.ty), Some(GgmlType::Q6_K));
    Ok(())
}

#[test]
fn the_tokenizer_is_a_real_one() -> Outcome {
    for model in [Tiny::new(), Tiny::new().n_vocab(1003)] {
        let tokenizer = Tokenizer::from_gguf(File::from_bytes(model.build())?.meta(), &Options::default())?;
        assert_eq!(tokenizer.n_vocab(), model.n_vocab);
        let pieces = |text: &str| -> Vec<String> {
            let ids = tokenizer.encode(text, Special::Parse);
            ids.iter().map(|&id| String::from_utf8_lossy(&tokenizer.piece_special(id)).into_owned()).collect()
        };
        assert_eq!(pieces("hello the"), ["hello", " the"]);
        assert_eq!(pieces("<|im_start|>\u{fc}"), ["<|im_start|>", "\u{fffd}", "\u{fffd}"]);
        assert_eq!(tokenizer.eos(), tokenizer.special(EOS));
    }
    Ok(())
}

#[test]
fn every_merge_makes_a_token_of_two() {
    for n in [300, 1003] {
        let tokens = Tiny::new().n_vocab(n).tokens();
        let unique: std::collections::HashSet<_> = tokens.iter().collect();
        assert_eq!(unique.len(), n, "tokens must differ");
        assert_eq!((tokens[b'A' as usize].as_str(), tokens[b' ' as usize].as_str()), ("A", "Ġ"));
    }
}
