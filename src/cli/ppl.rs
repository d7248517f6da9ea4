//! `twinband ppl`: how well the model predicts a text.
//!
//! The windows and the scoring rule are those of llama.cpp's `perplexity` tool, so that figures compare. Without
//! `--stride`: the text's tokens (with BOS before them where the model adds one) are cut into windows of `--window`
//! tokens, a last incomplete one is dropped; in each window the first token is replaced by BOS where the model adds
//! one, and the predictions of the window's second half are scored: of tokens w/2 + 1 to w - 1, given all before them in
//! the window. With `--stride S`: windows begin every S tokens and the last S predictions of each are scored.
//!
//! With `--against PARENT` both models run side by side, a few tokens at a time, and at each scored position the distribution
//! that the parent predicts is compared with the model's. Nothing is stored but one number a position.
//!
//! Perplexity is `exp` of the mean of `-ln p` over all scored tokens; the error is that of the mean, times the
//! perplexity.

mod against;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::load::{self, Loaded};
use super::options::{self, EngineOptions, Kv, positive};
use super::{Interrupted, Ui, Usage, interrupt, report};
use crate::gguf::TensorInfo;
use crate::tokenizer::Special;

/// Measure the perplexity of a text
///
/// Windows and scoring are as in llama.cpp's perplexity tool: windows side by side, the second half of each scored.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model file (GGUF; any part of a split set)
    model: PathBuf,

    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// Tokens a window
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive)]
    window: usize,

    /// Begin a window every N tokens and score the last N predictions of each [default: windows side by side, second half scored]
    #[arg(long, value_name = "N", value_parser = positive)]
    stride: Option<usize>,

    /// Score at most N windows
    #[arg(long, value_name = "N", value_parser = positive)]
    windows: Option<usize>,

    /// Compare with the predictions of this model, say the one that MODEL was converted from: their divergence, and how
    /// often both find the same token likeliest
    #[arg(long, value_name = "PARENT")]
    against: Option<PathBuf>,

    /// The same with the KV cache of the other model kept as TYPE; without --against, that is MODEL itself
    #[arg(long, value_name = "TYPE")]
    against_kv: Option<Kv>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineOptions,
}

/// `ppl --json`.
#[derive(Debug, Serialize)]
struct Report {
    ppl: f64,
    ppl_error: f64,
    nll: f64,
    scored: usize,
    tokens: usize,
    windows: usize,
    window: usize,
    stride: usize,
    /// Bits that tensors take for a weight.
    bits_per_weight: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<against::Report>,
}

/// Tokens that two models evaluate in turn: what is stored of logits.
const TURN: usize = 8;

/// Evaluates the windows one by one and prints the result.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let plan = Plan::new(args.window, args.stride)?;
    let text = options::text_of(&args.file)?;
    let ctx = Some(args.engine.ctx.unwrap_or(args.window));
    let engine = EngineOptions { ctx, least_ctx: Some(args.window), ..args.engine.clone() };
    let file = load::file(&args.model)?;
    let mut model = Loaded::new(&file, &engine, ui)?;
    let ids = model.tokenizer.encode_prompt(&text, Special::Ignore);
    let count = plan.count(ids.len()).min(args.windows.unwrap_or(usize::MAX));
    if count == 0 {
        bail!(
            "the text has {} tokens, but one window needs {}: give more text or a smaller --window",
            ids.len(),
            args.window
        );
    }
    let parent_path = args.against.as_deref().or(args.against_kv.map(|_| args.model.as_path()));
    let parent_file = parent_path.map(load::file).transpose()?;
    let mut parent = match &parent_file {
        Some(file) => {
            let (kv, q8_kv) = args.against_kv.map_or((engine.kv, engine.q8_kv), |kv| (Some(kv), false));
            let parent = Loaded::new(file, &EngineOptions { kv, q8_kv, ..engine.clone() }, ui)?;
            let vocab = [&parent, &model].map(|loaded| loaded.engine.model().config.vocab);
            if vocab[0] != vocab[1] || parent.tokenizer.encode_prompt(&text, Special::Ignore) != ids {
                bail!(
                    "{} reads the text as other tokens: choose a model of the same vocabulary",
                    file.path().display()
                );
            }
            Some((parent, against::Compared::default(), Vec::new()))
        }
        None => None,
    };
    let flag = interrupt::flag()?;
    let bos = model.tokenizer.leading_bos();
    let mut progress = ui.progress("windows", count as u64);
    let mut sum = Sum::default();
    let mut window = Vec::with_capacity(args.window);
    for number in 0..count {
        let start = number * plan.stride;
        window.clear();
        window.extend_from_slice(ids.get(start..start + plan.window).unwrap_or_default());
        if let (Some(first), Some(bos)) = (window.first_mut(), bos) {
            *first = bos;
        }
        model.engine.truncate(0);
        let (before, scored) = window.split_at(plan.scored.start);
        model.engine.eval(before)?;
        let mut failure = None;
        if let Some((parent, ..)) = &mut parent {
            parent.engine.truncate(0);
            parent.engine.eval(before)?;
        }
        // The last token is the target of the last prediction only.
        let scored = &scored[..scored.len() - 1];
        for turn in scored.chunks(if parent.is_some() { TURN } else { scored.len() }) {
            if let Some((parent, _, stored)) = &mut parent {
                stored.clear();
                parent.engine.eval_each(turn, |_, logits| stored.extend_from_slice(logits))?;
            }
            let mut i = 0;
            model.engine.eval_each(turn, |position, logits| {
                let target = window.get(position + 1).copied().unwrap_or(u32::MAX);
                let log = log_probability(logits, target);
                sum.add(-log.unwrap_or_default());
                let compared = parent.as_mut().is_none_or(|(_, compared, stored)| {
                    let vocab = logits.len();
                    compared.add(&stored[i * vocab..(i + 1) * vocab], logits, target)
                });
                if log.is_none() || !compared {
                    failure = failure.or(Some(start + position));
                }
                i += 1;
            })?;
        }
        if let Some(position) = failure {
            bail!(
                "the logits after token {position} of the text are not numbers: the model file is damaged or its arithmetic overflowed"
            );
        }
        if flag.load(Ordering::SeqCst) {
            return Err(Interrupted.into());
        }
        progress.set(number as u64 + 1);
        ui.detail(format_args!("[{}] {:.4}", number + 1, sum.perplexity().0));
    }
    progress.finish();
    let (ppl, ppl_error) = sum.perplexity();
    let against = parent.map(|(_, compared, _)| compared.report());
    let sum_of = |of: fn(&TensorInfo) -> u64| file.tensors().iter().map(of).sum::<u64>();
    let bytes = sum_of(|tensor| tensor.bytes().unwrap_or(0));
    let bits_per_weight = bytes as f64 * 8.0 / sum_of(TensorInfo::elements).max(1) as f64;
    if args.json {
        return report::json(&Report {
            ppl,
            ppl_error,
            nll: sum.mean(),
            scored: sum.count,
            tokens: ids.len(),
            windows: count,
            window: plan.window,
            stride: plan.stride,
            bits_per_weight,
            against,
        });
    }
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    if let Some(against) = &against {
        writeln!(
            out,
            "parent's ppl {:.4}; divergence from it {:.5} +/- {:.5}, 99 % below {:.4}, largest {:.4}; same token on top {:.1} %; {bits_per_weight:.2} bits a weight",
            against.ppl,
            against.kld_mean,
            against.kld_error,
            against.kld_p99,
            against.kld_max,
            against.same_top * 100.0
        )
        .context("cannot write the result")?;
    }
    writeln!(
        out,
        "ppl {ppl:.4} +/- {ppl_error:.4} over {} predictions in {count} windows of {} tokens",
        sum.count, plan.window
    )
    .context("cannot write the result")
}

/// Where windows begin and which of their predictions count.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    window: usize,
    stride: usize,
    /// Positions in a window whose logits predict a scored token.
    scored: Range<usize>,
}

impl Plan {
    fn new(window: usize, stride: Option<usize>) -> Result<Self, Usage> {
        if window < 4 {
            return Err(Usage(format!("--window {window} is too small: at least 4")));
        }
        match stride {
            None => Ok(Plan { window, stride: window, scored: window / 2..window - 1 }),
            Some(stride) if stride < window => {
                Ok(Plan { window, stride, scored: window - stride - 1..window - 1 })
            }
            Some(stride) => Err(Usage(format!("--stride {stride} must be less than --window {window}"))),
        }
    }

    /// How many whole windows a text of so many tokens has.
    fn count(&self, tokens: usize) -> usize {
        if tokens < self.window { 0 } else { (tokens - self.window) / self.stride + 1 }
    }
}

/// Natural logarithm of the probability of `target` under `logits`, `[n_vocab]`; none if that is not a number.
fn log_probability(logits: &[f32], target: u32) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit - max))).sum();
    let log = f64::from(logits.get(target as usize)? - max) - libm::log(sum);
    log.is_finite().then_some(log)
}

/// Mean and spread of `-ln p`.
#[derive(Debug, Default)]
struct Sum {
    count: usize,
    nll: f64,
    squares: f64,
}

impl Sum {
    fn add(&mut self, nll: f64) {
        self.count += 1;
        self.nll += nll;
        self.squares += nll * nll;
    }

    fn mean(&self) -> f64 {
        self.nll / self.count.max(1) as f64
    }

    /// The perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let n = self.count.max(1) as f64;
        let ppl = libm::exp(self.mean());
        let variance = (self.squares / n - self.mean() * self.mean()).max(0.0);
        let error = if self.count > 1 { ppl * (variance / (n - 1.0)).sqrt() } else { 0.0 };
        (ppl, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_reference() -> Result<(), Usage> {
        let plan = Plan::new(512, None)?;
        // 255 predictions a window: of tokens 257 to 511.
        assert_eq!(plan.scored, 256..511);
        for (tokens, windows) in [(511, 0), (512, 1), (1023, 1), (1024, 2)] {
            assert_eq!(plan.count(tokens), windows, "{tokens}");
        }
        let plan = Plan::new(512, Some(128))?;
        assert_eq!(plan.scored, 383..511);
        for (tokens, windows) in [(511, 0), (512, 1), (639, 1), (640, 2)] {
            assert_eq!(plan.count(tokens), windows, "{tokens}");
        }
        assert!(Plan::new(3, None).is_err() && Plan::new(8, Some(8)).is_err());
        Ok(())
    }

    #[test]
    fn log_probabilities_of_a_known_law() {
        let logits = [1.0f32.ln(), 2.0f32.ln(), 5.0f32.ln()];
        for (id, p) in (0..).zip([0.125f64, 0.25, 0.625]) {
            let log = log_probability(&logits, id).expect("a number");
            assert!((log - p.ln()).abs() < 1e-6, "{id}: {log}");
        }
        let large = log_probability(&[1000.0, -1000.0], 1).expect("a number");
        assert_eq!(large, -2000.0);
        for bad in [[f32::NAN, 0.0], [0.0, f32::NAN], [f32::INFINITY, 0.0]] {
            assert_eq!(log_probability(&bad, 1), None);
        }
        assert_eq!(log_probability(&[0.0], 1), None);
    }

    #[test]
    fn perplexity_of_equal_probabilities_has_no_error() {
        let mut sum = Sum::default();
        (0..10).for_each(|_| sum.add(4f64.ln()));
        let (ppl, error) = sum.perplexity();
        assert!((ppl - 4.0).abs() < 1e-12 && error < 1e-6, "{ppl} {error}");
        sum.add(8f64.ln());
        // By hand: mean 1.44931, variance 0.03971, error of the mean 0.06301.
        let (ppl, error) = sum.perplexity();
        assert!((ppl - 4.26016).abs() < 1e-4 && (error - 0.26847).abs() < 1e-4, "{ppl} {error}");
    }
}
