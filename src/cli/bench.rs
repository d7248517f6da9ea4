//! `twinband bench`: speed and memory of a model on this machine.
//!
//! Each repetition evaluates a prompt, decodes token by token, and reads the weights once more with no arithmetic: what
//! the memory allows. The three alternate, so that a change of the machine's clock or load meets all of them, and
//! medians are reported. Tokens are a fixed random selection of the vocabulary without repetition; every repetition
//! must give the same logits, bit for bit.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde::Serialize;

use super::gpu::{GpuReport, Quantiles};
use super::load::{self, Loaded};
use super::options::{EngineOptions, positive};
use super::report::{self, median};
use super::{Interrupted, Ui, Usage, interrupt};
use crate::generate::digest::Digest;
use crate::generate::memory;
use crate::head::Engine;
use crate::kernel::isa::Isa;
use crate::kernel::op::read::read;
use crate::kernel::par::Team;
use crate::sample::Rng;
use crate::tokenizer::Tokenizer;

/// Tokens decoded between two looks at memory and Ctrl-C.
const LOOK_INTERVAL: usize = 16;

/// Jobs without rows that are timed at the end, where there is a GPU.
const EMPTY_JOBS: usize = 200;

/// Measure speed and memory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model file (GGUF; any part of a split set)
    model: PathBuf,

    /// Prompt tokens a repetition
    #[arg(long, value_name = "N", default_value_t = 512)]
    prefill: usize,

    /// Tokens decoded a repetition
    #[arg(long, value_name = "N", default_value_t = 64)]
    decode: usize,

    /// Repetitions
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    reps: usize,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineOptions,
}

/// `bench --json`.
#[derive(Debug, Serialize)]
struct Report {
    prefill_tps: f64,
    decode_tps: f64,
    decode_gbps: f64,
    read_ceiling_gbps: f64,
    rss_anon_peak_bytes: u64,
    rss_peak_bytes: u64,
    isa: &'static str,
    threads: usize,
    digest: String,
    gpu: GpuReport,
}

/// What one repetition measured.
struct Rep {
    prefill_tps: f64,
    decode_tps: f64,
    ceiling_gbps: f64,
    /// The part of the decoding that was spent waiting for a GPU.
    wait_share: f64,
    digest: Digest,
}

/// Measures and prints.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let total = args.prefill + args.decode;
    if total == 0 {
        return Err(Usage("nothing to measure: --prefill and --decode are both 0".to_owned()).into());
    }
    let ctx = Some(args.engine.ctx.unwrap_or(total));
    let engine = EngineOptions { ctx, least_ctx: Some(total), ..args.engine.clone() };
    let file = load::file(&args.model)?;
    let mut model = Loaded::for_ids(&file, &engine, ui)?;
    if total > model.engine.ctx() {
        bail!(
            "--prefill {} and --decode {} need a context of {total} tokens, but it holds {}: raise --ctx",
            args.prefill,
            args.decode,
            model.engine.ctx()
        );
    }
    let weights = model.weights()?;
    let team = Team::new(model.engine.threads())?;
    let ids = selection(&model.tokenizer, total);
    let flag = interrupt::flag()?;
    let mut progress = ui.progress("repetitions", args.reps as u64);
    let mut reps: Vec<Rep> = Vec::new();
    for number in 0..args.reps {
        progress.set(number as u64);
        let mut rep = measure(&mut model.engine, &ids, args.prefill, || flag.load(Ordering::SeqCst))?;
        // Reading all weights of the file at once is what a streamed model must not do, nor one that has them elsewhere.
        if !model.engine.model().is_streamed() && !args.engine.memory.limits.repack {
            rep.ceiling_gbps = ceiling(model.engine.isa(), &team, &weights);
        }
        if let Some(first) = reps.first().filter(|first| first.digest != rep.digest) {
            bail!(
                "repetitions gave different logits (digests {} and {}): this is a fault of the program or of the machine's memory",
                first.digest,
                rep.digest
            );
        }
        reps.push(rep);
    }
    progress.finish();
    ui.catch_up();
    let of = |value: fn(&Rep) -> f64| median(&reps.iter().map(value).collect::<Vec<_>>());
    let peak = memory::peak();
    let decode_tps = of(|rep| rep.decode_tps);
    let mut gpu = GpuReport::new(model.engine.dual());
    if let Some(times) = &mut gpu.times {
        times.wait_share = Some(of(|rep| rep.wait_share));
        times.empty_us = Quantiles::new(model.engine.gpu_round_trips(EMPTY_JOBS).into_iter());
    }
    let report = Report {
        prefill_tps: of(|rep| rep.prefill_tps),
        decode_tps,
        decode_gbps: decode_tps * weights.iter().map(|part| part.len()).sum::<usize>() as f64 / 1e9,
        read_ceiling_gbps: of(|rep| rep.ceiling_gbps),
        rss_anon_peak_bytes: peak.anon,
        rss_peak_bytes: peak.total,
        isa: model.engine.isa().name(),
        threads: model.engine.threads(),
        digest: reps.first().map(|rep| rep.digest).unwrap_or_default().to_string(),
        gpu,
    };
    if args.json { report::json(&report) } else { print(&report, args) }
}

fn print(report: &Report, args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "prefill  {:8.1} tok/s   {} tokens, median of {}",
        report.prefill_tps, args.prefill, args.reps
    )?;
    writeln!(
        out,
        "decode   {:8.1} tok/s   {} tokens, median of {}",
        report.decode_tps, args.decode, args.reps
    )?;
    if report.read_ceiling_gbps > 0.0 {
        writeln!(
            out,
            "weights  {:8.2} GB/s    {:.0} % of the {:.2} GB/s at which this machine reads them",
            report.decode_gbps,
            100.0 * report.decode_gbps / report.read_ceiling_gbps,
            report.read_ceiling_gbps
        )?;
    } else {
        writeln!(out, "weights  {:8.2} GB/s", report.decode_gbps)?;
    }
    writeln!(
        out,
        "memory   {} allocated, {} with the file's pages (peaks)",
        report::bytes(report.rss_anon_peak_bytes),
        report::bytes(report.rss_peak_bytes)
    )?;
    writeln!(out, "engine   {}, {} threads, gpu {}", report.isa, report.threads, report.gpu.line())?;
    if let Some(times) = &report.gpu.times {
        writeln!(out, "{}", times.lines())?;
    }
    writeln!(out, "digest   {}", report.digest)?;
    Ok(())
}

/// One prompt and its tokens decoded; the ceiling is left at 0.
fn measure(
    engine: &mut Engine<'_>,
    ids: &[u32],
    prefill: usize,
    interrupted: impl Fn() -> bool,
) -> anyhow::Result<Rep> {
    engine.truncate(0);
    let (prompt, rest) = ids.split_at(prefill.min(ids.len()));
    let start = Instant::now();
    for part in prompt.chunks(engine.batch()) {
        engine.eval(part)?;
        if interrupted() {
            return Err(Interrupted.into());
        }
    }
    let prefill = start.elapsed();
    memory::sample();
    let mut digest = Digest::default();
    let mut decode = Duration::ZERO;
    let waited = |engine: &Engine<'_>| engine.dual().map_or(Duration::ZERO, |dual| dual.times().waited);
    let before = waited(engine);
    for (n, id) in rest.iter().enumerate() {
        let start = Instant::now();
        engine.eval(&[*id])?;
        let logits = engine.logits()?;
        decode += start.elapsed();
        digest.add(logits);
        if n % LOOK_INTERVAL == 0 {
            memory::sample();
            if interrupted() {
                return Err(Interrupted.into());
            }
        }
    }
    let rate = |n: usize, seconds: f64| if n == 0 { 0.0 } else { n as f64 / seconds };
    Ok(Rep {
        prefill_tps: rate(prompt.len(), prefill.as_secs_f64()),
        decode_tps: rate(rest.len(), decode.as_secs_f64()),
        ceiling_gbps: 0.0,
        wait_share: (waited(engine) - before).as_secs_f64() / decode.as_secs_f64().max(1e-9),
        digest,
    })
}

/// How fast the team reads the weights of one token when it only adds them up, in GB/s.
fn ceiling(isa: Isa, team: &Team, weights: &[&[u8]]) -> f64 {
    let start = Instant::now();
    read(isa, team, weights);
    let bytes: usize = weights.iter().map(|part| part.len()).sum();
    bytes as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// `n` tokens in a fixed random order, none twice until the vocabulary is used up, control tokens left out.
fn selection(tokenizer: &Tokenizer, n: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..).take(tokenizer.n_vocab()).filter(|&id| !tokenizer.is_control(id)).collect();
    shuffle(&mut ids, n);
    ids.into_iter().cycle().take(n).collect()
}

/// Puts a random choice of the values into the first `n` places.
fn shuffle(values: &mut [u32], n: usize) {
    let mut rng = Rng::new(0);
    let len = values.len();
    for i in 0..n.min(len) {
        let other = i + (rng.uniform() * (len - i) as f64) as usize;
        values.swap(i, other.min(len - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_selection_repeats_nothing() {
        let mut ids: Vec<u32> = (0..1000).collect();
        shuffle(&mut ids, 300);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1000);
        let in_place = (0..).zip(ids.iter().take(300)).filter(|(i, id)| *i == **id).count();
        assert!(in_place < 10, "{in_place}");
        let mut again: Vec<u32> = (0..1000).collect();
        shuffle(&mut again, 300);
        assert_eq!(ids, again);
    }
}
