//! Token ids against those of llama.cpp, for every kind of vocabulary (tests/data/tokenizer says where they are from).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use twinband::gguf::File;
use twinband::gguf::write::Writer;
use twinband::tokenizer::{Options, Special, Tokenizer};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// With test texts of llama.cpp's own.
const VOCABULARIES: [&str; 14] = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];
const MODELS: [&str; 2] = ["smollm2", "gemma3"];

fn all() -> impl Iterator<Item = &'static str> {
    VOCABULARIES.into_iter().chain(MODELS)
}

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The arrays and keys of a vocabulary, to be written to a file whole or spoilt.
struct Parts {
    strings: Vec<(String, Vec<String>)>,
    scores: Option<Vec<f32>>,
    types: Option<Vec<i32>>,
    keys: Vec<(String, Json)>,
}

impl Parts {
    /// A vocabulary of tests/data/tokenizer; tokens that are left out there are empty.
    fn of(name: &str) -> Self {
        let json: Json = serde_json::from_str(&data(&format!("{name}.json"))).expect("JSON");
        let list = |key: &str| json[key].as_array().map_or(&[][..], Vec::as_slice);
        let n = json["n_tokens"].as_u64().expect("a number") as usize;
        let mut at = 0;
        let ids: Vec<usize> = list("ids")
            .iter()
            .map(|step| {
                at += step.as_u64().expect("a number") as usize;
                at
            })
            .collect();
        let text = |value: &Json| value.as_str().expect("a string").to_owned();
        let mut tokens = vec![String::new(); n];
        for (&id, token) in ids.iter().zip(list("tokens")) {
            tokens[id] = text(token);
        }
        let mut types = vec![1; n];
        for (id, ty) in json["types"].as_object().expect("an object") {
            types[id.parse::<usize>().expect("an id")] = ty.as_i64().expect("a number") as i32;
        }
        let scores = json["scores"].is_array().then(|| {
            let mut scores = vec![0.0; n];
            for (&id, score) in ids.iter().zip(list("scores")) {
                scores[id] = score.as_f64().expect("a number") as f32;
            }
            scores
        });
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let mut strings = vec![(key("tokens"), tokens)];
        if json["merges"].is_array() {
            strings.push((key("merges"), list("merges").iter().map(text).collect()));
        }
        let mut keys: Vec<(String, Json)> =
            ["model", "pre", "add_bos_token", "add_eos_token", "add_space_prefix"]
                .iter()
                .filter_map(|k| Some((key(k), json.get(*k)?.clone())))
                .collect();
        keys.extend(json["roles"].as_object().expect("an object").clone());
        Self { strings, scores, types: Some(types), keys }
    }

    fn set(mut self, key: &str, value: impl Into<Json>) -> Self {
        self = self.without(key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    fn without(mut self, key: &str) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self.strings.retain(|(k, _)| k != key);
        self.types = self.types.filter(|_| key != "tokenizer.ggml.token_type");
        self.scores = self.scores.filter(|_| key != "tokenizer.ggml.scores");
        self
    }

    fn file(&self) -> File {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            match value {
                Json::Bool(v) => writer.bool(key, *v),
                Json::String(v) => writer.str(key, v),
                Json::Number(v) if v.is_i64() && v.as_u64().is_none() => {
                    writer.value(key, twinband::gguf::Value::I64(v.as_i64().unwrap_or(0)))
                }
                v => writer.value(key, twinband::gguf::Value::U64(v.as_u64().expect("a count"))),
            };
        }
        for (key, values) in &self.strings {
            writer.strings(key, values);
        }
        if let Some(types) = &self.types {
            writer.i32s("tokenizer.ggml.token_type", types);
        }
        if let Some(scores) = &self.scores {
            writer.f32s("tokenizer.ggml.scores", scores);
        }
        let bytes = writer.begin(Vec::new()).and_then(|w| w.finish()).expect("writes to memory");
        File::from_bytes(bytes).expect("a valid file")
    }

    fn load(&self) -> Result<Tokenizer, twinband::tokenizer::Error> {
        Tokenizer::from_gguf(self.file().meta(), &Options::default())
    }
}

fn tokenizer(name: &str) -> Tokenizer {
    Parts::of(name).load().expect("a valid vocabulary")
}

/// Texts and the ids that go with them, one line each.
fn pairs<'t>(texts: &'t str, ids: &str) -> Vec<(&'t str, Vec<u32>)> {
    let texts: Vec<&str> = texts.split(SEPARATOR).collect();
    let mut ids: Vec<Vec<u32>> = ids
        .lines()
        .map(|line| line.split_whitespace().map(|id| id.parse().expect("an id")).collect())
        .collect();
    if ids.len() + 1 == texts.len() && texts.last() == Some(&"") {
        ids.push(Vec::new());
    }
    assert_eq!(texts.len(), ids.len(), "as many lines of ids as texts");
    texts.into_iter().zip(ids).collect()
}

/// Every text whose ids differ.
fn differences(tokenizer: &Tokenizer, pairs: &[(&str, Vec<u32>)], special: Special) -> Vec<String> {
    let differing = pairs.iter().filter_map(|(text, expected)| {
        let ids = tokenizer.encode(text, special);
        (ids != *expected).then(|| format!("{text:?}\n  gives    {ids:?}\n  expected {expected:?}"))
    });
    differing.collect()
}

#[test]
fn texts_of_the_reference() {
    for name in VOCABULARIES {
        let (texts, ids) = (data(&format!("{name}.inp")), data(&format!("{name}.out")));
        let pairs = pairs(&texts, &ids);
        assert!(pairs.len() >= 46, "{name}");
        let wrong = differences(&tokenizer(name), &pairs, Special::Ignore);
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    }
}

#[test]
fn texts_of_many_scripts_and_kinds() {
    let texts = data("extra.inp");
    for name in all() {
        let ids = data(&format!("{name}.extra.out"));
        let wrong = differences(&tokenizer(name), &pairs(&texts, &ids), Special::Parse);
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    }
}

#[test]
fn prompts_of_models() {
    for name in MODELS {
        let tokenizer = tokenizer(name);
        let prompts: Json = serde_json::from_str(&data(&format!("{name}.prompts.json"))).expect("JSON");
        let prompts = prompts.as_array().expect("a list");
        assert!(prompts.len() >= 12);
        for prompt in prompts {
            let ids = tokenizer.encode_prompt(prompt["text"].as_str().expect("a string"), Special::Parse);
            assert_eq!(Json::from(ids), prompt["tokens"], "{name}: {}", prompt["text"]);
        }
    }
}

/// Numbers that only look random.
fn noise(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// Whatever the text, decoding gives it back byte for byte.
#[test]
fn round_trips() {
    for name in all() {
        let tokenizer = tokenizer(name);
        // Bytes that UTF-8 has no use for have no token in some, or one that also stands for a character.
        let whole = (0..=255).all(|b: u8| tokenizer.decode(&tokenizer.encode([b], Special::Ignore)) == [b]);
        let mut pick = noise(1);
        for _ in 0..300 {
            let text: String = (0..pick(40))
                .filter_map(|_| {
                    let below = [0x80, 0x800, 0x3000, 0x1_0000, 0x11_0000][pick(5)];
                    char::from_u32(pick(below) as u32)
                })
                // The sign for a space in files is a space to the model.
                .filter(|&c| c != '\u{2581}')
                .collect();
            // Some vocabularies lack control characters, and bytes that only begin unassigned characters.
            if whole || text.chars().all(|c| (' '..'\u{40000}').contains(&c) && c != '\u{7F}') {
                let ids = tokenizer.encode(&text, Special::Ignore);
                assert_eq!(tokenizer.decode(&ids), text.as_bytes(), "{name}: {text:?}");
            }
            let bytes: Vec<u8> = (0..pick(40)).map(|_| pick(256) as u8).collect();
            if whole && !bytes.windows(3).any(|w| w == "\u{2581}".as_bytes()) {
                let ids = tokenizer.encode(&bytes, Special::Ignore);
                assert_eq!(tokenizer.decode(&ids), bytes, "{name}");
            }
        }
    }
    let every: Vec<u8> = (0..=255).collect();
    for name in ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "gemma3", "gemma-4"] {
        let tokenizer = tokenizer(name);
        let ids = tokenizer.encode(&every, Special::Ignore);
        assert_eq!(tokenizer.decode(&ids), every, "{name}");
    }
}

/// The time this thread has been running: others may be using the processor too.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let running = stat.split_whitespace().next().and_then(|ns| ns.parse().ok());
    running.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

/// What `f` returns, and how long it took.
fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = cpu_time();
    let value = f();
    (value, cpu_time().saturating_sub(start))
}

/// No text makes encoding slow, and none overflows the stack (tests have 2 MB).
#[test]
fn long_runs_take_no_time() {
    let units = [
        "A", " ", "\n", "7", "🚀", "é", "\u{301}", "\t", "<", "'", "\u{3000}", "\r\n", "ab ", " a", "世",
        "!", "\u{2581}", "aA", "<|",
    ];
    for name in all() {
        let tokenizer = tokenizer(name);
        for unit in units {
            for end in ["", "x"] {
                let text = unit.repeat(100_000) + end;
                let (ids, took) = timed(|| tokenizer.encode(&text, Special::Parse));
                assert!(!ids.is_empty());
                assert!(took < Duration::from_secs(1), "{name}: {unit:?} takes {took:?}");
            }
        }
    }
}

#[test]
fn control_tokens_are_parsed_only_where_asked() {
    let tokenizer = tokenizer("smollm2");
    let (text, end) = ("a<|im_end|>b", tokenizer.special("<|im_end|>"));
    assert!(end.is_some());
    let count = |special| tokenizer.encode(text, special).into_iter().filter(|&id| Some(id) == end).count();
    assert_eq!((count(Special::Parse), count(Special::Ignore)), (1, 0));
    let ids = tokenizer.encode(text, Special::Parse);
    assert_eq!(tokenizer.decode(&ids), b"ab");
    assert_eq!(end.map(|id| tokenizer.piece_special(id)).as_deref(), Some(&b"<|im_end|>"[..]));
}

#[test]
fn bos_and_eos_as_the_metadata_say() {
    let ids = |parts: Parts| parts.load().expect("loads").encode_prompt("Hello", Special::Ignore);
    let (bos, eos) = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token");
    let spm = || Parts::of("llama-spm");
    assert_eq!(ids(spm()), [1, 15043]);
    assert_eq!(ids(spm().set(bos, false)), [15043]);
    assert_eq!(ids(spm().set(eos, true)), [1, 15043, 2]);
    assert_eq!(ids(spm().without(bos)), [1, 15043]);
    // Byte-pair vocabularies: none, but for those of Llama 3.
    assert_eq!(ids(Parts::of("gpt-2")), [15496]);
    assert_eq!(ids(Parts::of("gpt-2").set(bos, true)), [50256, 15496]);
    assert_eq!(ids(Parts::of("llama-bpe")), [128_000, 9906]);
    // What the user writes stays.
    let tokenizer = spm().load().expect("loads");
    assert_eq!(tokenizer.encode_prompt("<s>Hello", Special::Parse), [1, 1, 15043]);
}

/// Every role, out of range in every way: a warning that names the key, and no id.
#[test]
fn ids_out_of_range() -> Outcome {
    let roles = ["bos", "eos", "eot", "eom", "unknown", "padding"];
    for role in roles {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let bad =
            [Json::from(50_257), Json::from(u32::MAX), Json::from(u64::MAX), Json::from(-7), Json::from("x")];
        for value in bad {
            let parts = Parts::of("gpt-2").set(&key, value.clone());
            let tokenizer = parts.load()?;
            let named = tokenizer.warnings().iter().any(|w| w.contains(&key));
            assert!(named, "{key} = {value}: {:?}", tokenizer.warnings());
            let ids = [
                tokenizer.bos(),
                tokenizer.eos(),
                tokenizer.eot(),
                tokenizer.eom(),
                tokenizer.unknown(),
                tokenizer.padding(),
            ];
            let at = roles.iter().position(|r| *r == role);
            assert_eq!(at.and_then(|at| ids[at]), None);
            assert!(!tokenizer.encode_prompt("Hello", Special::Parse).is_empty());
        }
        // How some write "none".
        assert!(Parts::of("gpt-2").set(&key, -1).load()?.warnings().is_empty());
    }
    let tokenizer = tokenizer("gpt-2");
    for id in [50_257, u32::MAX] {
        assert!(tokenizer.piece(id).is_empty() && !tokenizer.is_end_of_generation(id));
    }
    Ok(())
}

fn message(parts: &Parts) -> String {
    parts.load().err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn missing_and_unequal_parts() -> Outcome {
    for (name, key) in [
        ("gpt-2", "tokenizer.ggml.model"),
        ("gpt-2", "tokenizer.ggml.tokens"),
        ("gpt-2", "tokenizer.ggml.merges"),
        ("gemma-4", "tokenizer.ggml.merges"),
    ] {
        let said = message(&Parts::of(name).without(key));
        assert!(said.contains(&format!("the file has no {key}")), "{said}");
    }
    for (name, key, note) in [
        ("gpt-2", "tokenizer.ggml.token_type", "has no tokenizer.ggml.token_type"),
        ("gpt-2", "tokenizer.ggml.pre", "has no tokenizer.ggml.pre"),
        ("llama-spm", "tokenizer.ggml.token_type", "has no tokenizer.ggml.token_type"),
        ("llama-spm", "tokenizer.ggml.scores", "has no tokenizer.ggml.scores"),
    ] {
        let tokenizer = Parts::of(name).without(key).load()?;
        assert!(tokenizer.warnings().iter().any(|w| w.contains(note)), "{:?}", tokenizer.warnings());
        // Still of use, and BOS still a control token.
        let text = "Hello world, 33 ünï";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, Special::Ignore)), text.as_bytes());
        assert!(tokenizer.bos().is_some_and(|bos| tokenizer.is_control(bos)));
    }
    let mut short = Parts::of("llama-spm");
    short.types.as_mut().and_then(Vec::pop);
    let said = message(&short);
    assert!(said.contains("token_type has 31999 elements, tokenizer.ggml.tokens has 32000"), "{said}");
    let mut short = Parts::of("llama-spm");
    short.scores.as_mut().and_then(Vec::pop);
    assert!(message(&short).contains("scores has 31999 elements"));
    let mut short = Parts::of("llama-spm");
    short.strings[0].1.pop();
    assert!(message(&short).contains("tokens has 31999"));

    let said = message(&Parts::of("gpt-2").set("tokenizer.ggml.model", "bert"));
    assert!(said.contains("\"bert\"") && said.contains("gpt2, llama and gemma4"), "{said}");
    assert!(message(&Parts::of("gpt-2").set("tokenizer.ggml.tokens", "x")).contains("tokenizer.ggml.tokens"));
    let mut odd = Parts::of("gpt-2");
    for merge in ["", " ", "ab", "a b c", "nosuch token", "日 本"] {
        odd.strings[1].1.push(merge.to_owned());
    }
    let merges = odd.load()?.check_merges();
    assert!(merges.as_ref().is_some_and(|said| said.starts_with("6 of ")), "{merges:?}");
    assert_eq!(Parts::of("gpt-2").load()?.check_merges(), None);
    Ok(())
}

#[test]
fn pre_tokenizers_by_name() -> Outcome {
    let odd = Parts::of("gpt-2").set("tokenizer.ggml.pre", "nosuch");
    let said = message(&odd);
    assert!(said.contains("\"nosuch\" is not known") && said.contains("--pre: default, llama3"), "{said}");
    let options = |pre: &str| Options { pre: Some(pre.to_owned()) };
    let file = odd.file();
    let tokenizer = Tokenizer::from_gguf(file.meta(), &options("gpt-2"))?;
    assert_eq!(tokenizer.encode("Hello", Special::Ignore), [15496]);
    assert!(Tokenizer::from_gguf(file.meta(), &options("nosuch either")).is_err());
    // One name of each way of cutting; digits show which it is.
    let parts = Parts::of("gpt-2");
    for (pre, digits) in
        [("gpt-2", 1), ("smollm", 4), ("llama3", 2), ("qwen2", 4), ("deepseek-v3", 2), ("tekken", 4)]
    {
        let ids = Tokenizer::from_gguf(parts.file().meta(), &options(pre))?.encode("3333", Special::Ignore);
        assert!(ids.len() >= digits, "{pre}: {ids:?}");
    }
    Ok(())
}

/// A model may end its answer with another token than its file names.
#[test]
fn every_end_ends() -> Outcome {
    let named = Parts::of("smollm2");
    let tokenizer = named.load()?;
    let end = tokenizer.special("<|im_end|>").expect("in this vocabulary");
    let other = tokenizer.special("<|endoftext|>").expect("in this vocabulary");
    assert_eq!(tokenizer.eos(), Some(end));
    assert!(tokenizer.is_end_of_generation(end) && tokenizer.is_end_of_generation(other));
    for (role, id) in [("eos", 7), ("eot", 8), ("eom", 9)] {
        let tokenizer = Parts::of("smollm2").set(&format!("tokenizer.ggml.{role}_token_id"), id).load()?;
        assert!([id, end, other].iter().all(|&id| tokenizer.is_end_of_generation(id)));
        assert!(!tokenizer.is_end_of_generation(10));
    }
    let gemma = self::tokenizer("gemma3");
    let turn = gemma.special("<end_of_turn>").expect("in this vocabulary");
    assert!(gemma.eos() != Some(turn) && gemma.is_end_of_generation(turn));
    // As these files have it, user-defined: with <s> for BOS an end, without a tag of HTML.
    for (name, id, ends) in [("phi-3", 2, true), ("gemma3", 212, false)] {
        let mut parts = Parts::of(name);
        parts.strings[0].1[id] = "</s>".to_owned();
        parts.types.iter_mut().for_each(|types| types[id] = 4);
        let tokenizer = parts.load()?;
        let id = id as u32;
        assert_eq!(tokenizer.special("</s>"), Some(id));
        assert_eq!((tokenizer.is_end_of_generation(id), tokenizer.is_control(id)), (ends, ends), "{name}");
    }
    // A file may have it as ordinary text.
    let mut text = Parts::of("smollm2").set("tokenizer.ggml.eos_token_id", 0);
    text.types.iter_mut().flatten().for_each(|ty| *ty = 1);
    let tokenizer = text.load()?;
    assert!(
        tokenizer.is_end_of_generation(end) && tokenizer.is_control(end) && tokenizer.piece(end).is_empty()
    );
    Ok(())
}

/// A folder named by a variable; says so where there is none.
fn folder(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).filter(|v| !v.is_empty());
    if folder.is_none() {
        eprintln!("skipped: {variable} is not set");
    }
    folder.map(PathBuf::from)
}

#[test]
fn whole_vocabularies() -> Outcome {
    let Some(folder) = folder("TWINBAND_GOLDEN") else { return Ok(()) };
    let mut wrong = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder.join("tokenizer"))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    for path in files {
        let file = File::open(&path)?;
        let (tokenizer, took) = timed(|| Tokenizer::from_gguf(file.meta(), &Options::default()));
        let tokenizer = tokenizer?;
        println!("{} loaded in {took:?}, {} bytes", path.display(), tokenizer.heap_bytes());
        let side = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display()));
        let (texts, ids) = (side("inp")?, side("out")?);
        for difference in differences(&tokenizer, &pairs(&texts, &ids), Special::Ignore) {
            wrong.push(format!("{}: {difference}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn whole_models() -> Outcome {
    let Some(folder) = folder("TWINBAND_MODELS") else { return Ok(()) };
    for name in MODELS {
        let file = File::open(&folder.join(format!("{name}.gguf")))?;
        let mut best = Duration::MAX;
        let mut tokenizer = None;
        for _ in 0..5 {
            let (loaded, took) = timed(|| Tokenizer::from_gguf(file.meta(), &Options::default()));
            tokenizer = Some(loaded?);
            best = best.min(took);
        }
        let tokenizer = tokenizer.ok_or("loaded")?;
        let (texts, ids) = (data("extra.inp"), data(&format!("{name}.extra.out")));
        let wrong = differences(&tokenizer, &pairs(&texts, &ids), Special::Parse);
        assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
        let heap = tokenizer.heap_bytes();
        println!("{name}: {} tokens, loaded in {best:?}, {heap} bytes", tokenizer.n_vocab());
        assert!(best < Duration::from_millis(150), "{name} takes {best:?} to load");
        assert!(heap < 15_000_000, "{name} takes {heap} bytes");
    }
    Ok(())
}
