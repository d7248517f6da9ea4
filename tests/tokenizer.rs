//! Token ids against the reference's, for every kind of vocabulary.

use std::path::{Path, PathBuf};
use std::time::Instant;

use twinband::gguf::File;
use twinband::tokenizer::{Options, Special, Tokenizer};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn load(path: &Path) -> Result<Tokenizer, Box<dyn std::error::Error>> {
    Ok(Tokenizer::from_gguf(File::open(path)?.meta(), &Options::default())?)
}

/// Texts and the ids the reference gives for them.
fn pairs(texts: &str, ids: &str) -> Vec<(String, Vec<u32>)> {
    let ids = ids.lines().map(|l| l.split_whitespace().map(|n| n.parse().expect("an id")).collect());
    texts.split(SEPARATOR).map(str::to_owned).zip(ids).collect()
}

fn full(name: &str) -> Option<Vec<PathBuf>> {
    let Some(dir) = std::env::var_os(name) else {
        eprintln!("skipped: {name} is not set");
        return None;
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(Path::new(&dir).join("tokenizer"))
        .expect("the folder named exists")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    files.sort();
    Some(files)
}

#[test]
fn whole_vocabularies() -> Outcome {
    let Some(files) = full("TWINBAND_GOLDEN") else { return Ok(()) };
    let mut wrong = Vec::new();
    for path in files {
        let start = Instant::now();
        let tokenizer = load(&path)?;
        let took = start.elapsed();
        let side = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display()));
        let pairs = pairs(&side("inp")?, &side("out")?);
        println!("{} {} texts, loaded in {took:?} {:?}", path.display(), pairs.len(), tokenizer.warnings());
        for (text, ids) in pairs {
            let got = tokenizer.encode(&text, Special::Ignore);
            if got != ids {
                wrong.push(format!("{}: {text:?}\n  {got:?}\n  {ids:?}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
