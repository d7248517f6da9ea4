//! Options which several commands share.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::Usage;
use crate::host::Host;
use crate::kernel::format::GgmlType;
use crate::model::{Config, KvType};
use crate::sample::{Params, Sampler};

/// How the model is run. Of these only `exact`, `kv` and `pre` can change a text.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineOptions {
    /// Threads; 0 takes the physical cores this process may use
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub threads: usize,

    /// Tokens of context; its memory is printed with -v [default: what the model was trained for, at most 4096]
    #[arg(short, long, value_name = "TOKENS")]
    pub ctx: Option<usize>,

    /// Multiply in f32 instead of with 8-bit activations: slower, the reference for correctness
    #[arg(long)]
    pub exact: bool,

    /// Instruction set: auto, scalar, avx2, avxvnni or avx512; every one gives the same bits
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub isa: String,

    /// How the KV cache is kept; fewer bits take less memory and change the text [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<Kv>,

    /// The same as --kv q8
    #[arg(long, conflicts_with = "kv")]
    pub q8_kv: bool,

    /// With raised priority, if that is allowed; and unless other options say otherwise, on all cores (efficiency cores
    /// too) and with the KV cache in 8 bits
    #[arg(long)]
    pub fast: bool,

    /// Prompt tokens evaluated at once [default: 128]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,

    /// Cut text as this pre-tokenizer does, against what the file says
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,

    /// What memory may be taken, and where.
    #[command(flatten)]
    pub memory: super::memory::MemoryOptions,

    /// The context below which the command makes no sense; not an option.
    #[arg(skip)]
    pub least_ctx: Option<usize>,

    /// What a GPU may do.
    #[command(flatten)]
    pub gpu: super::gpu::GpuArgs,
}

impl EngineOptions {
    /// How the KV cache of such a model is kept.
    pub fn kv(&self, config: &Config) -> Kv {
        match self.kv {
            Some(kv) => kv,
            None if self.q8_kv => Kv::Q8,
            // Not asked for by name, so a model that cannot have it is no error.
            None if self.fast && KvType::Q8.check(config).is_ok() => Kv::Q8,
            None => Kv::F16,
        }
    }

    /// The number of threads.
    pub fn threads(&self, host: &Host) -> usize {
        match self.threads {
            0 if self.fast => host.all_threads(),
            0 => host.default_threads(),
            threads => threads,
        }
    }
}

/// How the KV cache is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kv {
    /// Half precision
    F16,
    /// Single precision: twice the memory
    F32,
    /// Blocks of Q8_0: 53 % of the memory
    Q8,
    /// Keys in blocks of Q8_0, values in Q4_0: 41 % of the memory
    #[value(name = "k8v4")]
    K8V4,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => Self::F16,
            Kv::F32 => Self::F32,
            Kv::Q8 => Self::Q8,
            Kv::K8V4 => Self::K8V4,
        }
    }
}

impl Kv {
    /// What takes the place of this where memory is short: less of it, and still close to the same text.
    pub fn reduced(self) -> Option<Self> {
        match self {
            Self::F32 | Self::F16 => Some(Self::Q8),
            Self::Q8 | Self::K8V4 => None,
        }
    }
}

impl std::fmt::Display for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(clap::ValueEnum::to_possible_value(self).as_ref().map_or("", |value| value.get_name()))
    }
}

/// How a token is chosen.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Temperature: 0 takes the likeliest token, 1 samples what the model says; -t is --threads [default: 0; in chat 0.4]
    #[arg(long, visible_alias = "temperature", value_name = "T", allow_negative_numbers = true)]
    temp: Option<f32>,

    /// Sample among the K likeliest tokens; 0 among all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,

    /// Sample among the likeliest tokens that together have probability P; 1 among all
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,

    /// Sample among tokens at least P times as likely as the likeliest; 0 among all
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,

    /// Divide the positive and multiply the negative logits of recent tokens; 1 is off
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,

    /// Subtract this from a logit for every recent occurrence of its token
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Subtract this from the logits of recent tokens
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// How many tokens are recent, those of the prompt included
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_last_n: usize,

    /// Add a number to the logit of a token; -inf bans it; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,

    /// The random sequence: a number, or `random`; the same one gives the same text on every machine
    #[arg(long, value_name = "SEED", default_value = "0", value_parser = seed)]
    seed: u64,
}

impl SamplingOptions {
    /// The sampler, with `temperature` where none was given.
    pub fn sampler(&self, temperature: f32, ui: &super::Ui) -> anyhow::Result<Sampler> {
        let params = Params {
            temperature: self.temp.unwrap_or(temperature),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window: self.repeat_last_n,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        };
        let truncates = params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0;
        if params.temperature == 0.0 && self.temp.is_none() && truncates {
            ui.note("--top-k, --top-p and --min-p do nothing at temperature 0, the default: add --temp 0.8");
        }
        ui.detail(format_args!("seed {}", params.seed));
        Ok(Sampler::new(params).map_err(|error| Usage(error.to_string()))?)
    }
}

/// A whole number above 0.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("must be a whole number, at least 1".to_owned()),
    }
}

/// The name of one of a command's types, in any case where the option says so.
pub fn types<I>(all: fn() -> I) -> impl TypedValueParser<Value = GgmlType>
where
    I: Iterator<Item = GgmlType> + 'static,
{
    PossibleValuesParser::new(all().filter_map(GgmlType::name)).try_map(move |name| {
        all().find(|ty| ty.to_string().eq_ignore_ascii_case(&name)).ok_or("no such type")
    })
}

/// A number of tokens; -1 is no limit.
pub fn limit(text: &str) -> Result<Limit, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(Limit(None)),
        Ok(n) => {
            usize::try_from(n).map(|n| Limit(Some(n))).map_err(|_| "must be 0 or more, or -1".to_owned())
        }
        Err(_) => Err("must be a whole number, or -1 for no limit".to_owned()),
    }
}

/// A number of tokens, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<usize>);

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wanted = "must be ID=BIAS, such as 42=-1.5 or 42=-inf";
    let (id, bias) = text.split_once('=').ok_or(wanted)?;
    match (id.trim().parse(), bias.trim().parse()) {
        (Ok(id), Ok(bias)) => Ok((id, bias)),
        _ => Err(wanted.to_owned()),
    }
}

fn seed(text: &str) -> Result<u64, String> {
    if text == "random" {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(now.as_nanos() as u64 ^ u64::from(std::process::id()));
    }
    text.parse().map_err(|_| "must be a whole number, 0 or more, or `random`".to_owned())
}

/// The text from a file (`-` is standard input), without the one newline at its end that editors and `echo` add.
pub fn text_of(file: &Path) -> anyhow::Result<String> {
    let (name, bytes) = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        ("standard input".to_owned(), bytes)
    } else {
        let name = file.display().to_string();
        (name.clone(), fs::read(file).with_context(|| format!("cannot read {name}"))?)
    };
    let mut text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bail!(
            "{name} is not UTF-8 text: bad byte at offset {} (convert it, for example with iconv)",
            error.utf8_error().valid_up_to()
        ),
    };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The prompt: as given, from a file, or, when neither is there, from standard input unless that is a terminal.
pub fn prompt(given: Option<&str>, file: Option<&PathBuf>) -> anyhow::Result<String> {
    match (given, file) {
        (Some(text), _) if text != "-" => Ok(text.to_owned()),
        (None, Some(file)) => text_of(file),
        (None, None) if io::stdin().is_terminal() => {
            Err(Usage("there is no prompt: give one, or -f FILE, or pipe text in".to_owned()).into())
        }
        _ => text_of(Path::new("-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_has_an_id_and_a_number() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        for wrong in ["42", "x=1", "1=", "=1", "-1=2", "1=two", "4294967296=1"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_may_be_none() {
        assert_eq!(limit("0"), Ok(Limit(Some(0))));
        assert_eq!(limit("-1"), Ok(Limit(None)));
        for wrong in ["-2", "1.5", "", "many", "99999999999999999999"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_newline_at_the_end_of_a_file_is_not_part_of_the_prompt() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("prompt.txt");
        for (bytes, text) in
            [("a\n", "a"), ("a\n\n", "a\n"), ("a\r\n", "a"), (" a ", " a "), ("", ""), ("\n", "")]
        {
            fs::write(&path, bytes)?;
            assert_eq!(text_of(&path)?, text, "{bytes:?}");
        }
        fs::write(&path, b"ab\xffcd")?;
        let error = text_of(&path).expect_err("not UTF-8").to_string();
        assert!(error.contains("offset 2"), "{error}");
        Ok(())
    }
}
