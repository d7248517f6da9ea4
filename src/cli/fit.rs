//! `twinband fit`: what a model would take here, told from its header.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ValueEnum as _;
use serde::Serialize;

use super::budget::{self, Wish};
use super::memory::Limits;
use super::needs::{Items, Needs};
use super::options::{Kv, positive};
use super::report::bytes;
use super::{Ui, report};
use crate::g2bx;
use crate::head::EngineOptions;
use crate::host::Host;
use crate::model::{self, Outline, StateError};
use crate::tokenizer::{Options, Tokenizer};

/// Tell how much memory a model needs and whether this machine has it
///
/// Looks at the header only: the beginning of a download is enough. Memory is counted with the context full, within the
/// limits of control groups. Exit code 1 if the model fits with no kind of KV cache.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: twinband fit model.gguf -c 8192")]
pub struct Args {
    /// The model: a GGUF file, of a split set any part, or a G2BX file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Tokens of context [default: what the model was trained for, at most 4096]
    #[arg(short, long, value_name = "TOKENS", value_parser = positive)]
    ctx: Option<usize>,

    /// Threads; 0 takes the physical cores this process may use
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// Prompt tokens evaluated at once [default: 128]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,

    #[command(flatten)]
    limits: Limits,

    /// For --exact runs
    #[arg(long)]
    exact: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `fit --json`.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    bytes: u64,
    /// Larger than `bytes` if the file is cut short.
    expected_bytes: u64,
    ctx: usize,
    /// The context the model was trained on.
    trained_ctx: usize,
    batch: usize,
    threads: usize,
    /// Mapped: what the system can give up when memory is short.
    weight_bytes: u64,
    /// `null` if the system does not say.
    available_bytes: Option<u64>,
    /// One for each kind of KV cache.
    kv: Vec<Kind>,
    /// With at least one of them.
    fits: bool,
    /// What --max-ram would do.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_ram: Option<Budget>,
    /// Where --swap keeps keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap>,
}

/// Where --swap keeps keys and values.
#[derive(Debug, Serialize)]
struct Swap {
    folder: String,
    /// Room on its disk; `null` if the system does not say.
    available_bytes: Option<u64>,
}

impl Swap {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.display().to_string(), available_bytes: model::room(folder).ok() }
    }
}

/// What --max-ram would do.
#[derive(Debug, Serialize)]
struct Budget {
    max_bytes: u64,
    /// Whether anything can be done.
    fits: bool,
    kv: Option<String>,
    ctx: Option<usize>,
    batch: Option<usize>,
    /// Whether weights are read anew for every token.
    streamed: bool,
    /// What is allocated.
    total_bytes: Option<u64>,
}

/// A kind of KV cache.
#[derive(Debug, Serialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
    #[serde(flatten)]
    items: Items,
    /// Of the process's own: without keys and values if --swap keeps them.
    total_bytes: u64,
    fits: bool,
    /// Whether the weights fit beside it; otherwise they are read from disk again and again.
    weights_stay: bool,
    /// The largest context that fits, at most the one trained on.
    max_ctx: Option<usize>,
}

/// Reads the header and prints what it means.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let swap = args.limits.swap(ui)?;
    let file = g2bx::open_header(&args.file)?;
    if let Some(part) = file.missing().first() {
        bail!("{}: the header of every part is needed, and this part is not there", part.display());
    }
    let outline = Outline::read(&file)?;
    let tokenizer = Tokenizer::from_gguf(file.meta(), &Options::default())?;
    let host = Host::new();
    let threads = if args.threads == 0 { host.default_threads() } else { args.threads };
    let mut options = EngineOptions { exact: args.exact, ..EngineOptions::of(&outline.config, threads) };
    options.batch = args.batch.unwrap_or(options.batch);
    let ctx = args.ctx.unwrap_or(options.ctx);
    let needs = Needs::new(&file, &outline, &tokenizer, options).repacked(args.limits.repack);
    let available = host.available_memory();
    let room = available.unwrap_or(u64::MAX);
    let disk = swap.as_deref().map(Swap::new);
    let own = |items: &Items| items.own(disk.is_some());
    let on_disk = disk.as_ref().and_then(|disk| disk.available_bytes).unwrap_or(u64::MAX);
    let fits = |items: &Items| own(items) <= room && (disk.is_none() || items.kv_bytes <= on_disk);
    let trained_ctx = outline.config.train_ctx;
    let mut kv = Vec::new();
    for &ty in Kv::value_variants() {
        let items = match needs.items(ty, ctx) {
            // Heads that are no whole blocks: the model does not run with this type.
            Err(StateError::Heads { .. }) => continue,
            items => items?,
        };
        kv.push(Kind {
            name: ty.to_string(),
            items,
            total_bytes: own(&items),
            fits: fits(&items),
            weights_stay: own(&items)
                .saturating_add(needs.weights() - items.repacked_bytes.min(needs.weights()))
                <= room,
            max_ctx: needs.largest_ctx(ty, trained_ctx, fits),
        });
    }
    let max = args.limits.max_ram();
    let wish = Wish { kv: Kv::F16, ctx, least_ctx: None, swap: disk.is_some() };
    let choice = max.map(|max| budget::choose(&needs, wish, max)).transpose();
    let within = max.map(|max_bytes| {
        let choice = choice.as_ref().ok().copied().flatten();
        Budget {
            max_bytes,
            fits: choice.is_some(),
            kv: choice.map(|choice| choice.kv.to_string()),
            ctx: choice.map(|choice| choice.ctx),
            batch: choice.map(|choice| choice.batch),
            streamed: choice.is_some_and(|choice| choice.keep.is_some()),
            total_bytes: choice.map(|choice| own(&choice.items)),
        }
    });
    let report = Report {
        file: args.file.display().to_string(),
        bytes: file.size(),
        expected_bytes: file.expected_size(),
        ctx,
        trained_ctx,
        batch: options.batch,
        threads,
        weight_bytes: needs.weights(),
        available_bytes: available,
        fits: kv.iter().any(|option| option.fits),
        kv,
        max_ram: within,
        swap: disk,
    };
    if args.json {
        report::json(&report)?;
    } else {
        write!(io::stdout().lock(), "{}", report.text())?;
    }
    choice?;
    if !report.fits {
        let cache = report.kv.iter().map(|option| option.items.kv_bytes).min().unwrap_or(0);
        if let Some(Swap { folder, .. }) = report.swap.as_ref().filter(|_| cache > on_disk) {
            bail!(
                "does not fit: keys and values take at least {}, and {folder} has room for {}; choose a smaller --ctx or \
                 another --swap folder",
                bytes(cache),
                bytes(on_disk)
            );
        }
        let least = report.kv.iter().map(|option| option.total_bytes).min().unwrap_or(0);
        let most = report.kv.iter().filter_map(|option| option.max_ctx).max();
        let advice = match most {
            Some(ctx) => format!("up to --ctx {ctx} would fit"),
            None => "no context is small enough".to_owned(),
        };
        bail!(
            "does not fit: it takes at least {}, and {} are available; {advice}",
            bytes(least),
            bytes(room)
        );
    }
    Ok(())
}

impl Report {
    fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, text: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{name:<13} {text}");
        };
        let whole = if self.bytes < self.expected_bytes {
            format!("{} of {} are there", bytes(self.bytes), bytes(self.expected_bytes))
        } else {
            bytes(self.bytes)
        };
        line("file", format!("{} ({whole})", self.file));
        line(
            "machine",
            self.available_bytes.map_or("memory not known".to_owned(), |n| format!("{} available", bytes(n))),
        );
        line(
            "weights",
            format!(
                "{} mapped: read as they are used, given up when memory is short",
                bytes(self.weight_bytes)
            ),
        );
        if let Some(Kind { items, .. }) = self.kv.first() {
            line("program", bytes(items.program_bytes));
            line("tokenizer", bytes(items.tokenizer_bytes));
            line("vectors", format!("{}: norms and biases", bytes(items.vector_bytes)));
            let of = format!("a batch of {}, {} threads", self.batch, self.threads);
            line("buffers", format!("{}: {of}", bytes(items.buffer_bytes)));
            if items.repacked_bytes > 0 {
                line("rearranged", format!("{} of the weights, by --repack", bytes(items.repacked_bytes)));
            }
        }
        if let Some(Swap { folder, available_bytes }) = &self.swap {
            let room =
                available_bytes.map_or("room not known".to_owned(), |n| format!("room for {}", bytes(n)));
            line("swap", format!("keys and values are in a file in {folder}, {room}"));
        }
        for option in &self.kv {
            let verdict = match (option.fits, option.weights_stay) {
                (false, _) => "does not fit",
                (true, false) => "fits, but weights are read from disk again and again",
                (true, true) => "fits",
            };
            let of = if self.swap.is_some() { "in memory" } else { "with all above" };
            let most = match option.max_ctx {
                Some(ctx) if ctx == self.trained_ctx => format!("all {ctx} tokens it was trained on would"),
                Some(ctx) => format!("{ctx} tokens would"),
                None => "no context would".to_owned(),
            };
            line(
                &format!("KV {}", option.name),
                format!(
                    "{} for {} tokens, {} {of}: {verdict}; {most}",
                    bytes(option.items.kv_bytes),
                    self.ctx,
                    bytes(option.total_bytes)
                ),
            );
        }
        if let Some(Budget {
            max_bytes,
            kv: Some(kv),
            ctx: Some(ctx),
            batch: Some(batch),
            streamed,
            total_bytes: Some(total),
            ..
        }) = &self.max_ram
        {
            let weights =
                if *streamed { "some weights read anew for every token" } else { "all weights in memory" };
            line(
                "--max-ram",
                format!(
                    "{}: KV {kv}, {ctx} tokens, batches of {batch}, {} allocated, {weights}",
                    bytes(*max_bytes),
                    bytes(*total)
                ),
            );
        }
        out
    }
}
